"""The instructions of the tape apart from attention, in Numba. Imported only by the build process."""

from __future__ import annotations

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import TILE_ROWS, inline, kernel, rows_of, share
from kinetic.backends.cpu.emitted import extern, field, pointer_call, read_f32, read_i64
from kinetic.backends.cpu.functions import RECORD

norm_row = extern("norm_row", "aaaaf")
quantise_row = extern("quantise_row", "aaaa")
store_tile = extern("store_tile", "aaaaaa")
gated_tile_silu = extern("gated_tile_silu", "aaa")
gated_tile_gelu = extern("gated_tile_gelu", "aaa")
gated_row_silu = extern("gated_row_silu", "aaaa")
gated_row_gelu = extern("gated_row_gelu", "aaaa")
rope_row = extern("rope_row", "aaaa")
add_rows = extern("add_rows", "aaaa")
scale_row = extern("scale_row", "aaaf")
copy_row = extern("copy_row", "aaa")
tile_call = pointer_call(5)
float_tile_call = pointer_call(6)

TILE_BYTES = 1024


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
    """2 x, 3 row bytes, 4 weight, 5 group width, 6 out, 7 out row bytes, 8 address of eps, 9 groups,
    10 residual or 0."""
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
    9 up group bytes, 10 units of 32 columns, 11 blocks, 12 records in, 13 records out,
    14 activation (0 SiLU, 1 GELU)."""
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
