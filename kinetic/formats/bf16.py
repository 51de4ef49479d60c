"""BF16: the upper half of a binary32, little-endian, 2 bytes a value."""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, bf16_to_f32

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "BF16", 30, 1, 2, False


def decode(raw: NDArray[np.uint8]) -> F32:
    return bf16_to_f32(raw)
