"""Sixteen blocks side by side: value ``j`` of block ``lane`` lies at ``16 * j + lane``.

Sums of different blocks don't depend on each other, so each is added up in its own order while
a vector instruction serves all of them.
"""

from __future__ import annotations

from kinetic.backends.cpu.quantise.memory import floats, small

LANES = 16
LONGEST = 32
"""Values of the longest block."""

lane_floats, lane_values = floats(LANES), floats(LANES * LONGEST)


@small
def load_lane(target, lane, source, length):
    """``length`` values of one block to its lane."""
    for j in range(length):
        target[j * LANES + lane] = source[j]


@small
def fill(target, value):
    for lane in range(LANES):
        target[lane] = value


@small
def copy(target, source):
    for lane in range(LANES):
        target[lane] = source[lane]
