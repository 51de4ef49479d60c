"""F32: little-endian IEEE binary32, 4 bytes a value."""

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32

NAME, TYPE_ID, BLOCK, BYTES, QUANTISED = "F32", 0, 1, 4, False


def decode(raw: NDArray[np.uint8]) -> F32:
    return np.ascontiguousarray(raw).view("<f4")
