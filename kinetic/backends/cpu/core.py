"""The compiled interpreter of the tape, in Numba. Imported only by the build process.

Every thread runs ``run`` over the same instructions; work is divided by output
units, so which thread computes a value, and beside what, cannot matter.
Arguments named ``i`` are the address of an instruction; ``field(i, n)`` is its
n-th word, listed in each docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba import types as nt

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.emitted import (
    atomic_add,
    atomic_read,
    atomic_write,
    extern,
    field,
    pointer_call,
    read_f32,
    read_i32,
    read_i64,
    write_f32,
    write_i32,
    write_i64,
)
from kinetic.backends.cpu.functions import RECORD

norm_row = extern("norm_row", "aaaaf")
quantise_row = extern("quantise_row", "aaaa")
store_tile = extern("store_tile", "aaaaaa")
gated_tile_silu = extern("gated_tile_silu", "aaa")
gated_tile_gelu = extern("gated_tile_gelu", "aaa")
gated_row_silu = extern("gated_row_silu", "aaaa")
gated_row_gelu = extern("gated_row_gelu", "aaaa")
rope_row = extern("rope_row", "aaaa")
store_key = extern("store_key", "aaa")
store_value = extern("store_value", "aaa")
add_rows = extern("add_rows", "aaaa")
scale_row = extern("scale_row", "aaaf")
copy_row = extern("copy_row", "aaa")
scores_1, scores_2, scores_4 = (extern(f"scores_{r}", "aaaaaa") for r in (1, 2, 4))
weighted_values_1, weighted_values_2, weighted_values_4 = (extern(f"weighted_values_{r}", "aaaaaa") for r in (1, 2, 4))
softmax_row = extern("softmax_row", "aaaa")
merge_row = extern("merge_row", "aaaaa")
divide_row = extern("divide_row", "aaaa")
scan_row = extern("scan_row", "aaa")
find_above = extern("find_above", "aaaf", "a")
find_from = extern("find_from", "aaaf", "a")
pause = extern("pause", "")
yield_processor = extern("yield_processor", "a")
set_control_word = extern("set_control_word", "", "a")
restore_control_word = extern("restore_control_word", "a")
tile_call = pointer_call(5)
float_tile_call = pointer_call(6)

SPINS_BEFORE_YIELD = 256
TILE_ROWS = 16
TILE_BYTES = 1024
CHUNK = 256
LOWEST = np.float32(-3.4028234663852886e38)
"""The smallest finite float32: -inf marks a token that must not be drawn."""



KERNELS: dict[str, tuple[Any, str]] = {}
"""Compiled functions by name, with their result kind, for ``build`` to turn into C functions."""


def inline(function: Callable[..., Any]) -> Any:
    """A small function, compiled into its callers. Without a signature Numba makes a version for every constant."""
    arity = function.__code__.co_argcount
    return njit((nt.int64,) * arity, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def kernel(function: Callable[..., Any], result: str = "v") -> Any:
    """A C function of int64 arguments. Callers get a plain call of its symbol, so each is compiled just once."""
    KERNELS[function.__name__] = (inline(function), result)
    return extern(function.__name__, "a" * function.__code__.co_argcount, result)


def value_kernel(function: Callable[..., Any]) -> Any:
    """A ``kernel`` that returns an int64."""
    return kernel(function, "a")


@inline
def share(total, thread, threads):
    """First and last + 1 of the units that ``thread`` owns."""
    return total * thread // threads, total * (thread + 1) // threads


@kernel
def barrier(sync, threads):
    """Wait for all threads. A long wait gives the processor away, so more threads than cores still move."""
    if threads == 1:
        return
    generation = atomic_read(sync + tape.GENERATION)
    if atomic_add(sync + tape.ARRIVED, 1) == threads - 1:
        atomic_write(sync + tape.ARRIVED, 0)
        atomic_write(sync + tape.GENERATION, generation + 1)
        return
    spins = 0
    while atomic_read(sync + tape.GENERATION) == generation:
        spins += 1
        if spins % SPINS_BEFORE_YIELD == 0:
            yield_processor(sync)
        else:
            pause()


@inline
def rows_of(p, i):
    """Field 1 of every instruction: 0 for all rows of the batch, 1 for the output rows."""
    return field(p, tape.OUTPUT_ROWS) if field(i, 1) == 1 else field(p, tape.ROWS)


@inline
def record_at(records, blocks, rows, t):
    """Address of row t's first record, and the distance to its next one."""
    first = t // TILE_ROWS * TILE_ROWS
    count = min(TILE_ROWS, rows - first)
    return records + (first * blocks + (t - first)) * RECORD, count * RECORD


