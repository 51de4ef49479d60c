"""The instructions of a mixture of experts, in Numba. Imported only by the build process.

``assign`` (core_routes) has put the slots of each expert at positions that follow one another; up to 16 of one expert
are a tile. A unit is some columns of one expert, and passes all of its tiles: so each weight is read once.
"""

from __future__ import annotations

from kinetic.backends.cpu import expert_fields as fields
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import TILE_ROWS, inline, kernel, rows_of, share
from kinetic.backends.cpu.core_ops import SECOND, TILE_BYTES, WEIGHTS_NEAR
from kinetic.backends.cpu.core_routes import expert_of
from kinetic.backends.cpu.core_work import claim, end_of, first_of
from kinetic.backends.cpu.emitted import extern, field, pointer_call, read_f32, read_i64
from kinetic.backends.cpu.functions import RECORD

quantise_row = extern("quantise_row", "aaaa")
spread_row = extern("spread_row", "aaaa")
store_tile = extern("store_tile", "aaaaaa")
add_rows = extern("add_rows", "aaaa")
scale_row = extern("scale_row", "aaaf")
copy_row = extern("copy_row", "aaa")
one_call, two_call, tile_call = pointer_call(4), pointer_call(5), pointer_call(5)
gated_tile_call, gated_row_call = pointer_call(3), pointer_call(4)


@inline
def is_alone(p, i):
    """Whether this is a pass of one row, of which every thread makes its own inputs."""
    return field(p, tape.MODE) & tape.ONE_ROW != 0 and rows_of(p, i) == 1


@inline
def used_experts(d):
    return read_i64(field(d, fields.TABLE))


@inline
def used_expert(d, a, word):
    """Of the a-th expert in use: 0 its number, 1 first position, 2 last + 1."""
    return read_i64(field(d, fields.TABLE) + 8 * (1 + field(d, fields.EXPERTS) + 3 * a + word))


@inline
def order_of(d):
    """Address of the slots by position."""
    return field(d, fields.TABLE) + 8 * (1 + 4 * field(d, fields.EXPERTS))


@inline
def place_of(d, rows, slot):
    """The position of a slot."""
    return read_i64(order_of(d) + 8 * (rows * field(d, fields.USED) + slot))


@inline
def weight_of(d, slot):
    """Address of a slot's weight."""
    used = field(d, fields.USED)
    return field(d, fields.ROUTES) + slot // used * field(d, fields.ROUTE_BYTES) + 4 * (used + slot % used)


@inline
def row_bytes(d, size, is_float):
    """Bytes of one row of inputs of a product, by the word of its size and that of its kind."""
    return field(d, size) * (4 if field(d, is_float) != 0 else RECORD)


@inline
def bias_of(d, word, expert, g):
    """Address of a bias of columns 16 g and on of an expert, by its word; 0 where there is none."""
    base = field(d, word)
    return base + expert * field(d, word + 1) + 64 * g if base != 0 else 0


@kernel
def expert_input(p, i, thread, threads):
    """2 description. Records or columns of the rows of x, as positions ask for."""
    d, width = field(i, 2), field(field(i, 2), fields.WIDTH)
    blocks, used = width // 32, field(d, fields.USED)
    records, columns = field(d, fields.RECORDS), field(d, fields.COLUMNS)
    if is_alone(p, i):
        x = field(d, fields.INPUT)
        if records != 0:
            quantise_row(x, records + thread * blocks * RECORD, blocks, RECORD)
        if columns != 0:
            spread_row(x, columns + thread * width * 4, width, 4)
        return
    low, high = share(rows_of(p, i) * used, thread, threads)
    for a in range(used_experts(d)):
        begin, end = used_expert(d, a, 1), used_expert(d, a, 2)
        for j in range(max(begin, low), min(end, high)):
            first = begin + (j - begin) // TILE_ROWS * TILE_ROWS
            count = min(TILE_ROWS, end - first)
            x = field(d, fields.INPUT) + read_i64(order_of(d) + 8 * j) // used * field(d, fields.INPUT_BYTES)
            if records != 0:
                quantise_row(x, records + (first * blocks + j - first) * RECORD, blocks, count * RECORD)
            if columns != 0:
                spread_row(x, columns + (first * width + j - first) * 4, width, count * 4)


