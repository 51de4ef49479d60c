"""Tile kernels: 16 output rows of a packed weight times rows of activations.

    tile_F_one(weights, x, size, out)             one row; out float32 [16]
    tile_F_two(weights, others, x, size, out)     one row, two groups of weights; out float32 [16], twice SECOND apart
    tile_F(weights, x, size, out, rows)           1 to 16 rows; out float32 [rows, 16]

``x`` are records [block][row] of 64 bytes each (``functions.RECORD``) and
``size`` counts blocks; for float formats ``x`` is float32 [column][row] and
``size`` counts columns (``float_tiles``).

One row streams all weights through once, so memory decides: two streams at a
time are read faster than one. Of many rows the arithmetic decides: unpacked
weights stay in registers while the rows pass by, and so do the sums of a chunk
where there are 32 registers; else those stand in memory, one vector a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from kinetic.backends.base import BLOCK
from kinetic.backends.cpu import dots
from kinetic.backends.cpu.codes import codes, joined
from kinetic.backends.cpu.functions import REC_D, REC_DSUM, REC_HALVES32, RECORD
from kinetic.backends.cpu.ir import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    VOID,
    Builder,
    Loop,
    Value,
    fetch,
    fma,
    function,
    i64,
    like,
    load,
    load_splat,
    loop,
    minimum,
    store,
    vec,
)
from kinetic.backends.cpu.layout import (
    BLOCKS,
    GROUP,
    LINE,
    NIBBLES,
    TILE,
    chunk_header,
    has_header,
    quant_bytes,
    scale_bytes,
    served,
)
from kinetic.formats import Format

ROW = 4 * GROUP  # bytes of one float32 row of a tile


class Scales(NamedTuple):
    """Float32 vectors of one block.

    ``d``, and ``d2`` of the second half where it has its own; ``m`` or None; factors of the two halves or None;
    those of m or None, divided by -32 as the sums in a record are multiplied by it.
    """

    d: Value
    d2: Value | None = None
    m: Value | None = None
    halves: tuple[Value, Value] | None = None
    minimums: tuple[Value, Value] | None = None


ONE, TWO, MANY = "_one", "_two", ""
"""The kernels of a format, as their names end."""

SECOND = 2 * ROW * TILE
"""Bytes between the results of two groups."""


def tile_name(fmt: Format, kind: str) -> str:
    return f"tile_{fmt.NAME.lower()}{kind}"


class Stream:
    """How the chunks of a group are read: pointers that move from one to the next."""

    suffix = ""
    """In the names of its kernels."""

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt

    def begin(self, b: Builder, group: Value) -> list[Value]:
        return [group]

    def block(self, b: Builder, pointers: Sequence[Value], index: Value) -> Block:
        """The block of this number in the chunk."""
        return _block(b, self.fmt, pointers[0], index)

    def next(self, b: Builder, pointers: Sequence[Value], n: Value) -> list[Value]:
        """Behind a chunk of ``n`` blocks."""
        return [b.add(pointers[0], _chunk_bytes(b, self.fmt, n))]


class Chunk(NamedTuple):
    stream: Stream
    pointers: Sequence[Value]

    def block(self, b: Builder, index: Value) -> Block:
        return self.stream.block(b, self.pointers, index)


def emit(module: ir.Module, fmt: Format, isa: str, stream: Stream | None = None) -> None:
    """The three kernels of a quantised format."""
    stream = stream or Stream(fmt)
    _row(module, stream, isa, ONE)
    _row(module, stream, isa, TWO)
    _many(module, stream, isa)


def _row(module: ir.Module, stream: Stream, isa: str, kind: str) -> None:
    """One row with one or two groups of weights."""
    name = tile_name(stream.fmt, stream.suffix + kind)
    b, (*weights, records, blocks, out) = function(module, name, "aaaa" if kind == ONE else "aaaaa")
    zero_groups(b, out, len(weights))
    begins = [stream.begin(b, group) for group in weights]
    count = len(begins[0])
    chunks = Loop(b, _chunks(b, blocks), [*(pointer for pointers in begins for pointer in pointers), records])
    *places, x = chunks.values
    n = _blocks_of(b, blocks, chunks.i)
    groups = [Chunk(stream, places[at : at + count]) for at in range(0, len(places), count)]
    _chunk_in_registers(b, stream.fmt, isa, groups, x, n, 1, out)
    moved = [pointer for group in groups for pointer in stream.next(b, group.pointers, n)]
    chunks.end([*moved, b.add(x, b.mul(n, i64(RECORD)))])
    b.ret_void()


def _many(module: ir.Module, stream: Stream, isa: str) -> None:
    fmt = stream.fmt
    b, (weights, records, blocks, out, rows) = function(module, tile_name(fmt, stream.suffix + MANY), "aaaaa")
    partial = b.ptrtoint(b.alloca(vec(F32, GROUP * TILE)), I64)
    zero_rows(b, out, rows)
    chunks = Loop(b, _chunks(b, blocks), [*stream.begin(b, weights), records])
    *pointers, x = chunks.values
    w = Chunk(stream, pointers)
    n = _blocks_of(b, blocks, chunks.i)
    if isa in REGISTERS_FOR_TILE:
        with b.if_else(b.icmp_signed("==", rows, i64(TILE))) as (whole, part):
            with whole:
                _chunk_in_registers(b, fmt, isa, [w], x, n, TILE, out)
            with part:
                _chunk_in_memory(b, fmt, isa, w, x, n, rows, partial, out)
    else:
        _chunk_in_memory(b, fmt, isa, w, x, n, rows, partial, out)
    chunks.end([*stream.next(b, pointers, n), b.add(x, b.mul(b.mul(n, rows), i64(RECORD)))])
    b.ret_void()


def _chunks(b: Builder, blocks: Value) -> Value:
    return b.ashr(b.add(blocks, i64(BLOCKS - 1)), i64(3))


def _blocks_of(b: Builder, blocks: Value, chunk: Value) -> Value:
    """Blocks of a chunk: 8, or fewer in the last."""
    return minimum(b, i64(BLOCKS), b.sub(blocks, b.mul(chunk, i64(BLOCKS))))


REGISTERS_FOR_TILE = ("vnni512", "vnni256")
"""Instruction sets with registers for the sums of 16 rows beside a block of weights."""


class Block(NamedTuple):
    """Addresses of a block in a chunk: where the chunk begins, the block's scales, its integers; their upper halves
    where those lie apart."""

    chunk: Value
    scales: Value
    quants: Value
    upper: Value | None = None


def _block(b: Builder, fmt: Format, chunk: Value, index: Value) -> Block:
    """As ``layout`` has it."""
    size, first = quant_bytes(fmt), b.add(chunk, i64(chunk_header(fmt)))
    if not scale_bytes(fmt):
        return Block(chunk, chunk, b.add(first, b.mul(index, i64(size))))
    count = served(fmt)
    line = b.add(first, b.mul(b.ashr(index, i64(count.bit_length() - 1)), i64(LINE + count * size)))
    number = b.and_(index, i64(count - 1))
    return Block(
        chunk,
        b.add(line, _scale_offset(b, fmt, number)),
        b.add(b.add(line, i64(LINE)), b.mul(number, i64(size))),
    )


def _scale_offset(b: Builder, fmt: Format, number: Value) -> Value:
    """``layout.scale_offset`` of a number known when the kernel runs."""
    if fmt.SCALES != "block":
        return b.mul(number, i64(scale_bytes(fmt)))
    shared = fmt.BLOCK // BLOCK  # blocks of 32 that have one entry
    entry = b.ashr(number, i64(shared.bit_length() - 1))
    return b.mul(entry, i64(scale_bytes(fmt) * shared))


def _chunk_bytes(b: Builder, fmt: Format, n: Value) -> Value:
    """Bytes of a chunk of n blocks."""
    size = b.add(b.mul(n, i64(quant_bytes(fmt))), i64(chunk_header(fmt)))
    if not scale_bytes(fmt):
        return size
    shift = served(fmt).bit_length() - 1
    lines = b.ashr(b.add(n, i64(served(fmt) - 1)), i64(shift))
    return b.add(size, b.mul(lines, i64(LINE)))


def _chunk_in_registers(
    b: Builder, fmt: Format, isa: str, chunks: Sequence[Chunk], x: Value, n: Value, rows: int, out: Value
) -> None:
    """Adds one chunk to ``out``: of one group of weights for ``rows`` rows, or of several groups for one row."""
    lanes = dots.LANES[isa]
    floats = vec(F32, lanes)
    halves = range(GROUP // lanes)
    # Parts of the 16 output rows whose sums are held at a time.
    for parts in [halves] if rows == 1 else [[half] for half in halves]:
        body = Loop(b, n, [like(floats, 0)] * (rows * len(chunks) * len(parts)) + [x])
        record = body.values[-1]
        sums: list[Value] = []
        places: list[int] = []
        for number, chunk in enumerate(chunks):
            block = chunk.block(b, body.i)
            if rows == 1:
                _fetch_ahead(b, fmt, block)
            for part in parts:
                words, scales = _unpack(b, isa, fmt, block, part, lanes), _scales(b, fmt, block, part, lanes)
                for row in range(rows):
                    before = body.values[len(sums)]
                    places.append(SECOND * number + ROW * row + 4 * lanes * part)
                    sums.append(_accumulate(b, fmt, isa, words, scales, b.add(record, i64(RECORD * row)), before))
                    if row % 2 == 1:
                        keep_order(b)
        partial = body.end([*sums, b.add(record, i64(RECORD * rows))])
        for at, value in zip(places, partial, strict=False):
            store(b, b.fadd(load(b, out, at, floats, 16), value), out, at, 16)


AHEAD = 768
"""Bytes ahead of the weights in use that are asked for, into the second level of caches."""


def _fetch_ahead(b: Builder, fmt: Format, block: Block) -> None:
    size = quant_bytes(fmt) - (0 if block.upper is None else NIBBLES)
    for offset in range(0, size + scale_bytes(fmt), LINE):
        fetch(b, b.add(block.quants, i64(AHEAD + offset)))
    for offset in range(0, 0 if block.upper is None else NIBBLES, LINE):
        fetch(b, b.add(block.upper, i64(AHEAD + offset)))


def keep_order(b: Builder) -> None:
    """No load may move across this point: the compiler would do those of all rows first and run out of registers."""
    b.call(ir.InlineAsm(ir.FunctionType(VOID, []), "", "~{memory}", side_effect=True), [])


def _chunk_in_memory(
    b: Builder, fmt: Format, isa: str, chunk: Chunk, x: Value, n: Value, rows: Value, partial: Value, out: Value
) -> None:
    """The same for any number of rows; ``partial`` float32 [rows, 16] holds the sums."""
    lanes = dots.LANES[isa]
    zero_rows(b, partial, rows)
    body = Loop(b, n, [x])
    (records,) = body.values
    place = chunk.block(b, body.i)
    for part in range(GROUP // lanes):
        words, scales = _unpack(b, isa, fmt, place, part, lanes), _scales(b, fmt, place, part, lanes)
        inner = Loop(b, rows, [records, b.add(partial, i64(4 * lanes * part))])
        record, at = inner.values
        before = load(b, at, 0, vec(F32, lanes), 16)
        store(b, _accumulate(b, fmt, isa, words, scales, record, before), at, 0, 16)
        inner.end([b.add(record, i64(RECORD)), b.add(at, i64(ROW))])
    body.end([b.add(records, b.mul(rows, i64(RECORD)))])
    _add_rows(b, out, partial, rows)


def _accumulate(
    b: Builder, fmt: Format, isa: str, words: list[Value], scales: Scales, record: Value, before: Value
) -> Value:
    """``before`` plus one block: the fused steps of docs/NUMERICS.md."""
    lanes = dots.LANES[isa]
    floats = vec(F32, lanes)
    dx = load_splat(b, record, REC_D, F32, lanes)
    if scales.halves is None and scales.d2 is None:
        dot = b.sitofp(dots.block_dot(b, isa, fmt, words, record), floats)
        total = fma(b, dot, b.fmul(scales.d, dx), before)
    else:
        low, high = (b.sitofp(part, floats) for part in dots.half_dots(b, isa, fmt, words, record))
        if scales.halves is None:
            total = fma(b, low, b.fmul(scales.d, dx), before)
            total = fma(b, high, b.fmul(scales.d2, dx), total)
        else:
            # Both products and their sum are integers below 2^24, so these float operations are exact.
            dot = fma(b, low, scales.halves[0], b.fmul(high, scales.halves[1]))
            total = fma(b, dot, b.fmul(scales.d, dx), before)
    if scales.m is None:
        return total
    if scales.minimums is None:
        return fma(b, scales.m, load_splat(b, record, REC_DSUM, F32, lanes), total)
    return fma(b, scales.m, b.fmul(dx, _weighted_sum(b, scales.minimums, record, floats)), total)


def _weighted_sum(b: Builder, minimums: tuple[Value, Value], record: Value, floats: Any) -> Value:
    """The sums of the activation's halves, each times its factor: integers below 2^24, exact."""
    sums = [load_splat(b, record, REC_HALVES32 + at, I32, floats.count) for at in (0, 4)]
    low, high = (b.sitofp(part, floats) for part in sums)
    return fma(b, low, minimums[0], b.fmul(high, minimums[1]))


