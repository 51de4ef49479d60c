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
from typing import NamedTuple

from llvmlite import ir

from kinetic.backends.cpu import dots
from kinetic.backends.cpu.functions import REC_D, REC_DSUM, RECORD
from kinetic.backends.cpu.ir import (
    F16,
    F32,
    I8,
    I16,
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
    TILE,
    chunk_header,
    quant_bytes,
    scale_bytes,
)
from kinetic.formats import Format

ROW = 4 * GROUP  # bytes of one float32 row of a tile


class Scales(NamedTuple):
    """Float32 vectors of one block: ``d``; ``m`` or None; factors of the two halves or None."""

    d: Value
    m: Value | None = None
    halves: tuple[Value, Value] | None = None


ONE, TWO, MANY = "_one", "_two", ""
"""The kernels of a format, as their names end."""

SECOND = 2 * ROW * TILE
"""Bytes between the results of two groups."""


def tile_name(fmt: Format, kind: str) -> str:
    return f"tile_{fmt.NAME.lower()}{kind}"


def emit(module: ir.Module, fmt: Format, isa: str) -> None:
    """The three kernels of a quantised format."""
    _row(module, fmt, isa, ONE)
    _row(module, fmt, isa, TWO)
    _many(module, fmt, isa)


def _row(module: ir.Module, fmt: Format, isa: str, kind: str) -> None:
    """One row with one or two groups of weights."""
    b, (*weights, records, blocks, out) = function(module, tile_name(fmt, kind), "aaaa" if kind == ONE else "aaaaa")
    zero_groups(b, out, len(weights))
    chunks = Loop(b, _chunks(b, blocks), [*weights, records])
    *places, x = chunks.values
    n = _blocks_of(b, blocks, chunks.i)
    _chunk_in_registers(b, fmt, isa, places, x, n, 1, out)
    size = _chunk_bytes(b, fmt, n)
    chunks.end([*(b.add(place, size) for place in places), b.add(x, b.mul(n, i64(RECORD)))])
    b.ret_void()


def _many(module: ir.Module, fmt: Format, isa: str) -> None:
    b, (weights, records, blocks, out, rows) = function(module, tile_name(fmt, MANY), "aaaaa")
    partial = b.ptrtoint(b.alloca(vec(F32, GROUP * TILE)), I64)
    zero_rows(b, out, rows)
    chunks = Loop(b, _chunks(b, blocks), [weights, records])
    w, x = chunks.values
    n = _blocks_of(b, blocks, chunks.i)
    if isa in REGISTERS_FOR_TILE:
        with b.if_else(b.icmp_signed("==", rows, i64(TILE))) as (whole, part):
            with whole:
                _chunk_in_registers(b, fmt, isa, [w], x, n, TILE, out)
            with part:
                _chunk_in_memory(b, fmt, isa, w, x, n, rows, partial, out)
    else:
        _chunk_in_memory(b, fmt, isa, w, x, n, rows, partial, out)
    next_w = b.add(w, _chunk_bytes(b, fmt, n))
    chunks.end([next_w, b.add(x, b.mul(b.mul(n, rows), i64(RECORD)))])
    b.ret_void()


def _chunks(b: Builder, blocks: Value) -> Value:
    return b.ashr(b.add(blocks, i64(BLOCKS - 1)), i64(3))


def _blocks_of(b: Builder, blocks: Value, chunk: Value) -> Value:
    """Blocks of a chunk: 8, or fewer in the last."""
    return minimum(b, i64(BLOCKS), b.sub(blocks, b.mul(chunk, i64(BLOCKS))))


REGISTERS_FOR_TILE = ("vnni512", "vnni256")
"""Instruction sets with registers for the sums of 16 rows beside a block of weights."""


class Block(NamedTuple):
    """Addresses of a block in a chunk: where the chunk begins, the block's scales, its integers."""

    chunk: Value
    scales: Value
    quants: Value