@kernel
def norm_quantise(p, i, thread, threads, scratch):
    """2 x, 3 row bytes, 4 weight or 0, 5 width, 6 records, 7 blocks, 8 address of eps."""
    rows = rows_of(p, i)
    low, high = share(rows, thread, threads)
    for t in range(low, high):
        x = field(i, 2) + t * field(i, 3)
        if field(i, 4) != 0:
            norm_row(x, field(i, 4), scratch, field(i, 5), read_f32(field(i, 8)))
            x = scratch
        records, stride = record_at(field(i, 6), field(i, 7), rows, t)
        quantise_row(x, records, field(i, 7), stride)


@kernel
def norm(p, i, thread, threads, scratch):
    """2 x, 3 row bytes, 4 weight, 5 group width, 6 out, 7 out row bytes, 8 address of eps, 9 groups, 10 residual or 0."""
    rows = rows_of(p, i)
    low, high = share(rows, thread, threads)
    width, groups = field(i, 5), field(i, 9)
    for t in range(low, high):
        x = field(i, 2) + t * field(i, 3)
        out = field(i, 6) + t * field(i, 7)
        for g in range(groups):
            at = g * width * 4
            if field(i, 10) == 0:
                norm_row(x + at, field(i, 4), out + at, width, read_f32(field(i, 8)))
            else:
                norm_row(x + at, field(i, 4), scratch, width, read_f32(field(i, 8)))
                add_rows(field(i, 10) + t * field(i, 7) + at, scratch, out + at, width)


@kernel
def matmul(p, i, thread, threads, scratch):
    """2 one-row tile, 3 tile, 4 weights, 5 group bytes, 6 groups, 7 blocks (or width), 8 records (or x),
    9 x row bytes (0: quantised), 10 out, 11 out row bytes, 12 bias or 0, 13 residual or 0."""
    rows = rows_of(p, i)
    low, high = share(field(i, 6), thread, threads)
    tile = field(i, 2) if rows == 1 else field(i, 3)
    size, source, stride, out_stride = field(i, 7), field(i, 8), field(i, 9), field(i, 11)
    for g in range(low, high):
        weights = field(i, 4) + g * field(i, 5)
        bias = field(i, 12) + g * 64 if field(i, 12) != 0 else 0
        for first in range(0, rows, TILE_ROWS):
            count = min(TILE_ROWS, rows - first)
            if stride == 0:
                tile_call(tile, weights, source + first * size * RECORD, size, scratch, count)
            else:
                float_tile_call(tile, weights, source + first * stride, size, scratch, count, stride)
            at = first * out_stride + g * 64
            residual = field(i, 13) + at if field(i, 13) != 0 else 0
            store_tile(scratch, count, field(i, 10) + at, out_stride, bias, residual)


@kernel
def gated(p, i, thread, threads, scratch):
    """2 one-row gate tile, 3 gate tile, 4 one-row up tile, 5 up tile, 6 gate, 7 gate group bytes, 8 up,
    9 up group bytes, 10 units of 32 columns, 11 blocks, 12 records in, 13 records out, 14 activation (0 SiLU, 1 GELU)."""
    rows = rows_of(p, i)
    units, blocks = field(i, 10), field(i, 11)
    low, high = share(units, thread, threads)
    gate_tile = field(i, 2) if rows == 1 else field(i, 3)
    up_tile = field(i, 4) if rows == 1 else field(i, 5)
    for u in range(low, high):
        gate = field(i, 6) + 2 * u * field(i, 7)
        up = field(i, 8) + 2 * u * field(i, 9)
        for first in range(0, rows, TILE_ROWS):
            count = min(TILE_ROWS, rows - first)
            x = field(i, 12) + first * blocks * RECORD
            tile_call(gate_tile, gate, x, blocks, scratch, count)
            tile_call(gate_tile, gate + field(i, 7), x, blocks, scratch + TILE_BYTES, count)
            tile_call(up_tile, up, x, blocks, scratch + 2 * TILE_BYTES, count)
            tile_call(up_tile, up + field(i, 9), x, blocks, scratch + 3 * TILE_BYTES, count)
            records = field(i, 13) + (first * units + u * count) * RECORD
            if field(i, 14) == 0:
                gated_tile_silu(scratch, count, records)
            else:
                gated_tile_gelu(scratch, count, records)