def _unpack(b: Builder, isa: str, fmt: Format, block: Block, part: int, lanes: int) -> list[Value]:
    """Eight vectors of 4 x lanes unsigned bytes: the integers plus ``fmt.ZERO``."""
    q, upper = block.quants, block.upper
    found = codes(b, fmt, q, part, lanes) if upper is None else joined(b, q, upper, part, lanes)
    if fmt.TABLE is None:
        return found
    return [dots.look_up(b, isa, fmt, code) for code in found]


def _scales(b: Builder, fmt: Format, block: Block, part: int, lanes: int) -> Scales:
    floats = vec(F32, lanes)

    def large(address: Value, number: int) -> Value:
        """The ``number``-th of the scales of 16 bits at an address."""
        return _wide_scale(b, fmt, address, 2 * GROUP * number + 2 * lanes * part, floats)

    def small(number: int, convert: Callable[..., Value]) -> Value:
        return convert(load(b, block.scales, GROUP * number + lanes * part, vec(I8, lanes), 8), floats)

    if fmt.SCALES == "pairs":
        return Scales(large(block.scales, 0), large(block.scales, 1))
    d = large(block.chunk if has_header(fmt) else block.scales, 0)
    m = None if fmt.M_AT < 0 else large(block.chunk if has_header(fmt) else block.scales, 1)
    if fmt.SCALES == "block":
        return Scales(d, m=m)
    if fmt.SCALES == "superblock":
        d = b.fmul(d, small(0, b.sitofp))
        return Scales(d, m=None if m is None else b.fneg(b.fmul(m, small(1, b.uitofp))))
    factors = small(0, b.sitofp), small(1, b.sitofp)
    if m is None:
        return Scales(d, halves=factors)
    divided = like(floats, -1 / 32)
    minimums = b.fmul(small(2, b.uitofp), divided), b.fmul(small(3, b.uitofp), divided)
    return Scales(d, m=b.fneg(m), halves=factors, minimums=minimums)


