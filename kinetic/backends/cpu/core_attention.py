"""Storing keys and values, and attention over them, in Numba. Imported only by the build process."""

from __future__ import annotations

from numba import types as nt

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import CHUNK, TILE_ROWS, inline, kernel, rows_of, share, value_kernel
from kinetic.backends.cpu.core_work import claim, first_of
from kinetic.backends.cpu.emitted import extern, field, read_f32, read_i64, write_f32, write_i64

store_key = extern("store_key", "aaa")
store_value = extern("store_value", "aaa")
scale_row = extern("scale_row", "aaaf")
softcap_row = extern("softcap_row", "aaaf")
copy_row = extern("copy_row", "aaa")
scores_8, scores_4, scores_3, scores_2, scores_1 = (extern(f"scores_{r}", "aaaaaa") for r in (8, 4, 3, 2, 1))
values_8, values_4, values_3, values_2, values_1 = (extern(f"weighted_values_{r}", "aaaaaa") for r in (8, 4, 3, 2, 1))
softmax_row = extern("softmax_row", "aaaa")
merge_row = extern("merge_row", "aaaaa")
divide_row = extern("divide_row", "aaaa")

# Scratch of one attention unit: up to 16 query rows.
SCORES = 0
SUMS = SCORES + 16 * 1024  # this chunk's maximum and total, 8 bytes a row
STATE_SUMS = SUMS + 128
LOW, HIGH = STATE_SUMS + 128, STATE_SUMS + 256
STARTED = HIGH + 128
ROWS_AT = STARTED + 128  # scaled queries, then values of a chunk, then of all so far: 16 padded rows each


# A chunk computed by itself: maximum and total of each row, then 16 padded rows of values.
PART_VALUES = 128


@inline
def padded(width):
    """Elements of a row that holds ``width``: a multiple of 16."""
    return (width + 15) // 16 * 16


@inline
def part_bytes(i):
    return PART_VALUES + 16 * padded(field(i, 7)) * 4


