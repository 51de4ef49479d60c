"""Storing keys and values, and attention over them, in Numba. Imported only by the build process."""

from __future__ import annotations

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import CHUNK, TILE_ROWS, inline, kernel, rows_of, share, value_kernel
from kinetic.backends.cpu.emitted import extern, field, read_f32, read_i64, write_f32, write_i64

store_key = extern("store_key", "aaa")
store_value = extern("store_value", "aaa")
scale_row = extern("scale_row", "aaaf")
copy_row = extern("copy_row", "aaa")
scores_1, scores_2, scores_4 = (extern(f"scores_{r}", "aaaaaa") for r in (1, 2, 4))
weighted_values_1, weighted_values_2, weighted_values_4 = (extern(f"weighted_values_{r}", "aaaaaa") for r in (1, 2, 4))
softmax_row = extern("softmax_row", "aaaa")
merge_row = extern("merge_row", "aaaaa")
divide_row = extern("divide_row", "aaaa")

# Scratch of one attention unit: up to 16 query rows.
SCORES = 0
SUMS = SCORES + 16 * 1024  # this chunk's maximum and total, 8 bytes a row
STATE_SUMS = SUMS + 128
LOW, HIGH = STATE_SUMS + 128, STATE_SUMS + 256
STARTED = HIGH + 128
ROWS_AT = STARTED + 128  # scaled queries, then chunk values, then state values: 16 padded rows each


@value_kernel
def page_of(p, t, position):
    return read_i64(read_i64(field(p, tape.PAGES) + 8 * t) + 8 * (position // CHUNK))


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
