"""Integers of 4 bits that are places in a table, and the two tables that formats use.

Sixteen bytes hold 32 of them: low nibbles are the first half, high nibbles the second; eight bytes hold 16.
"""

import numpy as np
from numpy.typing import NDArray

LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""IQ4_NL and IQ4_XS: dense near 0, where weights are."""

FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""MXFP4 and NVFP4: twice the values of E2M1 (OCP Microscaling Formats 1.0, section 5.3.3); -0 is 0."""


def look_up(table: tuple[int, ...], nibbles: NDArray[np.uint8], width: int) -> NDArray[np.int8]:
    """nibbles uint8 [N, bytes], in runs of ``width`` bytes -> int8 [N, 2 * bytes] of the table."""
    runs = nibbles.reshape(len(nibbles), -1, 1, width)
    codes = np.concatenate([runs & 15, runs >> 4], axis=2)
    return np.array(table, np.int8)[codes].reshape(len(nibbles), -1)
