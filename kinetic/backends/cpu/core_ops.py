"""The instructions of the tape apart from attention, in Numba. Imported only by the build process."""

from __future__ import annotations

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import TILE_ROWS, inline, kernel, rows_of, share
from kinetic.backends.cpu.core_work import claim, end_of, first_of
from kinetic.backends.cpu.emitted import extern, field, pointer_call, read_f32, read_i64, write_f32
from kinetic.backends.cpu.functions import RECORD

norm_row = extern("norm_row", "aaaaf")
layer_norm_row = extern("layer_norm_row", "aaaaaf")
quantise_row = extern("quantise_row", "aaaa")
store_tile = extern("store_tile", "aaaaaa")
rope_row = extern("rope_row", "aaaa")
add_rows = extern("add_rows", "aaaa")
scale_row = extern("scale_row", "aaaf")
softcap_row = extern("softcap_row", "aaaf")
copy_row = extern("copy_row", "aaa")
spread_row = extern("spread_row", "aaaa")
divide_row = extern("divide_row", "aaaa")
one_call, two_call, tile_call = pointer_call(4), pointer_call(5), pointer_call(5)
gated_tile_call, gated_row_call = pointer_call(3), pointer_call(4)

TILE_BYTES = 1024
SECOND = 2 * TILE_BYTES
"""``tiles.SECOND``."""

WEIGHTS_NEAR = 256 * 1024
"""Bytes of weights that stay in the second level of caches beside a tile of rows and its results."""


@inline
def record_at(records, blocks, rows, t):
    """Address of row t's first record, and the distance to its next one."""
    first = t // TILE_ROWS * TILE_ROWS
    count = min(TILE_ROWS, rows - first)
    return records + (first * blocks + (t - first)) * RECORD, count * RECORD


@inline
def own_copy(p, thread, size):
    """Of a pass of one row every thread makes its own records or columns, ``size`` bytes each: that is quicker
    than to wait for another's."""
    return thread * size if field(p, tape.MODE) & tape.ONE_ROW != 0 else 0


@inline
def rows_to_make(p, i, thread, threads):
    """Rows whose records or columns this thread makes."""
    if field(p, tape.MODE) & tape.ONE_ROW != 0:
        return 0, rows_of(p, i)
    return share(rows_of(p, i), thread, threads)


@kernel
def norm_quantise(p, i, thread, threads, scratch):
    """2 x, 3 row bytes, 4 weight or 0, 5 width, 6 records, 7 blocks, 8 address of eps."""
    rows = rows_of(p, i)
    low, high = rows_to_make(p, i, thread, threads)
    out = field(i, 6) + own_copy(p, thread, field(i, 7) * RECORD)
    for t in range(low, high):
        x = field(i, 2) + t * field(i, 3)
        if field(i, 4) != 0:
            norm_row(x, field(i, 4), scratch, field(i, 5), read_f32(field(i, 8)))
            x = scratch
        records, stride = record_at(out, field(i, 7), rows, t)
        quantise_row(x, records, field(i, 7), stride)


@kernel
def norm(p, i, thread, threads, scratch):
    """2 x, 3 row bytes, 4 weight, 5 group width, 6 out, 7 out row bytes, 8 address of eps, 9 groups,
    10 residual or 0, 11 bytes from a group's weights to the next one's."""
    rows = rows_of(p, i)
    low, high = share(rows, thread, threads)
    width, groups = field(i, 5), field(i, 9)
    for t in range(low, high):
        x = field(i, 2) + t * field(i, 3)
        out = field(i, 6) + t * field(i, 7)
        for g in range(groups):
            at, weight = g * width * 4, field(i, 4) + g * field(i, 11)
            if field(i, 10) == 0:
                norm_row(x + at, weight, out + at, width, read_f32(field(i, 8)))
            else:
                norm_row(x + at, weight, scratch, width, read_f32(field(i, 8)))
                add_rows(field(i, 10) + t * field(i, 7) + at, scratch, out + at, width)