@kernel
def gate_and_up(d, expert, g, first, count, tiles):
    """Columns 16 g .. 16 g + 15 of both products of a tile. ``first`` is what rows of inputs lie before it."""
    gate = field(d, fields.GATE) + expert * field(d, fields.GATE_MATRIX) + g * field(d, fields.GATE_GROUP)
    up = field(d, fields.UP) + expert * field(d, fields.UP_MATRIX) + g * field(d, fields.UP_GROUP)
    x = field(d, fields.COLUMNS if field(d, fields.GATE_IS_FLOAT) != 0 else fields.RECORDS)
    x += first * row_bytes(d, fields.GATE_SIZE, fields.GATE_IS_FLOAT)
    other = field(d, fields.COLUMNS if field(d, fields.UP_IS_FLOAT) != 0 else fields.RECORDS)
    other += first * row_bytes(d, fields.UP_SIZE, fields.UP_IS_FLOAT)
    if count > 1:
        tile_call(field(d, fields.GATE_MANY), gate, x, field(d, fields.GATE_SIZE), tiles, count)
        tile_call(field(d, fields.UP_MANY), up, other, field(d, fields.UP_SIZE), tiles + SECOND, count)
    elif field(d, fields.GATE_AND_UP) != 0:
        two_call(field(d, fields.GATE_AND_UP), gate, up, x, field(d, fields.GATE_SIZE), tiles)
    else:
        one_call(field(d, fields.GATE_ONE), gate, x, field(d, fields.GATE_SIZE), tiles)
        one_call(field(d, fields.UP_ONE), up, other, field(d, fields.UP_SIZE), tiles + SECOND)
    if field(d, fields.GATE_BIAS) != 0:
        store_tile(tiles, count, tiles, 64, bias_of(d, fields.GATE_BIAS, expert, g), 0)
    if field(d, fields.UP_BIAS) != 0:
        store_tile(tiles + SECOND, count, tiles + SECOND, 64, bias_of(d, fields.UP_BIAS, expert, g), 0)


@kernel
def hidden_columns(d, g, first, count, tiles):
    """The activation of a tile, as columns."""
    width = field(d, fields.HIDDEN_WIDTH)
    gated_row_call(field(d, fields.GATED_ROW), tiles, tiles + SECOND, tiles, 16 * count)
    for t in range(count):
        out = field(d, fields.HIDDEN) + (first * width + 16 * g * count + t) * 4
        spread_row(tiles + 64 * t, out, min(16, width - 16 * g), 4 * count)


