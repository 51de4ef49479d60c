"""Q6_K: 256 values in 16 blocks, each with an 8-bit scale, and one float16 for all scales."""

from __future__ import annotations

import numpy as np

from kinetic.backends.cpu.quantise.lanes import LANES, lane_floats, lane_values, load_lane
from kinetic.backends.cpu.quantise.memory import bytes_, bytes_at, floats_at, kernel, small
from kinetic.backends.cpu.quantise.numbers import ONE, ZERO, float_of_half, nearest, put_half, within
from kinetic.backends.cpu.quantise.scale_search import TINY, level, search_scale
from kinetic.backends.cpu.quantise.weights import squares

SUPER, BLOCK, BYTES, TOP = 256, 16, 210, 32
HIGH_AT, SCALES_AT, D_AT = 128, 192, 208

quants = bytes_(SUPER)


@kernel
def q6_k(source, importance, target, rows, width, tables):
    x, w, q = lane_values(), lane_values(), quants()
    scale, chosen = lane_floats(), lane_floats()
    for block in range(rows * width // SUPER):
        v, y = floats_at(source + block * SUPER * 4), bytes_at(target + block * BYTES)
        for lane in range(LANES):
            load_lane(x, lane, floats_at(source + (block * SUPER + lane * BLOCK) * 4), BLOCK)
        if importance == 0:
            squares(x, w, BLOCK)
        else:
            for lane in range(LANES):
                load_lane(w, lane, floats_at(importance + (block * SUPER % width + lane * BLOCK) * 4), BLOCK)
        search_scale(x, w, BLOCK, TOP, scale, chosen)
        _write(v, y, q, scale, chosen)


@small
def _write(v, y, q, scale, chosen):
    most, size = ZERO, ZERO
    for lane in range(LANES):
        is_larger = abs(scale[lane]) > size
        most = scale[lane] if is_larger else most
        size = abs(scale[lane]) if is_larger else size
    if size < TINY:
        for j in range(BYTES):
            y[j] = np.uint8(0)
        return
    inverse = np.float32(-128) / most
    d = float_of_half(put_half(y, D_AT, ONE / inverse))
    for lane in range(LANES):
        factor = within(np.int32(-128), nearest(inverse * scale[lane]), np.int32(127))
        y[SCALES_AT + lane] = np.uint8(factor & np.int32(255))
        _levels(v, q, lane * BLOCK, d * np.float32(factor), chosen[lane])
    for half in range(2):
        for j in range(32):
            at = 128 * half + j
            a, b, c, e = q[at], q[at + 32], q[at + 64], q[at + 96]
            y[64 * half + j] = np.uint8((a & 15) | (c & 15) << 4)
            y[64 * half + 32 + j] = np.uint8((b & 15) | (e & 15) << 4)
            y[HIGH_AT + 32 * half + j] = np.uint8((a >> 4) | (b >> 4) << 2 | (c >> 4) << 4 | (e >> 4) << 6)


@small
def _levels(v, q, at, d, chosen):
    """Levels of a block: of its scale, or of the search if that became zero."""
    if d != ZERO:
        for j in range(BLOCK):
            q[at + j] = np.uint8(within(np.int32(-TOP), nearest(v[at + j] / d), np.int32(TOP - 1)) + TOP)
    elif chosen != ZERO:
        for j in range(BLOCK):
            q[at + j] = np.uint8(np.int32(level(v[at + j], chosen, TOP)) + TOP)
    else:
        for j in range(BLOCK):
            q[at + j] = np.uint8(0)


KERNELS = {14: q6_k}