@kernel
def gated_float(p, i, thread, threads):
    """2 gate, 3 up, 4 out, 5 row bytes, 6 width, 7 activation."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 5)
        if field(i, 7) == 0:
            gated_row_silu(field(i, 2) + at, field(i, 3) + at, field(i, 4) + at, field(i, 6))
        else:
            gated_row_gelu(field(i, 2) + at, field(i, 3) + at, field(i, 4) + at, field(i, 6))


@kernel
def rope(p, i, thread, threads):
    """2 x (in place), 3 row bytes, 4 heads, 5 head width, 6 slot of the table, 7 half, 8 interleaved,
    9 norm weight or 0, 10 address of eps."""
    heads, width = field(i, 4), field(i, 5)
    low, high = share(rows_of(p, i) * heads, thread, threads)
    table, half = field(p, field(i, 6)), field(i, 7)
    for unit in range(low, high):
        t = unit // heads
        x = field(i, 2) + t * field(i, 3) + (unit % heads) * width * 4
        if field(i, 9) != 0:
            norm_row(x, field(i, 9), x, width, read_f32(field(i, 10)))
        position = read_i64(field(p, tape.POSITIONS) + 8 * t)
        rope_row(x, table + position * half * 8, half, field(i, 8))


@value_kernel
def page_of(p, t, position):
    return read_i64(read_i64(field(p, tape.PAGES) + 8 * t) + 8 * (position // CHUNK))


@kernel
def store(p, i, thread, threads):
    """2 k, 3 v, 4 row bytes, 5 key/value heads, 6 head width, 7 padded width, 8 keys' offset in a page, 9 values'."""
    heads, width, padded = field(i, 5), field(i, 6), field(i, 7)
    low, high = share(rows_of(p, i) * heads, thread, threads)
    for unit in range(low, high):
        t, g = unit // heads, unit % heads
        position = read_i64(field(p, tape.POSITIONS) + 8 * t)
        page, slot = page_of(p, t, position), position % CHUNK
        at = t * field(i, 4) + g * width * 4
        keys = page + field(i, 8) + g * CHUNK * width * 2
        store_key(field(i, 2) + at, keys + slot // 16 * width * 32 + slot % 16 * 2, width)
        values = page + field(i, 9) + (g * CHUNK + slot) * padded * 2
        store_value(field(i, 3) + at, values, width)


# ---- attention ----------------------------------------------------------------------------------

# Scratch of one attention unit: up to 16 query rows.
SCORES = 0
SUMS = SCORES + 16 * 1024  # this chunk's maximum and total, 8 bytes a row
STATE_SUMS = SUMS + 128
LOW, HIGH = STATE_SUMS + 128, STATE_SUMS + 256
STARTED = HIGH + 128
ROWS_AT = STARTED + 128  # scaled queries, then chunk values, then state values: 16 padded rows each


@kernel
def bounds(p, row, heads, count, base, window, scratch):
    """Which lanes of the chunk at ``base`` each query row sees."""
    for r in range(count):
        position = read_i64(field(p, tape.POSITIONS) + 8 * (row + r // heads))
        low = 0
        if window != 0:
            low = max(0, position + 1 - window - base)
        write_i64(scratch + LOW + 8 * r, low)
        write_i64(scratch + HIGH + 8 * r, min(CHUNK, position + 1 - base))


@inline
def visible_range(scratch, count):
    """Smallest and largest lane that any row sees."""
    low, high = CHUNK, 0
    for r in range(count):
        row_low, row_high = read_i64(scratch + LOW + 8 * r), read_i64(scratch + HIGH + 8 * r)
        if row_high > row_low:
            low, high = min(low, row_low), max(high, row_high)
    return low, high


@kernel
def chunk_scores(scratch, queries, keys, width, padded, count):
    low, high = visible_range(scratch, count)
    first = low // 16
    tiles = (high + 15) // 16 - first
    start = keys + first * width * 32
    r = 0
    while r < count:
        q = queries + r * padded * 4
        out = scratch + SCORES + 1024 * r + 64 * first
        if count - r >= 4:
            scores_4(q, padded * 4, start, width, tiles, out)
            r += 4
        elif count - r >= 2:
            scores_2(q, padded * 4, start, width, tiles, out)
            r += 2
        else:
            scores_1(q, padded * 4, start, width, tiles, out)
            r += 1


@kernel
def row_values(scratch, page_values, padded, values, r, low, high):
    weighted_values_1(scratch + SCORES + 1024 * r, page_values, padded, low, high - low, values + r * padded * 4)


@kernel
def chunk_values(scratch, page_values, padded, values, count):
    """Keys that all rows of a group see are taken together; the ragged ends row by row, in the order of keys."""
    r = 0
    while r < count:
        group = 4 if count - r >= 4 else (2 if count - r >= 2 else 1)
        low, high = 0, CHUNK
        for k in range(r, r + group):
            low = max(low, read_i64(scratch + LOW + 8 * k))
            high = min(high, read_i64(scratch + HIGH + 8 * k))
        together = high > low
        for k in range(r, r + group):
            row_low, row_high = read_i64(scratch + LOW + 8 * k), read_i64(scratch + HIGH + 8 * k)
            end = low if together else row_high
            if end > row_low:
                row_values(scratch, page_values, padded, values, k, row_low, end)
        if together:
            weights, out = scratch + SCORES + 1024 * r, values + r * padded * 4
            if group == 4:
                weighted_values_4(weights, page_values, padded, low, high - low, out)
            elif group == 2:
                weighted_values_2(weights, page_values, padded, low, high - low, out)
            else:
                weighted_values_1(weights, page_values, padded, low, high - low, out)
            for k in range(r, r + group):
                row_high = read_i64(scratch + HIGH + 8 * k)
                if row_high > high:
                    row_values(scratch, page_values, padded, values, k, high, row_high)
        r += group


@kernel
def merge_chunk(scratch, values, state, padded, count):
    """The first chunk that a row sees starts its state; later ones are merged in order."""
    for r in range(count):
        if read_i64(scratch + HIGH + 8 * r) <= read_i64(scratch + LOW + 8 * r):
            continue
        at = r * padded * 4
        sums = scratch + STATE_SUMS + 8 * r
        if read_i64(scratch + STARTED + 8 * r) == 0:
            write_i64(scratch + STARTED + 8 * r, 1)
            copy_row(values + at, state + at, padded)
            write_f32(sums, read_f32(scratch + SUMS + 8 * r))
            write_f32(sums + 4, read_f32(scratch + SUMS + 8 * r + 4))
        else:
            merge_row(state + at, sums, values + at, scratch + SUMS + 8 * r, padded)


@kernel
def attend_block(p, i, row, rows, g, head, heads, scratch):
    """``rows`` consecutive positions x ``heads`` query heads (at most 16 together) over all their keys."""
    width, padded, window = field(i, 6), field(i, 7), field(i, 11)
    count = rows * heads
    queries = scratch + ROWS_AT
    values = queries + 16 * padded * 4
    state = values + 16 * padded * 4
    for r in range(count):
        at = (row + r // heads) * field(i, 3) + (head + r % heads) * width * 4
        scale_row(field(i, 2) + at, queries + r * padded * 4, width, read_f32(field(i, 10)))
        write_i64(scratch + STARTED + 8 * r, 0)
    last = read_i64(field(p, tape.POSITIONS) + 8 * (row + rows - 1))
    earliest = read_i64(field(p, tape.POSITIONS) + 8 * row)
    first_key = max(0, earliest + 1 - window) if window != 0 else 0
    for chunk in range(first_key // CHUNK, last // CHUNK + 1):
        page = page_of(p, row, chunk * CHUNK)
        bounds(p, row, heads, count, chunk * CHUNK, window, scratch)
        keys = page + field(i, 8) + g * CHUNK * width * 2
        chunk_scores(scratch, queries, keys, width, padded, count)
        for r in range(count):
            low, high = read_i64(scratch + LOW + 8 * r), read_i64(scratch + HIGH + 8 * r)
            copy_row(0, values + r * padded * 4, padded)
            if high > low:
                softmax_row(scratch + SCORES + 1024 * r, low, high, scratch + SUMS + 8 * r)
        chunk_values(scratch, page + field(i, 9) + g * CHUNK * padded * 2, padded, values, count)
        merge_chunk(scratch, values, state, padded, count)
    for r in range(count):
        at = (row + r // heads) * field(i, 13) + (head + r % heads) * width * 4
        divide_row(state + r * padded * 4, scratch + STATE_SUMS + 8 * r, field(i, 12) + at, width)


@kernel
def attend(p, i, thread, threads, scratch):
    """2 q, 3 row bytes, 4 heads, 5 key/value heads, 6 head width, 7 padded width, 8 keys' offset, 9 values',
    10 address of the scale, 11 window or 0, 12 out, 13 out row bytes, 14 slot of the blocks."""
    kv_heads = field(i, 5)
    blocks_at, count = field(p, field(i, 14)), field(p, field(i, 14) + 1)
    group = field(i, 4) // kv_heads
    slices = (group + TILE_ROWS - 1) // TILE_ROWS
    low, high = share(count * kv_heads * slices, thread, threads)
    for unit in range(low, high):
        block, rest = unit // (kv_heads * slices), unit % (kv_heads * slices)
        g, first = rest // slices, rest % slices * TILE_ROWS
        row = read_i64(blocks_at + 16 * block)
        rows = read_i64(blocks_at + 16 * block + 8)
        attend_block(p, i, row, rows, g, g * group + first, min(TILE_ROWS, group - first), scratch)


# ---- the rest -----------------------------------------------------------------------------------


@kernel
def add(p, i, thread, threads):
    """2 x, 3 y, 4 out, 5 row bytes, 6 width."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 5)
        add_rows(field(i, 2) + at, field(i, 3) + at, field(i, 4) + at, field(i, 6))