@kernel
def hidden_unit(d, expert, u, inputs, first, count, scratch):
    """32 columns of a tile that begins at position ``first``; ``inputs`` are the rows of inputs before its own."""
    width = field(d, fields.HIDDEN_WIDTH)
    is_float = field(d, fields.DOWN_IS_FLOAT) != 0
    for half in range(2):
        g, tiles = 2 * u + half, scratch + half * TILE_BYTES
        if 16 * g < width:
            gate_and_up(d, expert, g, inputs, count, tiles)
            if is_float:
                hidden_columns(d, g, first, count, tiles)
    if not is_float:
        records = field(d, fields.HIDDEN) + (first * (width // 32) + u * count) * RECORD
        gated_tile_call(field(d, fields.GATED_TILE), scratch, count, records)


@kernel
def expert_hidden(p, i, thread, threads, scratch):
    """2 description. What is between the products, of every position."""
    d = field(i, 2)
    units = (field(d, fields.HIDDEN_WIDTH) + 31) // 32
    total = used_experts(d) * units
    if is_alone(p, i):
        low, high = share(total, thread, threads)
        for n in range(low, high):
            hidden_unit(d, used_expert(d, n // units, 0), n % units, thread, n // units, 1, scratch)
        return
    most = max(1, WEIGHTS_NEAR // (2 * (field(d, fields.GATE_GROUP) + field(d, fields.UP_GROUP))))
    claimed = claim(p, i, thread, threads, total, most)
    while claimed != 0:
        for n in range(first_of(claimed), end_of(claimed)):
            a = n // units
            end = used_expert(d, a, 2)
            for first in range(used_expert(d, a, 1), end, TILE_ROWS):
                count = min(TILE_ROWS, end - first)
                hidden_unit(d, used_expert(d, a, 0), n % units, first, first, count, scratch)
        claimed = claim(p, i, thread, threads, total, most)


@inline
def down_weights(d, expert, g):
    return field(d, fields.DOWN) + expert * field(d, fields.DOWN_MATRIX) + g * field(d, fields.DOWN_GROUP)


@inline
def hidden_of(d, first):
    """What is between the products, from a tile's first position on."""
    return field(d, fields.HIDDEN) + first * row_bytes(d, fields.DOWN_SIZE, fields.DOWN_IS_FLOAT)


@kernel
def add_weighted(d, rank, g, tile):
    """Adds columns 16 g .. 16 g + 15 of one expert to those of the single row, or begins with them."""
    out = field(d, fields.OUT) + 64 * g
    if field(d, fields.DOWN_BIAS) != 0:
        store_tile(tile, 1, tile, 64, bias_of(d, fields.DOWN_BIAS, expert_of(d, rank), g), 0)
    scale_row(tile, tile, 16, read_f32(weight_of(d, rank)))
    if rank == 0:
        copy_row(tile, out, 16)
    else:
        add_rows(out, tile, out, 16)


@kernel
def down_row(d, low, high, scratch):
    """The groups low .. high - 1 of the sum for a single row, as two streams of weights of each expert."""
    half = (high - low + 1) // 2
    size = field(d, fields.DOWN_SIZE)
    for rank in range(field(d, fields.USED)):
        x = hidden_of(d, place_of(d, 1, rank))
        for k in range(half):
            weights = down_weights(d, expert_of(d, rank), low + k)
            if low + half + k < high:
                other = weights + half * field(d, fields.DOWN_GROUP)
                two_call(field(d, fields.DOWN_TWO), weights, other, x, size, scratch)
                add_weighted(d, rank, low + half + k, scratch + SECOND)
            else:
                one_call(field(d, fields.DOWN_ONE), weights, x, size, scratch)
            add_weighted(d, rank, low + k, scratch)


@kernel
def down_unit(d, a, g, scratch):
    """Columns 16 g .. 16 g + 15 of all tiles of the a-th expert in use."""
    end, stride, size = used_expert(d, a, 2), field(d, fields.MADE_BYTES), field(d, fields.DOWN_SIZE)
    weights = down_weights(d, used_expert(d, a, 0), g)
    bias = bias_of(d, fields.DOWN_BIAS, used_expert(d, a, 0), g)
    for first in range(used_expert(d, a, 1), end, TILE_ROWS):
        count = min(TILE_ROWS, end - first)
        if count > 1:
            tile_call(field(d, fields.DOWN_MANY), weights, hidden_of(d, first), size, scratch, count)
        else:
            one_call(field(d, fields.DOWN_ONE), weights, hidden_of(d, first), size, scratch)
        store_tile(scratch, count, field(d, fields.MADE) + first * stride + 64 * g, stride, bias, 0)


@kernel
def expert_down(p, i, thread, threads, scratch):
    """2 description. The last products of every position; of a single row their weighted sum."""
    d = field(i, 2)
    groups = (field(d, fields.OUT_WIDTH) + 15) // 16
    if is_alone(p, i):
        low, high = share(groups, thread, threads)
        down_row(d, low, high, scratch)
        return
    total = used_experts(d) * groups
    most = max(1, WEIGHTS_NEAR // field(d, fields.DOWN_GROUP))
    claimed = claim(p, i, thread, threads, total, most)
    while claimed != 0:
        for n in range(first_of(claimed), end_of(claimed)):
            down_unit(d, n // groups, n % groups, scratch)
        claimed = claim(p, i, thread, threads, total, most)


@kernel
def expert_sum(p, i, thread, threads):
    """2 description. Weighted sums of what the experts of each row have made, in the order of their ranks."""
    if is_alone(p, i):
        return
    d, rows = field(i, 2), rows_of(p, i)
    used, width = field(d, fields.USED), field(d, fields.OUT_WIDTH)
    low, high = share(rows, thread, threads)
    for t in range(low, high):
        out = field(d, fields.OUT) + t * field(d, fields.OUT_BYTES)
        for rank in range(used):
            slot = t * used + rank
            made = field(d, fields.MADE) + place_of(d, rows, slot) * field(d, fields.MADE_BYTES)
            scale_row(made, made if rank > 0 else out, width, read_f32(weight_of(d, slot)))
            if rank > 0:
                add_rows(out, made, out, width)