@kernel
def layer_norm(p, i, thread, threads):
    """2 x, 3 weight, 4 bias, 5 out, 6 row bytes, 7 width, 8 address of eps."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 6)
        layer_norm_row(field(i, 2) + at, field(i, 3), field(i, 4), field(i, 5) + at, field(i, 7), read_f32(field(i, 8)))


@kernel
def average(p, i, thread, threads):
    """2 x, 3 out, 4 row bytes, 5 lines of 16 elements, 6 address of the spans: of each output row first row, rows, and
    in the upper half of a word the number of rows as float32."""
    lines = field(i, 5)
    low, high = share(field(p, tape.OUTPUT_ROWS) * lines, thread, threads)
    for unit in range(low, high):
        span, at = field(i, 6) + unit // lines * 24, unit % lines * 64
        x, out = field(i, 2) + read_i64(span) * field(i, 4) + at, field(i, 3) + unit // lines * field(i, 4) + at
        copy_row(0, out, 16)
        for t in range(read_i64(span + 8)):
            add_rows(out, x + t * field(i, 4), out, 16)
        divide_row(out, span + 16, out, 16)


@kernel
def finish_tile(i, g, first, count, tile):
    """Columns 16 g .. 16 g + 15 of rows ``first`` and on: bias, residual, out."""
    at = first * field(i, 12) + g * 64
    bias = field(i, 13) + g * 64 if field(i, 13) != 0 else 0
    residual = field(i, 14) + at if field(i, 14) != 0 else 0
    store_tile(tile, count, field(i, 11) + at, field(i, 12), bias, residual)


@kernel
def matmul_row(i, x, low, high, scratch):
    """The groups low .. high - 1 for one row, as two streams: one from the start, one from the middle."""
    half = (high - low + 1) // 2
    for k in range(half):
        g, other = low + k, low + half + k
        weights = field(i, 5) + g * field(i, 6)
        if other < high:
            two_call(field(i, 3), weights, weights + half * field(i, 6), x, field(i, 8), scratch)
            finish_tile(i, other, 0, 1, scratch + SECOND)
        else:
            one_call(field(i, 2), weights, x, field(i, 8), scratch)
        finish_tile(i, g, 0, 1, scratch)


@inline
def in_cache(group_bytes):
    """How many groups of weights to take at a time: so many that they stay near while all rows pass by."""
    return max(1, WEIGHTS_NEAR // group_bytes)


@kernel
def matmul(p, i, thread, threads, scratch):
    """2 tile of one row, 3 of one row and two groups, 4 of many rows, 5 weights, 6 group bytes, 7 groups,
    8 blocks (or columns), 9 records (or columns of x), 10 bytes of one row of those, 11 out, 12 out row bytes,
    13 bias or 0, 14 residual or 0, 15 bytes of a thread's own copy of 9, if each has one."""
    rows, groups = rows_of(p, i), field(i, 7)
    if rows == 1:
        low, high = share(groups, thread, threads)
        matmul_row(i, field(i, 9) + own_copy(p, thread, field(i, 15)), low, high, scratch)
        return
    most = in_cache(field(i, 6))
    claimed = claim(p, i, thread, threads, groups, most)
    while claimed != 0:
        for first in range(0, rows, TILE_ROWS):
            count = min(TILE_ROWS, rows - first)
            x = field(i, 9) + first * field(i, 10)
            for g in range(first_of(claimed), end_of(claimed)):
                tile_call(field(i, 4), field(i, 5) + g * field(i, 6), x, field(i, 8), scratch, count)
                finish_tile(i, g, first, count, scratch)
        claimed = claim(p, i, thread, threads, groups, most)


@kernel
def store_head(i, head, g, first, count, tile):
    """Columns 16 g .. 16 g + 15 of a head, or as many as it has, of rows ``first`` and on. Others write beside them."""
    out = field(i, 11) + first * field(i, 12) + head * field(i, 13) * 4 + g * 64
    left = field(i, 13) - 16 * g
    if left >= 16:
        store_tile(tile, count, out, field(i, 12), 0, 0)
        return
    for t in range(count):
        for k in range(left):
            write_f32(out + t * field(i, 12) + 4 * k, read_f32(tile + 64 * t + 4 * k))


