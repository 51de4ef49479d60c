"""The output layer where only the best logits are wanted, in Numba. Imported only by the build process.

Two instructions with a barrier between them: ``output`` finds what each group of 16 rows can reach at most, ``exact``
computes the groups that can still hold one of the best. docs/adr/0013 proves that none is missed.
"""

from __future__ import annotations

import numpy as np
from numba import types as nt

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import inline, kernel
from kinetic.backends.cpu.core_candidates import candidates
from kinetic.backends.cpu.emitted import extern, field, pointer_call, read_f32, read_i32, read_i64, write_f32, write_i64

matmul = extern("matmul", "aaaaa")
finish_tile = extern("finish_tile", "aaaaa")
copy_row = extern("copy_row", "aaa")
bound_limits = extern("bound_limits", "aaa")
bound_group = extern("bound_group", "aaa", "a")
bound_two = extern("bound_two", "aaaaaaa")
rest_group = extern("rest_group", "aaaa")
one_call, two_call = pointer_call(4), pointer_call(5)

SECOND = 2048
"""``tiles.SECOND``."""

NOTHING = np.float32(-np.inf)


@kernel
def shrink(weights, group_bytes, blocks, out, out_bytes, first, last, bad):
    """The copy of groups ``first`` .. ``last`` - 1; at ``bad`` 1 if a scale is below 0."""
    for g in range(first, last):
        if bound_group(weights + g * group_bytes, blocks, out + g * out_bytes) != 0:
            write_i64(bad, 1)


@kernel
def leave_rest(weights, group_bytes, blocks, copy, copy_bytes, out, out_bytes, first, last):
    """What is left of groups ``first`` .. ``last`` - 1 beside the copy."""
    for g in range(first, last):
        rest_group(weights + g * group_bytes, blocks, copy + g * copy_bytes, out + g * out_bytes)


@inline
def records_of(p, i, thread):
    """The records of the one row; of a pass of one row each thread has its own."""
    return field(i, 9) + (thread * field(i, 15) if field(p, tape.MODE) & tape.ONE_ROW != 0 else 0)


@kernel
def output(p, i, thread, threads, scratch):
    """Fields of ``matmul``; 16 address of what ``shortlist`` writes: 0 copy, 1 bytes of its groups, 2 bounds of groups,
    3 memory of threads, 4 bytes of each, 5 groups to begin with, 6 rows of the matrix, 7 a line of -inf."""
    if field(p, tape.BEST) == 0:
        matmul(p, i, thread, threads, scratch)
        return
    what, x, limits = field(i, 16), records_of(p, i, thread), scratch
    copy, size, bounds, blocks = field(what, 0), field(what, 1), field(what, 2), field(i, 8)
    bound_limits(x, blocks, limits)
    low = field(i, 7) * thread // threads
    high = field(i, 7) * (thread + 1) // threads
    half = (high - low + 1) // 2
    for k in range(half):
        g = low + k
        other = g + half if g + half < high else g
        bound_two(copy + g * size, copy + other * size, x, limits, blocks, bounds + 4 * g, bounds + 4 * other)


@kernel
def threshold(p, i, x, own, at):
    """At ``at`` the ``BEST``-th best logit of the groups with the largest bounds, or -inf if that can't be told."""
    what, groups, best = field(i, 16), field(i, 7), field(p, tape.BEST)
    write_f32(at, NOTHING)
    floor, out, ids = own, own + 16, own + 64
    values = ids + 4 * field(what, 5)
    tiles = ids + 8 * field(what, 5)
    write_f32(floor, -NOTHING)
    candidates(field(what, 2), groups, field(what, 5), floor, ids, values, out)
    if read_i64(out + 8) != 0:  # a logit may be NaN or +inf: the plain way will say so
        return
    count = read_i64(out)
    for n in range(count):
        g = nt.int64(read_i32(ids + 4 * n))
        tile = tiles + 64 * n
        one_call(field(i, 2), field(i, 5) + g * field(i, 6), x, field(i, 8), tile)
        for r in range(field(what, 6) - 16 * g, 16):
            write_f32(tile + 4 * r, NOTHING)
    candidates(tiles, 16 * count, best, floor, ids, values, out)
    if read_i64(out + 8) == 0 and read_i64(out) == best:
        write_f32(at, read_f32(values + 4 * (best - 1)))


@kernel
def exact(p, i, thread, threads, scratch):
    """Fields of ``output``. Logits of groups that can't hold one of the best become -inf."""
    if field(p, tape.BEST) == 0:
        return
    what, x, groups, weights = field(i, 16), records_of(p, i, thread), field(i, 7), field(i, 5)
    own = field(what, 3) + thread * field(what, 4)
    threshold(p, i, x, own, own + 8)
    lowest, bounds = read_f32(own + 8), field(what, 2)
    low = groups * thread // threads
    high = groups * (thread + 1) // threads
    waiting = nt.int64(-1)
    count = 0
    for g in range(low, high):
        if read_f32(bounds + 4 * g) < lowest:
            copy_row(field(what, 7), field(i, 11) + 64 * g, 16)
            continue
        count += 1
        if waiting < 0:
            waiting = g
            continue
        here, there = weights + waiting * field(i, 6), weights + g * field(i, 6)
        two_call(field(i, 3), here, there, x, field(i, 8), scratch)
        finish_tile(i, waiting, 0, 1, scratch)
        finish_tile(i, g, 0, 1, scratch + SECOND)
        waiting = nt.int64(-1)
    if waiting >= 0:
        one_call(field(i, 2), weights + waiting * field(i, 6), x, field(i, 8), scratch)
        finish_tile(i, waiting, 0, 1, scratch)
    write_i64(own + 48, count)
