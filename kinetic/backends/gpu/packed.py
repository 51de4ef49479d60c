"""How weights lie on a device once packed: the 32 lanes that own neighbouring outputs read them without a gap.

32 outputs form a tile, 256 elements of each a chunk; the chunks of a tile follow one another, then comes the next tile.
What is missing of the last tile and of the last chunk is zeros. In a chunk (``CELL`` bytes) these parts follow one
another, those that the format has; every line below stands for 32 lanes, an output each:

    WIDE_AT     codes of 8 bits: two words of 16 bytes a block of 32, elements in order, as int8
    NIBBLES_AT  the lower 4 bits of others: a word of 16 bytes a block, elements 0-15 in the low nibbles, 16-31 above
    TWO_AT      two further bits: a word of 8 bytes a block; element 16 h + 4 j + k has bits 2 j of byte 4 h + k
    ONE_AT      one further bit: a word of 4 bytes a block; element 4 j + k has bit j of byte k
    SCALES_AT   words of 4 bytes of: d (16 bits each), m or dmin, factors of blocks or halves (8 bits), theirs of dmin

All of it follows from what a format says of itself (``formats.Format``); its rules for factors of superblocks are given
the bytes of all blocks at once, as int32 [BYTES, ...]. Float formats have words of 16 bytes, elements in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import BLOCK, CHUNK
from kinetic.formats import Format, Integers

TILE = 32
BLOCKS = CHUNK // BLOCK
HALVES = 2 * BLOCKS

MOST_GROWTH = 5 / 3
"""Formats whose codes would take more than that times their bytes in the file stay as they are there."""

Bytes = NDArray[np.uint8]


def is_packed(fmt: Format, width: int) -> bool:
    """Whether matrices of that format and that many columns are packed."""
    if not fmt.QUANTISED:
        return width % BLOCK == 0
    return sum(_parts(fmt).values()) <= MOST_GROWTH * (CHUNK // fmt.BLOCK * fmt.BYTES)  # exact: integers


def packed_bytes(fmt: Format, outputs: int, width: int) -> int:
    return -(-outputs // TILE) * -(-width // CHUNK) * cell_bytes(fmt)


def cell_bytes(fmt: Format) -> int:
    """Of a chunk of all outputs of a tile."""
    return TILE * (sum(_parts(fmt).values()) if fmt.QUANTISED else CHUNK * fmt.BYTES)  # exact: integers


def macros(fmt: Format) -> dict[str, str]:
    """What kernels/packed.h must know of a quantised format."""
    at, defined = 0, {}
    for name, size in _parts(fmt).items():
        if size:
            defined[name], at = str(at), at + TILE * size
    upper = _upper(fmt)
    numbers, factors = _scale_counts(fmt)
    minimums = fmt.M_AT >= 0
    after = 2 * numbers * (1 + minimums)
    told = {
        "CELL": str(at),
        "VALUES": str(fmt.BLOCK),
        "UNIT": f"{fmt.UNIT}f",
        "TWO_PLACE": str(fmt.BITS - upper),
        "ONE_PLACE": str(fmt.BITS - 1),
    }
    if factors:
        told["FACTORS_AT"] = str(after)
    if factors and minimums:
        told["MINIMUMS_AT"] = str(after + factors)
    if fmt.SCALE_TYPE == "bf16":
        told["BF16_SCALES"] = ""
    return defined | told | _codes(fmt)


def _codes(fmt: Format) -> dict[str, str]:
    """How integers are made of codes."""
    if fmt.BITS == 8:
        return {}
    table = fmt.TABLE or tuple(range(-fmt.ZERO, (1 << fmt.BITS) - fmt.ZERO))
    spacing = table[1] - table[0]
    if table == tuple(range(table[0], table[0] + len(table) * spacing, spacing or 1)):
        return {"SPACING": str(spacing), "ZERO": str(-table[0])} if (spacing, table[0]) != (1, 0) else {}
    words = np.array([*table, *[0] * (16 - len(table))], np.int8).view("<u4")
    return {"LEVELS": ", ".join(f"0x{word:08X}u" for word in words)}


def _upper(fmt: Format) -> int:
    """Bits of a code that are in no nibble."""
    return 0 if fmt.BITS == 8 else fmt.BITS - 4 if fmt.BITS >= 4 else fmt.BITS


def _parts(fmt: Format) -> dict[str, int]:
    """Bytes that a chunk of one output has of each part."""
    upper = _upper(fmt)
    numbers, factors = _scale_counts(fmt)
    scales = (2 * numbers + factors) * (2 if fmt.M_AT >= 0 else 1)
    return {
        "WIDE_AT": CHUNK if fmt.BITS == 8 else 0,
        "NIBBLES_AT": CHUNK // 2 if 4 <= fmt.BITS < 8 else 0,
        "TWO_AT": CHUNK // 4 if upper & 2 else 0,
        "ONE_AT": CHUNK // 8 if upper & 1 else 0,
        "SCALES_AT": -(-scales // 4) * 4,
    }


def _scale_counts(fmt: Format) -> tuple[int, int]:
    """Numbers d and factors of a chunk; where there are minimums there are as many of theirs."""
    return HALVES if fmt.SCALES == "pairs" else CHUNK // fmt.BLOCK, {"superblock": BLOCKS, "halves": HALVES}.get(
        fmt.SCALES, 0
    )


# ---- packing


def pack(fmt: Format, raw: Bytes) -> Bytes:
    """raw uint8 [n, row bytes] as it lies in a file -> uint8 [bytes]: as many tiles as n rows need."""
    missing = -len(raw) % TILE
    if missing:
        raw = np.concatenate([raw, np.zeros((missing, raw.shape[1]), np.uint8)])
    if not fmt.QUANTISED:
        words = _filled(raw, CHUNK * fmt.BYTES).reshape(len(raw) // TILE, TILE, -1, CHUNK * fmt.BYTES // 16, 16)
        return np.ascontiguousarray(words.transpose(0, 2, 3, 1, 4)).reshape(-1)
    integers = fmt.integers(raw)
    codes = _filled(_unsigned(fmt, integers.q), CHUNK).reshape(len(raw), -1, BLOCKS, BLOCK)
    parts = [*_planes(fmt, codes), _scales(fmt, raw, integers, codes.shape[1])]
    return np.concatenate([_side_by_side(part) for part in parts], axis=2).reshape(-1)


def _filled(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """Rows [n, width] with zeros up to a multiple of ``size``."""
    missing = -rows.shape[1] % size
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def _side_by_side(part: Bytes) -> Bytes:
    """uint8 [n, chunks, words, bytes of a word] -> [tiles, chunks, bytes of the part]: lanes next to each other."""
    n, chunks, words, size = part.shape
    tiles = part.reshape(n // TILE, TILE, chunks, words, size).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(tiles).reshape(n // TILE, chunks, -1)


def _unsigned(fmt: Format, q: NDArray[np.int8]) -> Bytes:
    """Codes of integers, in their lower bits. Those of 8 bits are the integers themselves."""
    if fmt.BITS == 8:
        return q.view(np.uint8)
    if fmt.TABLE is None:
        return q.view(np.uint8) + np.uint8(fmt.ZERO)
    codes = np.zeros(256, np.uint8)
    codes[np.array(fmt.TABLE, np.int8).view(np.uint8)] = np.arange(len(fmt.TABLE))
    return codes[q.view(np.uint8)]


def _planes(fmt: Format, codes: Bytes) -> list[Bytes]:
    """codes uint8 [n, chunks, 8, 32] -> parts uint8 [n, chunks, words, bytes of a word]."""
    n, chunks = codes.shape[:2]
    if fmt.BITS == 8:
        return [codes.reshape(n, chunks, -1, 16)]
    upper, planes = _upper(fmt), list[Bytes]()
    if fmt.BITS >= 4:
        planes.append((codes[..., :16] & np.uint8(15)) | codes[..., 16:] << np.uint8(4))
    if upper & 2:
        two = (codes >> np.uint8(fmt.BITS - upper) & np.uint8(3)).reshape(n, chunks, BLOCKS, 2, 4, 4)
        planes.append(_merged(two, 4, 2).reshape(n, chunks, BLOCKS, 8))
    if upper & 1:
        one = (codes >> np.uint8(fmt.BITS - 1) & np.uint8(1)).reshape(n, chunks, BLOCKS, 8, 4)
        planes.append(_merged(one, 3, 1))
    return planes


def _merged(bits: Bytes, axis: int, width: int) -> Bytes:
    """Bits of ``width`` along ``axis`` in one byte, the first ones lowest."""
    merged = np.take(bits, 0, axis)
    for j in range(1, bits.shape[axis]):
        merged |= np.take(bits, j, axis) << np.uint8(width * j)
    return merged


def _scales(fmt: Format, raw: Bytes, integers: Integers, chunks: int) -> Bytes:
    """uint8 [n, chunks, words, 4]."""
    n = len(raw)
    blocks = raw.reshape(n, -1, fmt.BYTES)
    numbers, factors = _scale_counts(fmt)
    parts = (
        [blocks[..., at : at + 2] for at in (fmt.D_AT, fmt.M_AT) if at >= 0]
        if fmt.D_AT >= 0
        else [_made(fmt, integers)]
    )
    found = [_filled(np.ascontiguousarray(part).reshape(n, -1), 2 * numbers) for part in parts]
    if factors:
        found += [part.view(np.uint8).reshape(n, -1) for part in _factors(fmt, blocks, integers)]
    whole = np.concatenate([part.reshape(n, chunks, -1) for part in found], axis=2)
    return np.pad(whole, ((0, 0), (0, 0), (0, -whole.shape[2] % 4))).reshape(n, chunks, -1, 4)


def _made(fmt: Format, integers: Integers) -> Bytes:
    """The 16 bits of scales that no format has stored so, from their values: exact."""
    scale = np.ascontiguousarray(integers.scale / np.float32(fmt.UNIT))
    if fmt.SCALE_TYPE == "bf16":
        return np.ascontiguousarray((scale.view(np.uint32) >> 16).astype("<u2")).view(np.uint8)
    return scale.astype("<f2").view(np.uint8)


def _factors(fmt: Format, blocks: Bytes, integers: Integers) -> list[NDArray[Any]]:
    """Of superblocks: factors of blocks, or of halves, then those of minimums; bytes [n, K / 32 or 16]."""
    if fmt.SCALES == "halves":
        return [np.ascontiguousarray(part) for part in (integers.sub, integers.sub_minimum) if part is not None]
    bytes_of: Any = np.moveaxis(
        blocks.astype(np.int32), -1, 0
    )  # so that a format's rule for one block reads all of them
    rules = [fmt.factor] + ([fmt.minimum] if fmt.M_AT >= 0 else [])
    made: list[Any] = [np.array([rule(bytes_of, b) for b in range(BLOCKS)]) for rule in rules]
    return [np.ascontiguousarray(np.moveaxis(part, 0, -1).astype(np.uint8)) for part in made]
