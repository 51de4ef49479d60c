"""The best entries of a row of logits, in Numba. Imported only by the build process."""

from __future__ import annotations

import numpy as np
from numba import types as nt

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import kernel, share, value_kernel
from kinetic.backends.cpu.emitted import extern, field, read_f32, read_i32, read_i64, write_f32, write_i32, write_i64

scan_row = extern("scan_row", "aaa")
find_above = extern("find_above", "aaaf", "a")
find_from = extern("find_from", "aaaf", "a")

LOWEST = np.float32(-3.4028234663852886e38)
"""The smallest finite float32: -inf marks a token that must not be drawn."""


@value_kernel
def insert(ids, values, count, k, new_id, value_at):
    """Into a list kept best first; ids arrive in ascending order, so equal values stay in order of ids."""
    value = read_f32(value_at)
    at = count if count < k else k - 1
    while at > 0 and read_f32(values + 4 * (at - 1)) < value:
        write_f32(values + 4 * at, read_f32(values + 4 * (at - 1)))
        write_i32(ids + 4 * at, read_i32(ids + 4 * (at - 1)))
        at -= 1
    write_f32(values + 4 * at, value)
    write_i32(ids + 4 * at, nt.int32(new_id))
    return min(count + 1, k)


@kernel
def candidates(row, n, k, floor_at, ids, values, out):
    """The k best of n float32 (0: all) not below maximum - floor, best first, equal ones by id; unordered if k is 0.

    out: int64 count, then 1 if the row holds a NaN or +inf, then float32 maximum and flag (scratch).
    """
    scan_row(row, n, out + 16)
    write_i64(out + 8, 1 if read_f32(out + 20) != nt.float32(0) else 0)
    lowest = max(read_f32(out + 16) - read_f32(floor_at), LOWEST)
    count = 0
    i = find_from(row, 0, n, lowest)
    while i < n:
        value = read_f32(row + 4 * i)
        if k == 0:
            write_i32(ids + 4 * count, nt.int32(i))
            write_f32(values + 4 * count, value)
            count += 1
        else:
            count = insert(ids, values, count, k, i, row + 4 * i)
        if k == 0 or count < k:
            i = find_from(row, i + 1, n, lowest)
        else:
            i = find_above(row, i + 1, n, read_f32(values + 4 * (k - 1)))
    write_i64(out, count)


@kernel
def choose(p, thread, threads):
    """``candidates`` of every row of logits that a pass made, rows shared among threads.

    The table at CHOOSE: 0 logits, 1 bytes of a row, 2 n, 3 k (1 or more), 4 address of the floor, 5 ids, 6 values, each
    k a row, 7 out, 64 bytes a row.
    """
    table = field(p, tape.CHOOSE)
    k = read_i64(table + 24)
    low, high = share(field(p, tape.OUTPUT_ROWS), thread, threads)
    for t in range(low, high):
        row = read_i64(table) + t * read_i64(table + 8)
        ids, values = read_i64(table + 40) + 4 * t * k, read_i64(table + 48) + 4 * t * k
        candidates(row, read_i64(table + 16), k, read_i64(table + 32), ids, values, read_i64(table + 56) + 64 * t)
