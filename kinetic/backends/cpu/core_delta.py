"""Gated DeltaNet, and a gate of one column, in Numba. Imported only by the build process.

A unit of ``delta`` is one or two groups of 16 value elements of one head of one sequence: their part of the state lies
together, and stays in the first level of caches while all rows of the sequence pass by.
"""

from __future__ import annotations

from kinetic.backends.cpu.compiled import kernel, rows_of, share
from kinetic.backends.cpu.core_recurrent import activate_elements, row_of, sequence_count, sequence_rows, state_of
from kinetic.backends.cpu.emitted import extern, field, read_f32

scale_row = extern("scale_row", "aaaf")
activate_row_sigmoid = extern("activate_row_sigmoid", "aaa")
l2_row = extern("l2_row", "aaaff")
decay_row = extern("decay_row", "aaaaa")
delta_row_1 = extern("delta_row_1", "aaaaaaff")
delta_row_2 = extern("delta_row_2", "aaaaaaff")

GROUP_BYTES = 64
"""Of 16 value elements."""


@kernel
def gated_column(p, i, thread, threads, scratch):
    """2 gate, 3 its row bytes, 4 up, 5 out, 6 row bytes, 7 width, 8 activation."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 6)
        activate_elements(field(i, 2) + t * field(i, 3), scratch, 1, field(i, 8))
        scale_row(field(i, 4) + at, field(i, 5) + at, field(i, 7), read_f32(scratch))


@kernel
def l2_norm(p, i, thread, threads):
    """2 x, 3 out, 4 row bytes, 5 heads, 6 width, 7 address of eps, 8 address of the factor."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        for g in range(field(i, 5)):
            at = t * field(i, 4) + g * field(i, 6) * 4
            l2_row(field(i, 2) + at, field(i, 3) + at, field(i, 6), read_f32(field(i, 7)), read_f32(field(i, 8)))


@kernel
def decay(p, i, thread, threads):
    """2 gate, 3 beta, 4 what is kept, 5 what is learned, 6 row bytes, 7 heads, 8 a, 9 bias."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 6)
        decay_row(field(i, 2) + at, field(i, 8), field(i, 9), field(i, 4) + at, field(i, 7))
        activate_row_sigmoid(field(i, 3) + at, field(i, 5) + at, field(i, 7))


@kernel
def delta_unit(p, i, s, h, group, count):
    """Groups ``group`` and, if ``count`` is 2, the next one of head h: all rows of sequence s."""
    width = field(i, 13)
    state = state_of(p, s, field(i, 14)) + (h * width + group * 16) * width * 4
    keys, values, gates = h % field(i, 12) * width * 4, h * width * 4 + group * GROUP_BYTES, h * 4
    for n in range(sequence_rows(p, s)):
        t = row_of(p, s, n)
        q, k = field(i, 2) + t * field(i, 4) + keys, field(i, 3) + t * field(i, 4) + keys
        v, out = field(i, 5) + t * field(i, 7) + values, field(i, 6) + t * field(i, 7) + values
        kept = read_f32(field(i, 8) + t * field(i, 10) + gates)
        learned = read_f32(field(i, 9) + t * field(i, 10) + gates)
        if count == 2:
            delta_row_2(state, q, k, v, out, width, kept, learned)
        else:
            delta_row_1(state, q, k, v, out, width, kept, learned)


@kernel
def delta(p, i, thread, threads):
    """2 q, 3 k, 4 row bytes of both, 5 v, 6 out, 7 row bytes of both, 8 what is kept, 9 what is learned, 10 row bytes
    of both, 11 heads, 12 key heads, 13 width, 14 offset of the state."""
    heads, groups = field(i, 11), field(i, 13) // 16
    pairs = (groups + 1) // 2
    low, high = share(sequence_count(p) * heads * pairs, thread, threads)
    for unit in range(low, high):
        group = unit % pairs * 2
        head = unit // pairs
        delta_unit(p, i, head // heads, head % heads, group, min(2, groups - group))
