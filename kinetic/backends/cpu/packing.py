"""Packs a weight matrix into the layout of ``layout.py``, in Numba. Imported only by the build process.

    pack(source, source row bytes, rows, width, target, first group, last group)

Rows beyond the matrix are packed as zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types as nt
from numba.extending import intrinsic

from kinetic.backends.base import BLOCK
from kinetic.backends.cpu import layout
from kinetic.backends.cpu.compiled import BARE
from kinetic.backends.cpu.emitted import read_u8, write_i32, write_u8
from kinetic.formats import Format

compiled = njit(**BARE)
NOTHING = np.uint8(0)


@intrinsic
def bytes_at(typingctx: Any, address: Any) -> Any:
    """A pointer to uint8 that can be indexed. An array would bring reference counting along."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.inttoptr(args[0], ir.IntType(8).as_pointer())

    return nt.CPointer(nt.uint8)(nt.int64), codegen  # type: ignore[attr-defined]


def make_pack(fmt: Format) -> Any:
    """The packing kernel of a format, to be compiled."""
    if not fmt.QUANTISED:
        return _pack_floats(fmt.BYTES)
    return _pack_quantised(fmt)


def _pack_floats(size: int) -> Any:
    @compiled
    def pack(source, row_bytes, rows, width, target, first, last):
        group = width * 16 * size
        for g in range(first, last):
            for r in range(16):
                row = g * 16 + r
                for k in range(width):
                    at = target + g * group + (k * 16 + r) * size
                    for byte in range(size):
                        value = read_u8(source + row * row_bytes + k * size + byte) if row < rows else NOTHING
                        write_u8(at + byte, value)

    return pack


def _pack_quantised(fmt: Format) -> Any:
    block_values, block_bytes = fmt.BLOCK, fmt.BYTES
    per_block = block_values // BLOCK
    quants, words = layout.quant_bytes(fmt), _pack_words(fmt)
    small, header, line = layout.scale_bytes(fmt), layout.chunk_header(fmt), layout.LINE
    whole, scales = layout.chunk_bytes(fmt, layout.BLOCKS), _pack_scales(fmt)

    @compiled
    def pack(source, row_bytes, rows, width, target, first, last):
        blocks = width // 32
        rest = blocks % 8
        group = blocks // 8 * whole
        if rest != 0:
            group += header + (rest * small + line - 1) // line * line + rest * quants
        for g in range(first, last):
            chunk = target + g * group
            for start in range(0, blocks, 8):
                for r in range(min(16, rows - g * 16)):
                    row = source + (g * 16 + r) * row_bytes
                    for b in range(min(8, blocks - start)):
                        block = bytes_at(row + (start + b) // per_block * block_bytes)
                        inner = (start + b) % per_block
                        place = chunk + header + b * small // line * line + b * quants
                        if small < line:  # two blocks stand behind their line
                            own = place - (b % 2) * quants + (b % 2) * small
                        else:
                            own = place
                        scales(block, inner, chunk, own, r)
                        words(block, inner * 32, place + line, r)
                chunk += whole

    return pack


def _pack_words(fmt: Format) -> Any:
    """words(block, first value, target, row): one block of 32 of one row, four elements a store."""
    unsigned = compiled(fmt.unsigned)
    bits, extra = fmt.BITS, max(fmt.BITS - 4, 0)
    planes, per_plane = (extra, 8 // extra) if 0 < extra < 4 else (0, 1)

    @compiled
    def words(block, start, target, r):
        for j in range(8 if bits == 8 else 4):
            word = np.uint32(0)
            for k in range(4):
                u = np.uint32(unsigned(block, start + 4 * j + k))
                if bits != 8:
                    high = np.uint32(unsigned(block, start + 16 + 4 * j + k))
                    u = (u & np.uint32(15)) | ((high & np.uint32(15)) << np.uint32(4))
                word |= u << np.uint32(8 * k)
            write_i32(target + 64 * j + 4 * r, np.int32(word))
        for p in range(planes):
            word = np.uint32(0)
            for j in range(per_plane):
                for k in range(4):
                    u = np.uint32(unsigned(block, start + 4 * (p * per_plane + j) + k))
                    word |= (u >> np.uint32(4)) << np.uint32(extra * j + 8 * k)
            write_i32(target + 256 + 64 * p + 4 * r, np.int32(word))

    return words


def _pack_scales(fmt: Format) -> Any:
    """scales(block, index inside it, chunk, line of the block, row)."""
    d_at, m_at = fmt.D_AT, fmt.M_AT
    if fmt.SCALES == "block":

        @compiled
        def scales(block, inner, chunk, own, r):
            for byte in range(2):
                write_u8(own + 2 * r + byte, block[d_at + byte])
                if m_at >= 0:
                    write_u8(own + 32 + 2 * r + byte, block[m_at + byte])

    elif fmt.SCALES == "superblock":
        factor, minimum = compiled(fmt.factor), compiled(fmt.minimum)

        @compiled
        def scales(block, inner, chunk, own, r):
            for byte in range(2):
                write_u8(chunk + 2 * r + byte, block[d_at + byte])
                write_u8(chunk + 32 + 2 * r + byte, block[m_at + byte])
            write_u8(own + r, np.uint8(factor(block, inner)))
            write_u8(own + 16 + r, np.uint8(minimum(block, inner)))

    else:
        factor = compiled(fmt.factor)

        @compiled
        def scales(block, inner, chunk, own, r):
            for byte in range(2):
                write_u8(chunk + 2 * r + byte, block[d_at + byte])
            for half in range(2):
                write_u8(own + 16 * half + r, np.uint8(factor(block, 2 * inner + half)))

    return scales
