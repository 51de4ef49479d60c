"""Tile kernels: 16 output rows of a packed weight times 1 to 16 rows of activations.

    tile(weights, records, blocks, out, rows)          quantised formats; out float32 [rows, 16]
    tile(weights, x, width, out, rows, row bytes of x) float formats

``records`` are laid out [block][row], 64 bytes each (``functions.RECORD``).
Unpacked weights stay in registers while the rows pass by. The sums of a chunk
stand in registers too for one row, and for 16 where there are 32 registers;
else in memory, one vector a row, so that one kernel serves every number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir

from kinetic.backends.base import CHUNK
from kinetic.backends.cpu import dots
from kinetic.backends.cpu.functions import REC_D, REC_DSUM, RECORD
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
    call,
    fma,
    function,
    i32,
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


def tile_name(fmt: Format, single: bool) -> str:
    return f"tile_{fmt.NAME.lower()}{'_one' if single else ''}"


def emit(module: ir.Module, fmt: Format, isa: str) -> None:
    """Both kernels of a format: one row, and any number of rows up to 16."""
    for single in (True, False):
        if fmt.QUANTISED:
            _quantised(module, fmt, isa, single)
        else:
            _floating(module, fmt, single)


# ---- quantised formats --------------------------------------------------------------------------


def _quantised(module: ir.Module, fmt: Format, isa: str, single: bool) -> None:
    b, (weights, records, blocks, out, rows) = function(module, tile_name(fmt, single), "aaaaa")
    if single:
        rows = i64(1)
    partial = b.ptrtoint(b.alloca(vec(F32, GROUP * TILE)), I64)
    zero_rows(b, out, rows)
    chunks = Loop(b, b.ashr(b.add(blocks, i64(BLOCKS - 1)), i64(3)), [weights, records])
    w, x = chunks.values
    n = minimum(b, i64(BLOCKS), b.sub(blocks, b.mul(chunks.i, i64(BLOCKS))))
    if single:
        _chunk_in_registers(b, fmt, isa, w, x, n, 1, out)
    elif isa in REGISTERS_FOR_TILE:
        with b.if_else(b.icmp_signed("==", rows, i64(TILE))) as (whole, part):
            with whole:
                _chunk_in_registers(b, fmt, isa, w, x, n, TILE, out)
            with part:
                _chunk_in_memory(b, fmt, isa, w, x, n, rows, partial, out)
    else:
        _chunk_in_memory(b, fmt, isa, w, x, n, rows, partial, out)
    next_w = b.add(w, _chunk_bytes(b, fmt, n))
    chunks.end([next_w, b.add(x, b.mul(b.mul(n, rows), i64(RECORD)))])
    b.ret_void()


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
    b: Builder, fmt: Format, isa: str, chunk: Value, x: Value, n: Value, rows: int, out: Value
) -> None:
    """Adds one chunk of ``rows`` rows to ``out`` float32 [rows, 16]."""
    lanes = dots.LANES[isa]
    floats = vec(F32, lanes)
    together = GROUP // lanes if rows == 1 else 1  # parts of the 16 output rows whose sums are held at a time
    for first in range(0, GROUP // lanes, together):
        parts = range(first, first + together)
        body = Loop(b, n, [like(floats, 0)] * (rows * together) + [x])
        record = body.values[-1]
        place = _block(b, fmt, chunk, body.i)
        sums = []
        for part in parts:
            words, scales = _unpack(b, fmt, place.quants, part, lanes), _scales(b, fmt, place, part, lanes)
            for row in range(rows):
                before = body.values[len(sums)]
                sums.append(_accumulate(b, fmt, isa, words, scales, b.add(record, i64(RECORD * row)), before))
                if rows > 1 and row % 2 == 1:
                    keep_order(b)
        partial = body.end([*sums, b.add(record, i64(RECORD * rows))])
        for number, part in enumerate(parts):
            for row in range(rows):
                at = ROW * row + 4 * lanes * part
                total = b.fadd(load(b, out, at, floats, 16), partial[number * rows + row])
                store(b, total, out, at, 16)


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
    words = [b.and_(r, like(ty, 15)) for r in nibbles] + [b.lshr(r, like(ty, 4)) for r in nibbles]
    extra = fmt.BITS - 4
    planes = [raw(4 + p) for p in range(extra)]
    if not planes:
        return words
    per_plane = 8 // extra
    out = []
    for j, word in enumerate(words):
        shift = extra * (j % per_plane)
        bits = b.and_(planes[j // per_plane], like(ty, ((1 << extra) - 1) << shift))
        moved = b.shl(bits, like(ty, 4 - shift)) if shift < 4 else b.lshr(bits, like(ty, shift - 4))
        out.append(b.or_(word, moved))
    return out


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


# ---- float formats ------------------------------------------------------------------------------


def _floating(module: ir.Module, fmt: Format, single: bool) -> None:
    """Chunks of 256: four rows at a time share the loads of the weights."""
    b, (weights, x, width, out, rows, stride) = function(module, tile_name(fmt, single), "aaaaaa")
    if single:
        rows = i64(1)
    zero_rows(b, out, rows)
    chunks = Loop(b, b.ashr(b.add(width, i64(CHUNK - 1)), i64(8)), [weights, x])
    w, xs = chunks.values
    n = minimum(b, i64(CHUNK), b.sub(width, b.mul(chunks.i, i64(CHUNK))))
    steps = (1,) if single else (4, 1)
    done: Value = i64(0)
    for step in steps:
        many = b.udiv(b.sub(rows, done), i64(step))
        with loop(b, many) as i:
            first = b.add(done, b.mul(i, i64(step)))
            row_x = b.add(xs, b.mul(first, stride))
            _float_rows(b, fmt, w, row_x, n, b.add(out, b.mul(first, i64(ROW))), step, stride)
        done = b.add(done, b.mul(many, i64(step)))
    chunks.end([b.add(w, b.mul(n, i64(GROUP * fmt.BYTES))), b.add(xs, b.mul(n, i64(4)))])
    b.ret_void()


def _float_rows(b: Builder, fmt: Format, w: Value, x: Value, n: Value, out: Value, step: int, stride: Value) -> None:
    floats = vec(F32, GROUP)
    body = Loop(b, n, [like(floats, 0)] * step + [w, x])
    here, column = body.values[step:]
    value = _float_weights(b, fmt, here)
    sums = []
    for t in range(step):
        row = b.add(column, b.mul(stride, i64(t)))
        sums.append(fma(b, value, load_splat(b, row, 0, F32, GROUP), body.values[t]))
    after = body.end([*sums, b.add(here, i64(GROUP * fmt.BYTES)), b.add(column, i64(4))])
    for t in range(step):
        store(b, b.fadd(load(b, out, ROW * t, floats, 16), after[t]), out, ROW * t, 16)


def _float_weights(b: Builder, fmt: Format, address: Value) -> Value:
    if fmt.NAME == "F32":
        return load(b, address, 0, vec(F32, GROUP), 32)
    if fmt.NAME == "F16":
        return b.fpext(load(b, address, 0, vec(F16, GROUP), 32), vec(F32, GROUP))
    wide = b.zext(load(b, address, 0, vec(I16, GROUP), 32), vec(I32, GROUP))
    return b.bitcast(b.shl(wide, like(wide.type, 16)), vec(F32, GROUP))


# ---- rows of a tile -----------------------------------------------------------------------------


def zero_rows(b: Builder, address: Value, rows: Value) -> None:
    with loop(b, rows) as t:
        store(b, like(vec(F32, GROUP), 0), b.add(address, b.mul(t, i64(ROW))), 0, 16)


def _add_rows(b: Builder, total: Value, part: Value, rows: Value) -> None:
    with loop(b, rows) as t:
        at = b.mul(t, i64(ROW))
        here = b.add(total, at)
        summed = b.fadd(load(b, here, 0, vec(F32, GROUP), 16), load(b, b.add(part, at), 0, vec(F32, GROUP), 16))
        store(b, summed, here, 0, 16)
