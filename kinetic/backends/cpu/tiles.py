"""Tile kernels: 16 output rows of a packed weight times 1 to 16 rows of activations.

    tile(weights, records, blocks, out, rows)          quantised formats; out float32 [rows, 16]
    tile(weights, x, width, out, rows, row bytes of x) float formats

``records`` are laid out [block][row], 64 bytes each (``functions.RECORD``).
Unpacked weights stay in registers while the rows pass by; the sums of a chunk
stand in memory, one vector a row, so one kernel serves every number of rows.
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
    HALF_FACTORS,
    SUPER_MINIMUMS,
    SUPER_SCALES,
    TILE,
    block_header,
    header_bytes,
    quant_bytes,
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
    quants = b.add(w, _header(b, fmt, n))
    if single:
        sums = _blocks_in_registers(b, fmt, isa, w, quants, x, n)
        for half, value in enumerate(sums):
            store(b, value, partial, half * 4 * dots.LANES[isa], 16)
    else:
        zero_rows(b, partial, rows)
        _blocks_in_memory(b, fmt, isa, w, quants, x, n, rows, partial)
    _add_rows(b, out, partial, rows)
    next_w = b.add(quants, b.mul(n, i64(quant_bytes(fmt))))
    chunks.end([next_w, b.add(x, b.mul(b.mul(n, rows), i64(RECORD)))])
    b.ret_void()


def _header(b: Builder, fmt: Format, n: Value) -> Value:
    if fmt.SCALES != "block":
        return i64(header_bytes(fmt, BLOCKS))
    return b.and_(b.add(b.mul(n, i64(block_header(fmt))), i64(63)), i64(-64))


def _blocks_in_registers(
    b: Builder, fmt: Format, isa: str, header: Value, quants: Value, x: Value, n: Value
) -> list[Value]:
    """The sums of one chunk for one row: a vector for each part of the 16 output rows."""
    lanes = dots.LANES[isa]
    parts = GROUP // lanes
    body = Loop(b, n, [like(vec(F32, lanes), 0)] * parts + [quants, x])
    q, record = body.values[parts:]
    _prefetch(b, fmt, header, body.i)
    sums = []
    for part in range(parts):
        words = _unpack(b, fmt, q, part, lanes)
        scales = _scales(b, fmt, header, body.i, part, lanes)
        sums.append(_accumulate(b, fmt, isa, words, scales, record, body.values[part]))
    return body.end([*sums, b.add(q, i64(quant_bytes(fmt))), b.add(record, i64(RECORD))])[:parts]


PREFETCH = 2048
"""Bytes ahead of the weights in use that are asked for. One row streams all weights once from memory; the
processor's own prefetching stops at every page."""


def _prefetch(b: Builder, fmt: Format, chunk: Value, index: Value) -> None:
    """Ask for the part of the stream that lies PREFETCH bytes ahead of block ``index`` of ``chunk``."""
    share = header_bytes(fmt, BLOCKS) // BLOCKS + quant_bytes(fmt)
    start = b.add(chunk, b.mul(index, i64(share)))
    for offset in range(0, share, 64):
        pointer = b.inttoptr(b.add(start, i64(PREFETCH + offset)), I8.as_pointer())
        call(b, "llvm.prefetch.p0", VOID, [pointer, i32(0), i32(3), i32(1)])


def _blocks_in_memory(
    b: Builder, fmt: Format, isa: str, header: Value, quants: Value, x: Value, n: Value, rows: Value, partial: Value
) -> None:
    """Adds one chunk for all rows to ``partial`` float32 [rows, 16]."""
    lanes = dots.LANES[isa]
    body = Loop(b, n, [quants, x])
    q, records = body.values
    for part in range(GROUP // lanes):
        words = _unpack(b, fmt, q, part, lanes)
        scales = _scales(b, fmt, header, body.i, part, lanes)
        inner = Loop(b, rows, [records, b.add(partial, i64(4 * lanes * part))])
        record, place = inner.values
        before = load(b, place, 0, vec(F32, lanes), 16)
        store(b, _accumulate(b, fmt, isa, words, scales, record, before), place, 0, 16)
        inner.end([b.add(record, i64(RECORD)), b.add(place, i64(ROW))])
    body.end([b.add(q, i64(quant_bytes(fmt))), b.add(records, b.mul(rows, i64(RECORD)))])


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


def _scales(b: Builder, fmt: Format, header: Value, index: Value, part: int, lanes: int) -> Scales:
    floats = vec(F32, lanes)

    def halfs(address: Value, offset: int) -> Value:
        return b.fpext(load(b, address, offset + 2 * lanes * part, vec(F16, lanes), 16), floats)

    def small(base: int, stride: int, convert: Callable[..., Value]) -> Value:
        at = b.add(header, b.mul(index, i64(stride)))
        return convert(load(b, at, base + lanes * part, vec(I8, lanes), 8), floats)

    if fmt.SCALES == "block":
        here = b.add(header, b.mul(index, i64(block_header(fmt))))
        return Scales(halfs(here, 0), None if fmt.M_AT < 0 else halfs(here, 32))
    if fmt.SCALES == "superblock":
        d = b.fmul(halfs(header, 0), small(SUPER_SCALES, GROUP, b.uitofp))
        m = b.fneg(b.fmul(halfs(header, 32), small(SUPER_MINIMUMS, GROUP, b.uitofp)))
        return Scales(d, m)
    low, high = (small(HALF_FACTORS + GROUP * half, 2 * GROUP, b.sitofp) for half in (0, 1))
    return Scales(halfs(header, 0), None, (low, high))


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
