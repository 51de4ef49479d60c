"""How weights lie in memory once packed for the CPU.

Sixteen output rows form a group; SIMD lanes are rows, so no sum ever crosses
lanes. A group is one stream of chunks (256 elements along K, the last may be
shorter), each a header with the scales followed by the blocks of 32:

    header of SCALES 'block'       for each block: d float16 x 16, then m float16 x 16 if the format has minimums
    header of SCALES 'superblock'  d, dmin float16 x 16; scale uint8 x 16 for each block; minimum uint8 x 16 for each
    header of SCALES 'halves'      d float16 x 16; factor int8 x 16 for each half block
    padding to 64 bytes
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

SUPER_SCALES, SUPER_MINIMUMS, HALF_FACTORS = 64, 64 + 16 * BLOCKS, 32
_QUANTS = {4: 256, 5: 320, 6: 384, 8: 512}


def quant_bytes(fmt: Format) -> int:
    """Bytes of one block of 32 x 16 elements, without scales."""
    return _QUANTS[fmt.BITS]


def block_header(fmt: Format) -> int:
    """Header bytes that each block adds (SCALES 'block' only)."""
    return 32 if fmt.M_AT < 0 else 64


def header_bytes(fmt: Format, blocks: int) -> int:
    """Bytes of the header of a chunk with that many blocks."""
    if fmt.SCALES == "block":
        return (blocks * block_header(fmt) + 63) // 64 * 64
    return 320


def group_bytes(fmt: Format, width: int) -> int:
    """Bytes of one packed group of 16 rows of ``width`` elements."""
    if not fmt.QUANTISED:
        return width * GROUP * fmt.BYTES
    full, rest = divmod(width // BLOCK, BLOCKS)
    size = full * (header_bytes(fmt, BLOCKS) + BLOCKS * quant_bytes(fmt))
    return size + (header_bytes(fmt, rest) + rest * quant_bytes(fmt) if rest else 0)
