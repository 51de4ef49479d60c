"""How weights lie in memory once packed for the CPU.

Sixteen output rows form a group; SIMD lanes are rows, so no sum ever crosses
lanes. A group is one stream of chunks (256 elements along K, the last may be
shorter), read from front to back without a jump, since a processor fetches
ahead only what it can foresee. All parts begin at multiples of 64 bytes:

    SCALES 'superblock'  d, dmin float16 x 16, once a chunk
    SCALES 'halves'      d float16 x 16 and 32 bytes of nothing, once a chunk
    then one line of 64 bytes, and the block of 32 or the two blocks that it serves:
        SCALES 'block' with minimums   d, m float16 x 16                  one block
        SCALES 'block' without         d float16 x 16                     two blocks
        SCALES 'superblock'            scale, minimum uint8 x 16          two blocks
        SCALES 'halves'                factor int8 x 16 of each half      two blocks
    each block: words of 4 elements x 16 rows; word j holds elements 4j .. 4j+3
        4 bits   words 0-3, with words 4-7 in the high nibbles (256 bytes)
        5 bits   and 64 bytes whose bit j is the fifth bit of word j
        6 bits   and 2 x 64 bytes whose bits 2(j mod 4) are the upper two of word j
        8 bits   words 0-7 (512 bytes), value + 128

Float formats: for each k the 16 rows' values, as stored in the file.
"""

from __future__ import annotations

from kinetic.backends.base import BLOCK, CHUNK
from kinetic.formats import Format

GROUP = 16
"""Output rows of one tile."""

TILE = 16
"""Most batch rows of one tile."""

BLOCKS = CHUNK // BLOCK

LINE = 64
"""Bytes of a cache line, and of the scales before a block or two."""

_QUANTS = {4: 256, 5: 320, 6: 384, 8: 512}


def quant_bytes(fmt: Format) -> int:
    """Bytes of one block of 32 x 16 elements, without scales."""
    return _QUANTS[fmt.BITS]


def chunk_header(fmt: Format) -> int:
    """Bytes at the start of each chunk."""
    return 0 if fmt.SCALES == "block" else LINE


def scale_bytes(fmt: Format) -> int:
    """Bytes of scales that each block has in a line: a whole one, or half."""
    return LINE if fmt.SCALES == "block" and fmt.M_AT >= 0 else LINE // 2


def chunk_bytes(fmt: Format, blocks: int) -> int:
    """Bytes of a chunk of that many blocks."""
    lines = (blocks * scale_bytes(fmt) + LINE - 1) // LINE
    return chunk_header(fmt) + lines * LINE + blocks * quant_bytes(fmt)


def group_bytes(fmt: Format, width: int) -> int:
    """Bytes of one packed group of 16 rows of ``width`` elements."""
    if not fmt.QUANTISED:
        return width * GROUP * fmt.BYTES
    full, rest = divmod(width // BLOCK, BLOCKS)
    return full * chunk_bytes(fmt, BLOCKS) + (chunk_bytes(fmt, rest) if rest else 0)
