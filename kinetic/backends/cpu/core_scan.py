"""The selective scan on the tape, in Numba. Imported only by the build process."""

from __future__ import annotations

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import kernel, share
from kinetic.backends.cpu.core_recurrent import sequence_count, sequence_rows, state_of
from kinetic.backends.cpu.emitted import extern, field, read_i64

scan_steps = extern("scan_steps", "aaaaaaa")
scan_block = extern("scan_block", "aaaaaaaaaaaaa")

LANES = 16

STEPS = 512
"""Rows whose steps are in scratch at once, 8 bytes each. A pass that may not be cut has more of them."""


@kernel
def scan_rows(p, i, s, head, order, rows, scratch):
    """Rows of sequence s from ``order`` on, 16 elements of the head at a time: so much of the state stays near."""
    heads, width, size, group = field(i, 8), field(i, 9), field(i, 11), head // field(i, 10)
    dt = field(i, 4) + 4 * head
    scan_steps(dt, field(i, 5), order, rows, field(i, 14) + 4 * head, field(i, 12) + 4 * head, scratch)
    blocks, d = (width + LANES - 1) // LANES, field(i, 13) + 4 * head
    state = state_of(p, s, field(i, 15)) + head * blocks * size * LANES * 4
    to_b = 4 * (heads * width + group * size)
    to_c = to_b + 4 * (heads // field(i, 10)) * size
    for k in range(blocks):
        first = head * width + k * LANES
        count = min(LANES, width - k * LANES)
        x, out = field(i, 2) + 4 * first, field(i, 6) + 4 * first
        here, skip = state + k * size * LANES * 4, 4 * first
        scan_block(
            x, to_b - skip, to_c - skip, field(i, 3), order, rows, scratch, here, size, d, out, field(i, 7), count
        )


@kernel
def scan_head(p, i, s, head, scratch):
    """All rows of sequence s."""
    order, rows = field(p, tape.ORDER) + 8 * read_i64(field(p, tape.SEQUENCES) + 24 * s), sequence_rows(p, s)
    for n in range(0, rows, STEPS):
        scan_rows(p, i, s, head, order + 8 * n, min(STEPS, rows - n), scratch)


@kernel
def scan(p, i, thread, threads, scratch):
    """2 x, B and C, 3 row bytes, 4 dt, 5 its row bytes, 6 out, 7 its row bytes, 8 heads, 9 head width, 10 heads of a
    group, 11 elements of state, 12 a, 13 d, 14 bias of dt, 15 offset of the state."""
    heads = field(i, 8)
    low, high = share(sequence_count(p) * heads, thread, threads)
    for unit in range(low, high):
        scan_head(p, i, unit // heads, unit % heads, scratch)
