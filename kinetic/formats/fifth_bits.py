"""The 5-bit integers that Q5_0 and Q5_1 share: 16 bytes of nibbles and a 32-bit word of fifth bits."""

import numpy as np
from numpy.typing import NDArray


def join(fifth: NDArray[np.uint8], nibbles: NDArray[np.uint8]) -> NDArray[np.int8]:
    """fifth uint8 [..., 4], nibbles uint8 [..., 16] -> int8 [..., 32], 0..31."""
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)
    high = np.unpackbits(np.ascontiguousarray(fifth), axis=-1, bitorder="little")
    return (low | (high << 4)).astype(np.int8)
