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
    block_bytes, per_block = fmt.BYTES, fmt.BLOCK // BLOCK
    quants, words = layout.quant_bytes(fmt), _pack_words(fmt)
    header, line, served = layout.chunk_header(fmt), layout.LINE, layout.served(fmt)
    line_bytes = line if layout.scale_bytes(fmt) else 0
    offsets = np.array([layout.scale_offset(fmt, number) for number in range(served)], np.int64)
    whole, scales = layout.chunk_bytes(fmt, layout.BLOCKS), _pack_scales(fmt)

    @compiled
    def pack(source, row_bytes, rows, width, target, first, last):
        blocks = width // 32
        rest = blocks % 8
        group = blocks // 8 * whole
        if rest != 0:
            group += header + (rest + served - 1) // served * line_bytes + rest * quants
        for g in range(first, last):
            chunk = target + g * group
            for start in range(0, blocks, 8):
                for r in range(min(16, rows - g * 16)):
                    row = source + (g * 16 + r) * row_bytes
                    for b in range(min(8, blocks - start)):
                        block = bytes_at(row + (start + b) // per_block * block_bytes)
                        inner = (start + b) % per_block
                        own = chunk + header + b // served * (line_bytes + served * quants)
                        scales(block, inner, chunk, own + offsets[b % served], r)
                        words(block, inner * 32, own + line_bytes + b % served * quants, r)
                chunk += whole

    return pack


def _pack_words(fmt: Format) -> Any:
    """words(block, first value, target, row): the codes of one block of 32 of one row, four elements a store."""
    unsigned = compiled(fmt.unsigned)
    bits = fmt.BITS
    has_nibbles = 4 <= bits < 8
    planes = layout.PLANES[bits]
    shape = np.array(planes or [(0, 0)], np.int64)
    count = len(planes)
    start_of_planes = layout.NIBBLES if has_nibbles else 0

    @compiled
    def code_word(block, first, low, mask):
        """Bits ``low`` and up of four codes, each in its byte."""
        word = np.uint32(0)
        for k in range(4):
            word |= ((np.uint32(unsigned(block, first + k)) >> np.uint32(low)) & np.uint32(mask)) << np.uint32(8 * k)
        return word

    @compiled
    def words(block, start, target, r):
        if bits == 8:
            for j in range(8):
                write_i32(target + 64 * j + 4 * r, np.int32(code_word(block, start + 4 * j, 0, 255)))
        if has_nibbles:
            for j in range(4):
                low = code_word(block, start + 4 * j, 0, 15)
                high = code_word(block, start + 16 + 4 * j, 0, 15)
                write_i32(target + 64 * j + 4 * r, np.int32(low | high << np.uint32(4)))
        place = target + start_of_planes
        for p in range(count):
            width, low_bit = shape[p, 0], shape[p, 1]
            per_plane = 8 // width
            for plane in range(width):
                word = np.uint32(0)
                for j in range(per_plane):
                    first = start + 4 * (plane * per_plane + j)
                    word |= code_word(block, first, low_bit, (1 << width) - 1) << np.uint32(width * j)
                write_i32(place + 4 * r, np.int32(word))
                place += 64

    return words


def _pack_scales(fmt: Format) -> Any:
    """scales(block, index of the 32 values inside it, chunk, the block's place in its line, row)."""
    parts = 2 if fmt.SCALES == "halves" else 1
    has_factors = fmt.SCALES in ("superblock", "halves")
    has_minimum = fmt.M_AT >= 0
    factor = compiled(fmt.factor) if has_factors else NO_FACTOR
    minimum = compiled(fmt.minimum) if has_factors and has_minimum else NO_FACTOR
    in_header, large = layout.has_header(fmt), _large_scales(fmt)

    @compiled
    def scales(block, inner, chunk, own, r):
        large(block, inner, (chunk if in_header else own) + 2 * r)
        if has_factors:
            for part in range(parts):
                write_u8(own + 16 * part + r, np.uint8(factor(block, parts * inner + part)))
                if has_minimum:
                    write_u8(own + 16 * (parts + part) + r, np.uint8(minimum(block, parts * inner + part)))

    return scales


@compiled
def NO_FACTOR(block, i):
    return np.uint8(0)


def _large_scales(fmt: Format) -> Any:
    """large(block, index of the 32 values inside it, where to write): scales of 16 bits."""
    return _stored_scales(fmt) if fmt.D_AT >= 0 else _made_scales(fmt)


def _stored_scales(fmt: Format) -> Any:
    d_at, m_at = fmt.D_AT, fmt.M_AT

    @compiled
    def large(block, inner, at):
        for byte in range(2):
            write_u8(at + byte, block[d_at + byte])
            if m_at >= 0:
                write_u8(at + 32 + byte, block[m_at + byte])

    return large


def _made_scales(fmt: Format) -> Any:
    scale_bits = compiled(fmt.scale_bits)
    count = 2 if fmt.SCALES == "pairs" else 1

    @compiled
    def large(block, inner, at):
        for part in range(count):
            bits = np.uint32(scale_bits(block, inner * count + part if count == 2 else 0))
            write_u8(at + 32 * part, np.uint8(bits & np.uint32(255)))
            write_u8(at + 32 * part + 1, np.uint8(bits >> np.uint32(8)))

    return large
