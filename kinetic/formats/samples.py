"""Scales for blocks of random bytes, so that their values are finite and of a wanted size: for checks of a build.

No answer needs this. Where a format has no float16 d of its own, ``BY_NAME`` says how its scale is written.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kinetic.formats import Format

Blocks = NDArray[np.uint8]
Floats = NDArray[np.floating]


def put_scales(fmt: Format, blocks: Blocks, d: Floats, m: Floats | None = None) -> None:
    """Write d, and m where the format has it, float [n], into blocks uint8 [n, BYTES]; all else stays.

    d is rounded to what the format can say: float16, the power of two below (MXFP4), or its exponent (NVFP4).
    """
    if fmt.D_AT < 0:
        BY_NAME[fmt.NAME](blocks, d)
    else:
        put_half(blocks, fmt.D_AT, d)
    if m is not None and fmt.M_AT >= 0:
        put_half(blocks, fmt.M_AT, m)


def put_half(blocks: Blocks, at: int, values: Floats) -> None:
    """Write values [n] as float16 at byte ``at`` of each block [n, BYTES]."""
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def _iq1_m(blocks: Blocks, d: Floats) -> None:
    """A nibble of d in each of four bytes, the lowest first."""
    nibbles = d.astype("<f2").view("<u2")[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15
    blocks[:, 49::2] = blocks[:, 49::2] & 15 | (nibbles << 4).astype(np.uint8)


def _mxfp4(blocks: Blocks, d: Floats) -> None:
    """The exponent of d, whose bias is 127, as one whose bias is 128."""
    blocks[:, 0] = np.clip((d.astype(np.float32).view(np.uint32) >> 23 & 255) + 1, 0, 254)


def _nvfp4(blocks: Blocks, d: Floats) -> None:
    """The exponent of d above a mantissa that stays: four scales of a block differ."""
    exponent = np.clip((d.astype(np.float32).view(np.uint32) >> 23 & 255).astype(np.int32) - 119, 0, 14)
    blocks[:, 0:4] = blocks[:, 0:4] & 7 | (exponent << 3)[:, None].astype(np.uint8)


BY_NAME: dict[str, Callable[[Blocks, Floats], None]] = {"IQ1_M": _iq1_m, "MXFP4": _mxfp4, "NVFP4": _nvfp4}
