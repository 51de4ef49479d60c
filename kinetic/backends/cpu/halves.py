"""A Q8_0 matrix of which the copy that bounds are read from (``bounds``) has the upper halves of the integers: the rest
of it, and the kernels of ``tiles`` that read both.

A group of the rest, 16 rows of as many blocks:

    64 bytes               address of the group's upper halves in the copy; the rest is nothing
    64 bytes every two     16 scales float16 of each block
    256 bytes a block      words 0-3 of lower halves, with words 4-7 in the high nibbles, as in ``layout``
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from kinetic.backends.cpu import bounds, tiles
from kinetic.backends.cpu.codes import shifted
from kinetic.backends.cpu.ir import I8, I16, I64, Builder, Value, function, i64, like, load, loop, store, vec
from kinetic.backends.cpu.layout import BLOCKS, GROUP, LINE, NIBBLES

PAIR = LINE + 2 * NIBBLES
"""Bytes of two blocks."""

SUFFIX = "_halves"
"""In the names of kernels."""


def rest_bytes(blocks: int) -> int:
    """Bytes of one group of the rest."""
    return LINE * (1 + (blocks + 1) // 2) + NIBBLES * blocks


class Halves(tiles.Stream):
    """Pointers to the two blocks in use of the rest, and to the upper halves."""

    suffix = SUFFIX

    def begin(self, b: Builder, group: Value) -> list[Value]:
        return [b.add(group, i64(LINE)), load(b, group, 0, I64, 8)]

    def block(self, b: Builder, pointers: Sequence[Value], index: Value) -> tiles.Block:
        rest, upper = pointers
        line, number = b.add(rest, b.mul(b.ashr(index, i64(1)), i64(PAIR))), b.and_(index, i64(1))
        quants = b.add(b.add(line, i64(LINE)), b.mul(number, i64(NIBBLES)))
        return tiles.Block(
            line, b.add(line, b.mul(number, i64(2 * GROUP))), quants, b.add(upper, b.mul(index, i64(NIBBLES)))
        )

    def next(self, b: Builder, pointers: Sequence[Value], n: Value) -> list[Value]:
        rest, upper = pointers
        return [b.add(rest, i64(BLOCKS // 2 * PAIR)), b.add(upper, i64(BLOCKS * NIBBLES))]


def emit(module: ir.Module) -> None:
    """rest_group(weights, blocks, copy, out): what is left of a packed group beside its group of the copy."""
    b, (weights, blocks, copy, out) = function(module, "rest_group", "aaaa")
    store(b, bounds.places(b, copy, blocks).halves, out, 0, 8)
    with loop(b, blocks) as i:
        scales, quants = bounds.source(b, weights, i)
        line = b.add(b.add(out, i64(LINE)), b.mul(b.ashr(i, i64(1)), i64(PAIR)))
        number = b.and_(i, i64(1))
        store(b, load(b, scales, 0, vec(I16, GROUP), 16), b.add(line, b.mul(number, i64(2 * GROUP))))
        to = b.add(b.add(line, i64(LINE)), b.mul(number, i64(NIBBLES)))
        raw = [load(b, quants, LINE * j, vec(I8, 4 * GROUP)) for j in range(8)]
        for j in range(4):
            low = b.and_(raw[j], like(raw[j].type, 15))
            store(b, b.or_(low, b.and_(shifted(b, raw[4 + j], 4), like(raw[j].type, 240))), to, LINE * j)
    b.ret_void()
