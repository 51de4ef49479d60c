"""How weights lie in memory once packed for the CPU.

Sixteen output rows form a group; SIMD lanes are rows, so no sum ever crosses
lanes. A group is one stream of chunks (256 elements along K, the last may be
shorter), read from front to back without a jump, since a processor fetches
ahead only what it can foresee. All parts begin at multiples of 64 bytes:

    once a chunk, where a scale serves 256 values:
        d and dmin float16 x 16, or d and 32 bytes of nothing
    then one line of 64 bytes of scales, and the blocks of 32 that it serves. For each of these:
        SCALES 'block' with minimums   d, m 16 bits x 16
        SCALES 'block' without         d 16 bits x 16; blocks of the file longer than 32 have one for all their values
        SCALES 'pairs'                 d 16 bits x 16, of each half
        SCALES 'superblock'            factor int8 x 16, minimum uint8 x 16 if there is one
        SCALES 'halves'                factor int8 x 16 of each half, minimum uint8 x 16 of each if there is one
    each block: words of 4 elements x 16 rows; word j holds the codes of elements 4j .. 4j+3
        8 bits      words 0-7 (512 bytes), value + 128
        4 to 6      words 0-3, with words 4-7 in the high nibbles (256 bytes), and planes of the upper bits
        1 to 3      planes alone
    planes of 64 bytes, the lower bits of codes first: of one bit, bit j is that of word j; of two bits,
    two planes, bits 2(j mod 4) are those of word j

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

PLANES: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((1, 0),),
    2: ((2, 0),),
    3: ((2, 0), (1, 2)),
    4: (),
    5: ((1, 4),),
    6: ((2, 4),),
    8: (),
}
"""Planes of each width of codes: how many bits of each word, and the place of the lowest in the code."""

NIBBLES = 256
"""Bytes of the lower four bits of a block."""


def quant_bytes(fmt: Format) -> int:
    """Bytes of one block of 32 x 16 elements, without scales."""
    planes = sum(width for width, _ in PLANES[fmt.BITS]) * LINE  # exact: integers
    return planes + NIBBLES * (2 if fmt.BITS == 8 else fmt.BITS >= 4)


def has_header(fmt: Format) -> bool:
    """Whether chunks begin with a line of scales for all their values."""
    return fmt.BLOCK == CHUNK


def chunk_header(fmt: Format) -> int:
    """Bytes at the start of each chunk."""
    return LINE if has_header(fmt) else 0


def scale_bytes(fmt: Format) -> int:
    """Bytes of scales that each block has in a line; 0 where there are no lines."""
    parts = 1 if fmt.M_AT < 0 else 2
    if fmt.SCALES == "block":
        return 0 if has_header(fmt) else 2 * GROUP * parts * BLOCK // fmt.BLOCK
    if fmt.SCALES == "pairs":
        return 4 * GROUP
    return GROUP * parts * (2 if fmt.SCALES == "halves" else 1)


def served(fmt: Format) -> int:
    """Blocks that a line of scales serves: a power of two, at most ``BLOCKS``."""
    return LINE // scale_bytes(fmt) if scale_bytes(fmt) else BLOCKS


def scale_offset(fmt: Format, number: int) -> int:
    """Where in its line block ``number`` of those it serves finds its scales."""
    if fmt.SCALES == "block":  # one entry for each block of the file
        return number * BLOCK // fmt.BLOCK * 2 * GROUP * (1 if fmt.M_AT < 0 else 2)
    return number * scale_bytes(fmt)


def chunk_bytes(fmt: Format, blocks: int) -> int:
    """Bytes of a chunk of that many blocks."""
    lines = -(-blocks // served(fmt)) if scale_bytes(fmt) else 0
    return chunk_header(fmt) + lines * LINE + blocks * quant_bytes(fmt)


def group_bytes(fmt: Format, width: int) -> int:
    """Bytes of one packed group of 16 rows of ``width`` elements."""
    if not fmt.QUANTISED:
        return width * GROUP * fmt.BYTES
    full, rest = divmod(width // BLOCK, BLOCKS)
    return full * chunk_bytes(fmt, BLOCKS) + (chunk_bytes(fmt, rest) if rest else 0)