@kernel
def scale(p, i, thread, threads):
    """2 x, 3 out, 4 row bytes, 5 width, 6 address of the factor."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 4)
        scale_row(field(i, 2) + at, field(i, 3) + at, field(i, 5), read_f32(field(i, 6)))


@kernel
def gather(p, i, thread, threads):
    """2 x, 3 out, 4 row bytes, 5 width, 6 address of the row numbers."""
    low, high = share(field(p, tape.OUTPUT_ROWS), thread, threads)
    for t in range(low, high):
        source = read_i64(field(i, 6) + 8 * t)
        copy_row(field(i, 2) + source * field(i, 4), field(i, 3) + t * field(i, 4), field(i, 5))


@kernel
def execute(p, i, thread, threads, scratch):
    op = field(i, 0)
    if op == tape.BARRIER:
        barrier(field(p, tape.SYNC), threads)
    elif op == tape.NORM_QUANTISE:
        norm_quantise(p, i, thread, threads, scratch)
    elif op == tape.NORM:
        norm(p, i, thread, threads, scratch)
    elif op == tape.MATMUL:
        matmul(p, i, thread, threads, scratch)
    elif op == tape.GATED:
        gated(p, i, thread, threads, scratch)
    elif op == tape.GATED_FLOAT:
        gated_float(p, i, thread, threads)
    elif op == tape.ROPE:
        rope(p, i, thread, threads)
    elif op == tape.STORE:
        store(p, i, thread, threads)
    elif op == tape.ATTEND:
        attend(p, i, thread, threads, scratch)
    elif op == tape.ADD:
        add(p, i, thread, threads)
    elif op == tape.SCALE:
        scale(p, i, thread, threads)
    elif op == tape.GATHER:
        gather(p, i, thread, threads)


@kernel
def run_tape(p, thread, threads):
    """One forward pass as seen by one thread."""
    control = set_control_word()
    scratch = field(p, tape.SCRATCH) + thread * field(p, tape.SCRATCH_BYTES)
    code = field(p, tape.CODE)
    for n in range(field(p, tape.LENGTH)):
        execute(p, code + n * tape.INSTRUCTION, thread, threads, scratch)
    barrier(field(p, tape.SYNC), threads)
    restore_control_word(control)


@kernel
def start(p):
    """Lets the workers that spin begin; sleeping ones are woken in Python by their mark in SYNC."""
    atomic_add(field(p, tape.SYNC) + tape.START, 1)


@kernel
def work(p, thread, threads, spins):
    """A worker: runs every pass that is started; returns when told to stop, or after ``spins`` idle turns
    (the caller then waits in Python). The number of passes seen stands in the worker's own line of SYNC."""
    sync = field(p, tape.SYNC)
    mine = sync + tape.SLEEPING + 64 * thread
    atomic_write(mine, 0)
    idle = 0
    while atomic_read(sync + tape.STOP) == 0:
        if atomic_read(sync + tape.START) != read_i64(mine + 8):
            write_i64(mine + 8, read_i64(mine + 8) + 1)
            run_tape(p, thread, threads)
            idle = 0
            continue
        idle += 1
        if idle % SPINS_BEFORE_YIELD == 0:
            yield_processor(sync)
        else:
            pause()
        if idle >= spins:
            atomic_write(mine, 1)
            # A pass started between the last look and the mark would not wake us: look once more.
            if atomic_read(sync + tape.START) == read_i64(mine + 8) and atomic_read(sync + tape.STOP) == 0:
                return
            atomic_write(mine, 0)
            idle = 0


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