def _block(b: Builder, fmt: Format, chunk: Value, index: Value) -> Block:
    """As ``layout`` has it."""
    size, first = quant_bytes(fmt), b.add(chunk, i64(chunk_header(fmt)))
    if scale_bytes(fmt) == LINE:
        line = b.add(first, b.mul(index, i64(LINE + size)))
        return Block(chunk, line, b.add(line, i64(LINE)))
    pair, odd = b.ashr(index, i64(1)), b.and_(index, i64(1))
    line = b.add(first, b.mul(pair, i64(LINE + 2 * size)))
    quants = b.add(b.add(line, i64(LINE)), b.mul(odd, i64(size)))
    return Block(chunk, b.add(line, b.mul(odd, i64(LINE // 2))), quants)


def _chunk_bytes(b: Builder, fmt: Format, n: Value) -> Value:
    """Bytes of a chunk of n blocks."""
    lines = b.mul(n, i64(LINE))
    if scale_bytes(fmt) < LINE:
        lines = b.mul(b.ashr(b.add(n, i64(1)), i64(1)), i64(LINE))
    return b.add(b.add(lines, i64(chunk_header(fmt))), b.mul(n, i64(quant_bytes(fmt))))


def _chunk_in_registers(
    b: Builder, fmt: Format, isa: str, chunks: Sequence[Value], x: Value, n: Value, rows: int, out: Value
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
            block = _block(b, fmt, chunk, body.i)
            if rows == 1:
                _fetch_ahead(b, fmt, block)
            for part in parts:
                words, scales = _unpack(b, fmt, block.quants, part, lanes), _scales(b, fmt, block, part, lanes)
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
    for offset in range(0, quant_bytes(fmt) + scale_bytes(fmt), LINE):
        fetch(b, b.add(block.quants, i64(AHEAD + offset)))


def keep_order(b: Builder) -> None:
    """No load may move across this point: the compiler would do those of all rows first and run out of registers."""
    b.call(ir.InlineAsm(ir.FunctionType(VOID, []), "", "~{memory}", side_effect=True), [])


def _chunk_in_memory(
    b: Builder, fmt: Format, isa: str, chunk: Value, x: Value, n: Value, rows: Value, partial: Value, out: Value
) -> None:
    """The same for any number of rows; ``partial`` float32 [rows, 16] holds the sums."""
    lanes = dots.LANES[isa]
    zero_rows(b, partial, rows)
    body = Loop(b, n, [x])
    (records,) = body.values
    place = _block(b, fmt, chunk, body.i)
    for part in range(GROUP // lanes):
        words, scales = _unpack(b, fmt, place.quants, part, lanes), _scales(b, fmt, place, part, lanes)
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
    """``before`` plus one block: the two fused steps of docs/NUMERICS.md."""
    lanes = dots.LANES[isa]
    floats = vec(F32, lanes)
    if scales.halves is None:
        dot = b.sitofp(dots.block_dot(b, isa, fmt, words, record), floats)
    else:
        # Both products and their sum are integers below 2^24, so these float operations are exact.
        low, high = (b.sitofp(part, floats) for part in dots.half_dots(b, isa, words, record))
        dot = fma(b, low, scales.halves[0], b.fmul(high, scales.halves[1]))
    total = fma(b, dot, b.fmul(scales.d, load_splat(b, record, REC_D, F32, lanes)), before)
    if scales.m is not None:
        total = fma(b, scales.m, load_splat(b, record, REC_DSUM, F32, lanes), total)
    return total


def _unpack(b: Builder, fmt: Format, q: Value, part: int, lanes: int) -> list[Value]:
    """Eight vectors of 4 x lanes unsigned bytes."""
    ty = vec(I8, 4 * lanes)
    at = part * 4 * lanes

    def raw(index: int) -> Value:
        return load(b, q, 64 * index + at, ty, 32)

    if fmt.BITS == 8:
        return [raw(j) for j in range(8)]
    nibbles = [raw(j) for j in range(4)]
    words = [b.and_(r, like(ty, 15)) for r in nibbles]
    words += [b.and_(_shifted(b, r, -4), like(ty, 15)) for r in nibbles]
    extra = fmt.BITS - 4
    planes = [raw(4 + p) for p in range(extra)]
    if not planes:
        return words
    per_plane = 8 // extra
    out = []
    for j, word in enumerate(words):
        shift = extra * (j % per_plane)
        bits = b.and_(planes[j // per_plane], like(ty, ((1 << extra) - 1) << shift))
        moved = _shifted(b, bits, 4 - shift)
        out.append(b.or_(word, moved))
    return out


def _shifted(b: Builder, v: Value, by: int) -> Value:
    """Bytes shifted left as 16-bit words: a byte keeps its value if nothing is pushed out of it. (Shifts of bytes
    become multiplications of bit matrices where a processor has them, in the units that products need.)"""
    shorts = vec(I16, v.type.count // 2)
    wide = b.bitcast(v, shorts)
    moved = b.shl(wide, like(shorts, by)) if by > 0 else b.lshr(wide, like(shorts, -by))
    return b.bitcast(moved, v.type)


def _scales(b: Builder, fmt: Format, block: Block, part: int, lanes: int) -> Scales:
    floats = vec(F32, lanes)

    def halfs(address: Value, offset: int) -> Value:
        return b.fpext(load(b, address, offset + 2 * lanes * part, vec(F16, lanes), 16), floats)

    def small(offset: int, convert: Callable[..., Value]) -> Value:
        return convert(load(b, block.scales, offset + lanes * part, vec(I8, lanes), 8), floats)

    if fmt.SCALES == "block":
        return Scales(halfs(block.scales, 0), None if fmt.M_AT < 0 else halfs(block.scales, 2 * GROUP))
    if fmt.SCALES == "superblock":
        d = b.fmul(halfs(block.chunk, 0), small(0, b.uitofp))
        m = b.fneg(b.fmul(halfs(block.chunk, 2 * GROUP), small(GROUP, b.uitofp)))
        return Scales(d, m)
    return Scales(halfs(block.chunk, 0), None, (small(0, b.sitofp), small(GROUP, b.sitofp)))


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