@value_kernel
def page_in(table, position):
    return read_i64(table + 8 * (position // CHUNK))


@value_kernel
def page_of(p, t, position):
    return page_in(read_i64(field(p, tape.PAGES) + 8 * t), position)


@inline
def first_seen(p, row, window):
    """The first key that a row sees. ``window`` is that of the instruction."""
    position = read_i64(field(p, tape.POSITIONS) + 8 * row)
    if window < 0:
        return max(0, position + 1 + window)
    return max(0, position + 1 - window) if window != 0 else 0


@inline
def end_seen(p, row, window):
    """The key behind the last one that a row sees."""
    position = read_i64(field(p, tape.POSITIONS) + 8 * row)
    return min(read_i64(field(p, tape.ENDS) + 8 * row), position - window) if window < 0 else position + 1


@kernel
def bounds(p, row, heads, count, base, window, scratch):
    """Which lanes of the chunk at ``base`` each query row sees."""
    for r in range(count):
        write_i64(scratch + LOW + 8 * r, max(0, first_seen(p, row + r // heads, window) - base))
        write_i64(scratch + HIGH + 8 * r, min(CHUNK, end_seen(p, row + r // heads, window) - base))


@inline
def visible_range(scratch, count):
    """Smallest and largest lane that any row sees."""
    low, high = CHUNK, 0
    for r in range(count):
        row_low, row_high = read_i64(scratch + LOW + 8 * r), read_i64(scratch + HIGH + 8 * r)
        if row_high > row_low:
            low, high = min(low, row_low), max(high, row_high)
    return low, high


@inline
def together(left):
    """How many rows go together when ``left`` are left. With 6 or 7, one or two rows of nothing go along."""
    if left >= 6:
        return 8
    return 4 if left >= 4 else left


@kernel
def chunk_scores(scratch, queries, keys, width, count):
    stride = padded(width) * 4
    low, high = visible_range(scratch, count)
    first = low // 16
    tiles = (high + 15) // 16 - first
    start = keys + first * width * 32
    r = 0
    while r < count:
        q = queries + r * stride
        out = scratch + SCORES + 1024 * r + 64 * first
        group = together(count - r)
        if group == 8:
            scores_8(q, stride, start, width, tiles, out)
        elif group == 4:
            scores_4(q, stride, start, width, tiles, out)
        elif group == 3:
            scores_3(q, stride, start, width, tiles, out)
        elif group == 2:
            scores_2(q, stride, start, width, tiles, out)
        else:
            scores_1(q, stride, start, width, tiles, out)
        r += group


@kernel
def cap_scores(scratch, count, cap):
    """Scores of the keys that each row sees, and of some beside them that nobody reads. ``cap`` is an address."""
    for r in range(count):
        low, high = read_i64(scratch + LOW + 8 * r), read_i64(scratch + HIGH + 8 * r)
        if high > low:
            first = low // 16 * 16
            line = scratch + SCORES + 1024 * r + 4 * first
            softcap_row(line, line, high - first, read_f32(cap))


@kernel
def row_values(scratch, page_values, width, values, r, low, high):
    values_1(scratch + SCORES + 1024 * r, page_values, width, low, high - low, values + r * width * 4)


@kernel
def group_values(weights, page_values, width, low, count, out, group):
    if group == 8:
        values_8(weights, page_values, width, low, count, out)
    elif group == 4:
        values_4(weights, page_values, width, low, count, out)
    elif group == 3:
        values_3(weights, page_values, width, low, count, out)
    elif group == 2:
        values_2(weights, page_values, width, low, count, out)
    else:
        values_1(weights, page_values, width, low, count, out)


@kernel
def chunk_values(scratch, page_values, width, values, count):
    """Keys that all rows of a group see are taken together; the ragged ends row by row, in the order of keys.
    ``width`` is that of padded rows of values."""
    r = 0
    while r < count:
        group = together(count - r)
        real = min(group, count - r)
        low, high = 0, CHUNK
        for k in range(r, r + real):
            low = max(low, read_i64(scratch + LOW + 8 * k))
            high = min(high, read_i64(scratch + HIGH + 8 * k))
        shared = high > low
        for k in range(r, r + real):
            row_low, row_high = read_i64(scratch + LOW + 8 * k), read_i64(scratch + HIGH + 8 * k)
            end = low if shared else row_high
            if end > row_low:
                row_values(scratch, page_values, width, values, k, row_low, end)
        if shared:
            weights, out = scratch + SCORES + 1024 * r, values + r * width * 4
            group_values(weights, page_values, width, low, high - low, out, group)
            for k in range(r, r + real):
                row_high = read_i64(scratch + HIGH + 8 * k)
                if row_high > high:
                    row_values(scratch, page_values, width, values, k, high, row_high)
        r += group


@kernel
def scaled_queries(i, row, count, head, heads, scratch):
    width = field(i, 6)
    for r in range(count):
        at = (row + r // heads) * field(i, 3) + (head + r % heads) * width * 4
        scale_row(field(i, 2) + at, scratch + ROWS_AT + r * padded(width) * 4, width, read_f32(field(i, 10)))


@kernel
def attend_chunk(p, i, row, g, heads, count, chunk, scratch, values, sums):
    """One chunk: unscaled weighted values of ``count`` rows to ``values``, maximum and total to ``sums``."""
    width, wide = field(i, 6), padded(field(i, 7))
    page = page_of(p, row, chunk * CHUNK)
    bounds(p, row, heads, count, chunk * CHUNK, field(i, 11), scratch)
    chunk_scores(scratch, scratch + ROWS_AT, page + field(i, 8) + g * CHUNK * width * 2, width, count)
    if read_f32(field(i, 10) + 4) != 0:
        cap_scores(scratch, count, field(i, 10) + 4)
    for r in range(count):
        low, high = read_i64(scratch + LOW + 8 * r), read_i64(scratch + HIGH + 8 * r)
        copy_row(0, values + r * wide * 4, wide)
        if high > low:
            softmax_row(scratch + SCORES + 1024 * r, low, high, sums + 8 * r)
    chunk_values(scratch, page + field(i, 9) + g * CHUNK * wide * 2, wide, values, count)


@kernel
def merge_chunk(scratch, values, sums, state, wide, count):
    """The first chunk that a row sees starts its state; later ones are merged in order."""
    for r in range(count):
        if read_i64(scratch + HIGH + 8 * r) <= read_i64(scratch + LOW + 8 * r):
            continue
        at = r * wide * 4
        total = scratch + STATE_SUMS + 8 * r
        if read_i64(scratch + STARTED + 8 * r) == 0:
            write_i64(scratch + STARTED + 8 * r, 1)
            copy_row(values + at, state + at, wide)
            write_i64(total, read_i64(sums + 8 * r))
        else:
            merge_row(state + at, total, values + at, sums + 8 * r, wide)


@kernel
def start_rows(scratch, count):
    for r in range(count):
        write_i64(scratch + STARTED + 8 * r, 0)


@kernel
def merge_sinks(i, count, head, heads, state, spare, scratch):
    """Merges the sink of each row's head, a chunk of one key whose value is zeros. ``spare`` holds a row of values."""
    wide, sink = padded(field(i, 7)), scratch + SUMS
    copy_row(0, spare, wide)
    for r in range(count):
        write_f32(sink, read_f32(field(i, 15) + 4 * (head + r % heads)))
        write_f32(sink + 4, nt.float32(1))
        merge_row(state + r * wide * 4, scratch + STATE_SUMS + 8 * r, spare, sink, wide)


@kernel
def finish_rows(i, row, count, head, heads, state, scratch):
    width = field(i, 7)
    for r in range(count):
        at = (row + r // heads) * field(i, 13) + (head + r % heads) * width * 4
        divide_row(state + r * padded(width) * 4, scratch + STATE_SUMS + 8 * r, field(i, 12) + at, width)


@inline
def first_chunk(p, row, window):
    return first_seen(p, row, window) // CHUNK


@inline
def last_chunk(p, row, rows, window):
    return (end_seen(p, row + rows - 1, window) - 1) // CHUNK


@kernel
def attend_block(p, i, row, rows, g, head, heads, scratch):
    """``rows`` consecutive positions x ``heads`` query heads (at most 16 together) over all their keys."""
    wide, count = padded(field(i, 7)), rows * heads
    values = scratch + ROWS_AT + 16 * padded(field(i, 6)) * 4
    state = values + 16 * wide * 4
    scaled_queries(i, row, count, head, heads, scratch)
    start_rows(scratch, count)
    for chunk in range(first_chunk(p, row, field(i, 11)), last_chunk(p, row, rows, field(i, 11)) + 1):
        attend_chunk(p, i, row, g, heads, count, chunk, scratch, values, scratch + SUMS)
        merge_chunk(scratch, values, scratch + SUMS, state, wide, count)
    if field(i, 15) != 0:
        merge_sinks(i, count, head, heads, state, values, scratch)
    finish_rows(i, row, count, head, heads, state, scratch)


@kernel
def merge_block(p, i, row, rows, g, head, heads, scratch, parts):
    """The rest of ``attend_block`` when every chunk was computed on its own: ``parts`` holds them."""
    wide, count = padded(field(i, 7)), rows * heads
    state = scratch + ROWS_AT
    start_rows(scratch, count)
    for chunk in range(first_chunk(p, row, field(i, 11)), last_chunk(p, row, rows, field(i, 11)) + 1):
        part = parts + chunk * part_bytes(i)
        bounds(p, row, heads, count, chunk * CHUNK, field(i, 11), scratch)
        merge_chunk(scratch, part + PART_VALUES, part, state, wide, count)
    if field(i, 15) != 0:
        merge_sinks(i, count, head, heads, state, state + 16 * wide * 4, scratch)
    finish_rows(i, row, count, head, heads, state, scratch)


@inline
def block_of(p, i, unit):
    """First row and rows, key/value head, first query head and query heads of a unit of attention."""
    kv_heads = field(i, 5)
    group = field(i, 4) // kv_heads
    slices = (group + TILE_ROWS - 1) // TILE_ROWS
    block, rest = unit // (kv_heads * slices), unit % (kv_heads * slices)
    g, first = rest // slices, rest % slices * TILE_ROWS
    place = field(p, field(i, 14)) + 16 * block
    return read_i64(place), read_i64(place + 8), g, g * group + first, min(TILE_ROWS, group - first)


@inline
def units_of(p, i):
    kv_heads = field(i, 5)
    return field(p, field(i, 14) + 1) * kv_heads * ((field(i, 4) // kv_heads + TILE_ROWS - 1) // TILE_ROWS)


@kernel
def attend(p, i, thread, threads, scratch):
    """2 q, 3 row bytes, 4 heads, 5 key/value heads, 6 width of a key, 7 of a value, 8 keys' offset, 9 values',
    10 address of the scale and the cap (0: none), 11 window or 0, 12 out, 13 out row bytes, 14 slot of the blocks,
    15 sinks or 0.

    A window of 0 is none. Below 0 rows see both ways: -1 - n means n keys to either side.

    With CHUNKS in the program table only chunks are computed here, each by itself, so that even a single row
    has work for every thread; ``attend_merge`` does the rest."""
    units, chunks = units_of(p, i), field(p, tape.CHUNKS)
    if chunks == 0:
        claimed = claim(p, i, thread, threads, units, 1)
        while claimed != 0:
            row, rows, g, head, heads = block_of(p, i, first_of(claimed))
            attend_block(p, i, row, rows, g, head, heads, scratch)
            claimed = claim(p, i, thread, threads, units, 1)
        return
    size = part_bytes(i)
    for part in range(thread, units * chunks, threads):
        chunk = part % chunks
        row, rows, g, head, heads = block_of(p, i, part // chunks)
        if first_chunk(p, row, field(i, 11)) <= chunk <= last_chunk(p, row, rows, field(i, 11)):
            scaled_queries(i, row, rows * heads, head, heads, scratch)
            place = field(p, tape.PARTS) + part * size
            attend_chunk(p, i, row, g, heads, rows * heads, chunk, scratch, place + PART_VALUES, place)


@kernel
def attend_merge(p, i, thread, threads, scratch):
    """Fields of ``attend``."""
    chunks = field(p, tape.CHUNKS)
    if chunks == 0:
        return
    low, high = share(units_of(p, i), thread, threads)
    for unit in range(low, high):
        row, rows, g, head, heads = block_of(p, i, unit)
        parts = field(p, tape.PARTS) + unit * chunks * part_bytes(i)
        merge_block(p, i, row, rows, g, head, heads, scratch, parts)


@kernel
def store_pair(i, t, g, page, slot):
    width, wide = field(i, 6), field(i, 7)
    keys = page + field(i, 8) + g * CHUNK * width * 2
    store_key(field(i, 2) + t * field(i, 4) + g * width * 4, keys + slot // 16 * width * 32 + slot % 16 * 2, width)
    values = page + field(i, 9) + (g * CHUNK + slot) * padded(wide) * 2
    store_value(field(i, 3) + t * field(i, 10) + g * wide * 4, values, wide)


@kernel
def store(p, i, thread, threads):
    """2 k, 3 v, 4 row bytes of k, 5 key/value heads, 6 width of a key, 7 of a value, 8 keys' offset in a page,
    9 values', 10 row bytes of v."""
    heads = field(i, 5)
    low, high = share(rows_of(p, i) * heads, thread, threads)
    for unit in range(low, high):
        t, g = unit // heads, unit % heads
        position = read_i64(field(p, tape.POSITIONS) + 8 * t)
        store_pair(i, t, g, page_of(p, t, position), position % CHUNK)
        more = read_i64(field(p, tape.ALSO) + 8 * t)
        while more != 0 and read_i64(more) != 0:
            store_pair(i, t, g, page_in(read_i64(more), position), position % CHUNK)
            more += 8
