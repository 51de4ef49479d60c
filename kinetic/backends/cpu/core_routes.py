"""Which experts each row gets, and which rows each expert gets, in Numba. Imported only by the build process."""

from __future__ import annotations

import numpy as np
from numba import types as nt

from kinetic.backends.cpu import expert_fields as fields
from kinetic.backends.cpu.compiled import inline, kernel, rows_of, share, value_kernel
from kinetic.backends.cpu.emitted import extern, field, read_f32, read_i64, write_f32, write_i64
from kinetic.backends.reference.functions import EXP_ZERO_BELOW, SMALLEST_SUM

exp_row = extern("exp_row", "aaa")

LANES = 16

KEYS, CHOSEN = 8192, 16384
"""Bytes of scratch before what experts are chosen by, and before values of the chosen ones: room for 1024 experts."""

INFINITY = np.float32(np.inf)


@kernel
def softmax_gates(x, out, n):
    """``reference.functions.softmax``. The memory from ``out`` on holds n floats, rounded up to 16, and 16 more."""
    largest = -INFINITY
    for e in range(n):
        if read_f32(x + 4 * e) > largest:
            largest = read_f32(x + 4 * e)
    for e in range(n):
        write_f32(out + 4 * e, read_f32(x + 4 * e) - largest)
    exp_row(out, out, n)
    lanes = out + 4 * LANES * ((n + LANES - 1) // LANES)
    for k in range(LANES):
        write_f32(lanes + 4 * k, nt.float32(0))
    for e in range(n):
        if read_f32(x + 4 * e) - largest < EXP_ZERO_BELOW:
            write_f32(out + 4 * e, nt.float32(0))
        at = lanes + 4 * (e % LANES)
        write_f32(at, read_f32(at) + read_f32(out + 4 * e))
    for half in (8, 4, 2, 1):
        for k in range(half):
            write_f32(lanes + 4 * k, read_f32(lanes + 4 * k) + read_f32(lanes + 4 * (k + half)))
    for e in range(n):
        write_f32(out + 4 * e, read_f32(out + 4 * e) / read_f32(lanes))


@kernel
def sigmoid_gates(x, out, n):
    """``reference.functions.sigmoid``."""
    for e in range(n):
        write_f32(out + 4 * e, -read_f32(x + 4 * e))
    exp_row(out, out, n)
    for e in range(n):
        write_f32(out + 4 * e, nt.float32(1) / (nt.float32(1) + read_f32(out + 4 * e)))


@inline
def key(at):
    """What experts are ordered by: a NaN counts as -inf."""
    value = read_f32(at)
    return value if value == value else -INFINITY


@value_kernel
def next_best(values, n, last):
    """Of n by (value descending, number ascending) the one after ``last``, or the first if that is -1."""
    bound = INFINITY if last < 0 else key(values + 4 * last)
    best = -1
    for e in range(n):
        here = key(values + 4 * e)
        comes_after = here < bound or (here == bound and e > last)
        if comes_after and (best < 0 or here > key(values + 4 * best)):
            best = e
    return best


@kernel
def copy_floats(x, out, n):
    for e in range(n):
        write_f32(out + 4 * e, read_f32(x + 4 * e))


@kernel
def selection_keys(i, values, keys, n):
    """What experts are chosen by: values, plus their bias, and -inf in all groups but the best. Fields of ``route``."""
    copy_floats(values, keys, n)
    if field(i, 11) != 0:
        for e in range(n):
            write_f32(keys + 4 * e, read_f32(keys + 4 * e) + read_f32(field(i, 11) + 4 * e))
    groups = field(i, 12)
    if groups == 1:
        return
    size, scores = n // groups, keys - KEYS + CHOSEN
    for g in range(groups):
        group = keys + 4 * size * g
        first = next_best(group, size, -1)
        second = next_best(group, size, first)
        write_f32(scores + 4 * g, key(group + 4 * first) + key(group + 4 * second))
    kept = scores + 4 * groups
    for g in range(groups):
        write_f32(kept + 4 * g, nt.float32(0))
    g = -1
    for _ in range(field(i, 13)):
        g = next_best(scores, groups, g)
        write_f32(kept + 4 * g, nt.float32(1))
    for e in range(n):
        if read_f32(kept + 4 * (e // size)) == 0:
            write_f32(keys + 4 * e, -INFINITY)


@kernel
def route(p, i, thread, threads, scratch):
    """2 logits, 3 row bytes, 4 experts, 5 used, 6 out, 7 out row bytes, 8 gating (0 softmax, 1 sigmoid, 2 softmax of
    the chosen), 9 whether weights are normalised, 10 address of their factor, 11 bias of the choice or 0, 12 groups,
    13 used groups."""
    n, used = field(i, 4), field(i, 5)
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        logits, out = field(i, 2) + t * field(i, 3), field(i, 6) + t * field(i, 7)
        if field(i, 8) == 0:
            softmax_gates(logits, scratch, n)
        elif field(i, 8) == 1:
            sigmoid_gates(logits, scratch, n)
        else:
            copy_floats(logits, scratch, n)
        keys = scratch
        if field(i, 11) != 0 or field(i, 12) > 1:
            keys = scratch + KEYS
            selection_keys(i, scratch, keys, n)
        expert = -1
        for rank in range(used):
            expert = next_best(keys, n, expert)
            write_f32(out + 4 * rank, nt.float32(expert))
            write_f32(scratch + CHOSEN + 4 * rank, read_f32(scratch + 4 * expert))
        if field(i, 8) == 2:
            softmax_gates(scratch + CHOSEN, scratch, used)
            copy_floats(scratch, scratch + CHOSEN, used)
        copy_floats(scratch + CHOSEN, out + 4 * used, used)
        total = nt.float32(0)
        for rank in range(used):
            total = total + read_f32(scratch + CHOSEN + 4 * rank)
        if total < SMALLEST_SUM:
            total = SMALLEST_SUM
        for at in range(out + 4 * used, out + 8 * used, 4):
            weight = read_f32(at)
            if field(i, 9) != 0:
                weight = weight / total
            write_f32(at, weight * read_f32(field(i, 10)))


@inline
def expert_of(d, slot):
    """The number of a slot's expert."""
    used = field(d, fields.USED)
    return nt.int64(read_f32(field(d, fields.ROUTES) + slot // used * field(d, fields.ROUTE_BYTES) + slot % used * 4))


@kernel
def assign(p, i, thread, threads):
    """2 description. Slots sorted by expert, in ascending order for each; done by the last thread, which makes the
    route of a single row."""
    if thread != threads - 1:
        return
    d = field(i, 2)
    experts, slots, table = field(d, fields.EXPERTS), rows_of(p, i) * field(d, fields.USED), field(d, fields.TABLE)
    cursors = table + 8
    used_at, order = cursors + 8 * experts, cursors + 32 * experts
    for e in range(experts):
        write_i64(cursors + 8 * e, 0)
    for slot in range(slots):
        at = cursors + 8 * expert_of(d, slot)
        write_i64(at, read_i64(at) + 1)
    count, begin = 0, 0
    for e in range(experts):
        end = begin + read_i64(cursors + 8 * e)
        write_i64(cursors + 8 * e, begin)
        if end > begin:
            write_i64(used_at + 24 * count, e)
            write_i64(used_at + 24 * count + 8, begin)
            write_i64(used_at + 24 * count + 16, end)
            count += 1
        begin = end
    write_i64(table, count)
    for slot in range(slots):
        at = cursors + 8 * expert_of(d, slot)
        position = read_i64(at)
        write_i64(at, position + 1)
        write_i64(order + 8 * position, slot)
        write_i64(order + 8 * (slots + slot), position)