@kernel
def matmul_heads(p, i, thread, threads, scratch):
    """2 tile of one row, 3 of many rows, 4 weights, 5 group bytes, 6 groups of a head, 7 heads, 8 blocks (or columns)
    of a head, 9 records (or columns of x), 10 bytes of one row of those of a head, 11 out, 12 out row bytes,
    13 columns of a head of out, 14 bytes of a thread's own copy of 9, if each has one."""
    rows, groups, size = rows_of(p, i), field(i, 6), field(i, 10)
    total = groups * field(i, 7)
    if rows == 1:
        x = field(i, 9) + own_copy(p, thread, field(i, 14))
        low, high = share(total, thread, threads)
        for n in range(low, high):
            one_call(field(i, 2), field(i, 4) + n * field(i, 5), x + n // groups * size, field(i, 8), scratch)
            store_head(i, n // groups, n % groups, 0, 1, scratch)
        return
    most = in_cache(field(i, 5))
    claimed = claim(p, i, thread, threads, total, most)
    while claimed != 0:
        for first in range(0, rows, TILE_ROWS):
            count = min(TILE_ROWS, rows - first)
            x = field(i, 9) + first * field(i, 7) * size
            for n in range(first_of(claimed), end_of(claimed)):
                here = x + n // groups * size * count
                tile_call(field(i, 3), field(i, 4) + n * field(i, 5), here, field(i, 8), scratch, count)
                store_head(i, n // groups, n % groups, first, count, scratch)
        claimed = claim(p, i, thread, threads, total, most)


@kernel
def piece(p, i, thread, threads):
    """2 x, 3 row bytes, 4 bytes from a head of x to the next (0: all take the same), 5 out, 6 out row bytes,
    7 bytes from a head of out to the next, 8 heads, 9 elements of each."""
    heads, count = field(i, 8), field(i, 9)
    low, high = share(rows_of(p, i) * heads, thread, threads)
    whole = count // 16 * 16
    for unit in range(low, high):
        t, head = unit // heads, unit % heads
        x = field(i, 2) + t * field(i, 3) + head * field(i, 4)
        out = field(i, 5) + t * field(i, 6) + head * field(i, 7)
        copy_row(x, out, whole)
        for k in range(whole, count):
            write_f32(out + 4 * k, read_f32(x + 4 * k))


@kernel
def gated_unit(i, source, u, first, count, single, scratch):
    """32 columns of ``count`` rows."""
    units, blocks = field(i, 11), field(i, 12)
    x = source + first * blocks * RECORD
    for half in range(2):
        gate = field(i, 7) + (2 * u + half) * field(i, 8)
        up = field(i, 9) + (2 * u + half) * field(i, 10)
        tiles = scratch + half * TILE_BYTES
        if not single:
            tile_call(field(i, 3), gate, x, blocks, tiles, count)
            tile_call(field(i, 5), up, x, blocks, tiles + SECOND, count)
        elif field(i, 6) != 0:
            two_call(field(i, 6), gate, up, x, blocks, tiles)
        else:
            one_call(field(i, 2), gate, x, blocks, tiles)
            one_call(field(i, 4), up, x, blocks, tiles + SECOND)
    records = field(i, 14) + (first * units + u * count) * RECORD
    gated_tile_call(field(i, 15), scratch, count, records)


@kernel
def gated(p, i, thread, threads, scratch):
    """2 gate tile of one row, 3 of many, 4 up tile of one row, 5 of many, 6 tile of one row for both at once or 0,
    7 gate, 8 gate group bytes, 9 up, 10 up group bytes, 11 units of 32 columns, 12 blocks, 13 records in,
    14 records out, 15 kernel of the activation, 16 whether each thread has its own copy of 13."""
    rows, units = rows_of(p, i), field(i, 11)
    most = in_cache(2 * (field(i, 8) + field(i, 10)))
    if rows == 1:
        low, high = share(units, thread, threads)
        x = field(i, 13)
        if field(i, 16) != 0:
            x += own_copy(p, thread, field(i, 12) * RECORD)
        for u in range(low, high):
            gated_unit(i, x, u, 0, 1, True, scratch)
        return
    claimed = claim(p, i, thread, threads, units, most)
    while claimed != 0:
        for first in range(0, rows, TILE_ROWS):
            for u in range(first_of(claimed), end_of(claimed)):
                gated_unit(i, field(i, 13), u, first, min(TILE_ROWS, rows - first), False, scratch)
        claimed = claim(p, i, thread, threads, units, most)


@kernel
def columns(p, i, thread, threads):
    """2 x, 3 row bytes, 4 width, 5 out: tiles of up to 16 rows as [column][row]."""
    rows, width = rows_of(p, i), field(i, 4)
    low, high = rows_to_make(p, i, thread, threads)
    out = field(i, 5) + own_copy(p, thread, width * 4)
    for t in range(low, high):
        first = t // TILE_ROWS * TILE_ROWS
        count = min(TILE_ROWS, rows - first)
        spread_row(field(i, 2) + t * field(i, 3), out + (first * width + t - first) * 4, width, count * 4)


@kernel
def gated_float(p, i, thread, threads):
    """2 gate, 3 up, 4 out, 5 row bytes, 6 width, 7 kernel of the activation."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 5)
        gated_row_call(field(i, 7), field(i, 2) + at, field(i, 3) + at, field(i, 4) + at, field(i, 6))


@kernel
def rope(p, i, thread, threads):
    """2 x (in place), 3 row bytes, 4 heads, 5 head width, 6 slot of the table, 7 half, 8 interleaved,
    9 norm weight or 0, 10 address of eps, 11 bytes of each head before the rotated elements."""
    heads, width = field(i, 4), field(i, 5)
    low, high = share(rows_of(p, i) * heads, thread, threads)
    table, half = field(p, field(i, 6)), field(i, 7)
    for unit in range(low, high):
        t = unit // heads
        x = field(i, 2) + t * field(i, 3) + (unit % heads) * width * 4
        if field(i, 9) != 0:
            norm_row(x, field(i, 9), x, width, read_f32(field(i, 10)))
        position = read_i64(field(p, tape.POSITIONS) + 8 * t)
        rope_row(x + field(i, 11), table + position * half * 8, half, field(i, 8))


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
def softcap(p, i, thread, threads):
    """Fields of ``scale``; 6 is the address of the cap."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 4)
        softcap_row(field(i, 2) + at, field(i, 3) + at, field(i, 5), read_f32(field(i, 6)))


@kernel
def gather(p, i, thread, threads):
    """2 x, 3 out, 4 row bytes, 5 width, 6 address of the row numbers."""
    low, high = share(field(p, tape.OUTPUT_ROWS), thread, threads)
    for t in range(low, high):
        source = read_i64(field(i, 6) + 8 * t)
        copy_row(field(i, 2) + source * field(i, 4), field(i, 3) + t * field(i, 4), field(i, 5))
