"""The order of 2-bit numbers in Q2_K, Q3_K and TQ2_0: value 128 h + 32 j + i is bits 2j, 2j + 1 of byte 32 h + i."""

import numpy as np
from numpy.typing import NDArray


def spread(stored: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """stored uint8 [N, S, 64] -> uint8 [N, S, 256], 0..3."""
    runs = stored.reshape(*stored.shape[:2], 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return runs.astype(np.uint8).reshape(*stored.shape[:2], 256)