def _wide_scale(b: Builder, fmt: Format, address: Value, offset: int, floats: Any) -> Value:
    """Scales of 16 bits as float32, times the format's unit."""
    if fmt.SCALE_TYPE == "bf16":  # the upper halves of float32
        ints = vec(I32, floats.count)
        upper = b.zext(load(b, address, offset, vec(I16, floats.count), 16), ints)
        value = b.bitcast(b.shl(upper, like(ints, 16)), floats)
    else:
        value = b.fpext(load(b, address, offset, vec(F16, floats.count), 16), floats)
    return value if fmt.UNIT == 1 else b.fmul(value, like(floats, fmt.UNIT))


def zero_groups(b: Builder, out: Value, count: int) -> None:
    """The results of one row."""
    for number in range(count):
        store(b, like(vec(F32, GROUP), 0), out, SECOND * number, 16)


def zero_rows(b: Builder, address: Value, rows: Value) -> None:
    with loop(b, rows) as t:
        store(b, like(vec(F32, GROUP), 0), b.add(address, b.mul(t, i64(ROW))), 0, 16)


def _add_rows(b: Builder, total: Value, part: Value, rows: Value) -> None:
    with loop(b, rows) as t:
        at = b.mul(t, i64(ROW))
        here = b.add(total, at)
        summed = b.fadd(load(b, here, 0, vec(F32, GROUP), 16), load(b, b.add(part, at), 0, vec(F32, GROUP), 16))
        store(b, summed, here, 0, 16)
