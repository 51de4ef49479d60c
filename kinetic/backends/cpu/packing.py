"""Packs a weight matrix into the layout of ``layout.py``, in Numba. Imported only by the build process.

    pack(source, source row bytes, rows, width, target, first group, last group)

Rows beyond the matrix are packed as zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit
from numba.core import types as nt
from numba.extending import intrinsic

from kinetic.backends.base import BLOCK
from kinetic.backends.cpu import layout
from kinetic.backends.cpu.compiled import BARE
from kinetic.backends.cpu.emitted import read_u8, write_u8
from kinetic.formats import Format

compiled = njit(**BARE)
NOTHING = np.uint8(0)


@intrinsic
def _as_pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.inttoptr(args[0], ir.IntType(8).as_pointer())

    return nt.voidptr(nt.int64), codegen


@compiled
def bytes_at(address, n):
    return carray(_as_pointer(address), n, np.uint8)


@compiled
def copy_bytes(source, target, n):
    for k in range(n):
        write_u8(target + k, read_u8(source + k))


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
    scales = _pack_scales(fmt)
    super_header = fmt.SCALES != "block"
    small = layout.block_header(fmt)

    @compiled
    def pack(source, row_bytes, rows, width, target, first, last):
        blocks = width // 32
        at = target
        full = 320 if super_header else 8 * small
        group = blocks // 8 * (full + 8 * quants)
        rest = blocks % 8
        if rest != 0:
            group += (rest * small + 63) // 64 * 64 + rest * quants
        for g in range(first, last):
            at = target + g * group
            for chunk in range(0, blocks, 8):
                n = min(8, blocks - chunk)
                header = full if n == 8 else (n * small + 63) // 64 * 64
                for r in range(min(16, rows - g * 16)):
                    row = source + (g * 16 + r) * row_bytes
                    for b in range(n):
                        block = bytes_at(row + (chunk + b) // per_block * block_bytes, block_bytes)
                        inner = (chunk + b) % per_block
                        scales(block, inner, at, b, r)
                        words(block, inner * 32, at + header + b * quants, r)
                at += header + n * quants

    return pack


def _pack_words(fmt: Format) -> Any:
    """words(block, first value, target, row): one block of 32 of one row, ORed into zeroed memory."""
    unsigned = compiled(fmt.unsigned)
    bits, extra = fmt.BITS, fmt.BITS - 4
    per_plane = 8 // extra if extra > 0 else 1

    @compiled
    def words(block, start, target, r):
        for j in range(8):
            for k in range(4):
                u = unsigned(block, start + 4 * j + k)
                lane = r * 4 + k
                if bits == 8:
                    write_u8(target + 64 * j + lane, np.uint8(u))
                    continue
                at = target + 64 * (j & 3) + lane
                write_u8(at, np.uint8(read_u8(at) | (u & 15) << (j >> 2 << 2)))
                if extra > 0:
                    at = target + 256 + 64 * (j // per_plane) + lane
                    write_u8(at, np.uint8(read_u8(at) | (u >> 4) << (extra * (j % per_plane))))

    return words


def _pack_scales(fmt: Format) -> Any:
    """scales(block, index inside it, chunk header, block of the chunk, row)."""
    d_at, m_at, small = fmt.D_AT, fmt.M_AT, layout.block_header(fmt)
    if fmt.SCALES == "block":

        @compiled
        def scales(block, inner, header, b, r):
            for byte in range(2):
                write_u8(header + b * small + 2 * r + byte, block[d_at + byte])
                if m_at >= 0:
                    write_u8(header + b * small + 32 + 2 * r + byte, block[m_at + byte])

    elif fmt.SCALES == "superblock":
        factor, minimum = compiled(fmt.factor), compiled(fmt.minimum)

        @compiled
        def scales(block, inner, header, b, r):
            for byte in range(2):
                write_u8(header + 2 * r + byte, block[d_at + byte])
                write_u8(header + 32 + 2 * r + byte, block[m_at + byte])
            write_u8(header + layout.SUPER_SCALES + 16 * b + r, np.uint8(factor(block, inner)))
            write_u8(header + layout.SUPER_MINIMUMS + 16 * b + r, np.uint8(minimum(block, inner)))

    else:
        factor = compiled(fmt.factor)

        @compiled
        def scales(block, inner, header, b, r):
            for byte in range(2):
                write_u8(header + 2 * r + byte, block[d_at + byte])
            for half in range(2):
                at = header + layout.HALF_FACTORS + 32 * b + 16 * half + r
                write_u8(at, np.uint8(factor(block, 2 * inner + half)))

    return scales
