"""Q8_0: 32 values with one scale, the largest magnitude over 127."""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats, floats_at, kernel, load
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, largest_magnitude, put_half, rounded

BLOCK, BYTES = 32, 34
LARGEST = np.float32(127)

values, quants = floats(BLOCK), bytes_(BLOCK)


@kernel
def q8_0(source, importance, target, rows, width, tables):
    x, q = values(), quants()
    for block in range(rows * width // BLOCK):
        load(x, floats_at(source + block * BLOCK * 4), BLOCK)
        y = bytes_at(target + block * BYTES)
        d = largest_magnitude(x, BLOCK) / LARGEST
        inverse = ONE / d if d != ZERO else ZERO
        put_half(y, 0, d)
        for j in range(BLOCK):
            q[j] = np.uint8(rounded(x[j] * inverse) & np.int32(255))
        for j in range(BLOCK):
            y[2 + j] = q[j]


KERNELS = {8: q8_0}
