"""F16: little-endian IEEE binary16, 2 bytes a value."""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32, f16_to_f32

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "F16", 1, 1, 2, False


def decode(raw: NDArray[np.uint8]) -> F32:
    return f16_to_f32(raw)
