"""Unsigned codes of the weights of a block, from the nibbles and planes of ``layout``."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.backends.cpu.ir import I8, I16, Builder, Value, like, load, vec
from kinetic.backends.cpu.layout import LINE, NIBBLES, PLANES
from kinetic.formats import Format


def codes(b: Builder, fmt: Format, q: Value, part: int, lanes: int) -> list[Value]:
    """Eight vectors of 4 x lanes unsigned bytes, of the block at ``q``."""
    ty = vec(I8, 4 * lanes)
    at = part * 4 * lanes

    def raw(offset: int) -> Value:
        return load(b, q, offset + at, ty, 32)

    if fmt.BITS == 8:
        return [raw(LINE * j) for j in range(8)]
    words: list[Value] = []
    place = 0
    if fmt.BITS >= 4:
        nibbles = [raw(LINE * j) for j in range(4)]
        words = [b.and_(r, like(ty, 15)) for r in nibbles]
        words += [b.and_(shifted(b, r, -4), like(ty, 15)) for r in nibbles]
        place = NIBBLES
    for width, to in PLANES[fmt.BITS]:
        bits = _plane_bits(b, width, to, [raw(place + LINE * p) for p in range(width)])
        words = [b.or_(word, more) for word, more in zip(words, bits, strict=True)] if words else bits
        place += LINE * width
    return words


def joined(b: Builder, lower: Value, upper: Value, part: int, lanes: int) -> list[Value]:
    """The same of 8-bit codes whose halves lie apart: each as the nibbles of 4-bit codes do."""
    ty = vec(I8, 4 * lanes)
    at = part * 4 * lanes
    low, high = ([load(b, place, LINE * j + at, ty, 32) for j in range(4)] for place in (lower, upper))
    pairs = list(zip(low, high, strict=True))
    first = [b.or_(b.and_(shifted(b, up, 4), like(ty, 240)), b.and_(down, like(ty, 15))) for down, up in pairs]
    return first + [b.or_(b.and_(up, like(ty, 240)), b.and_(shifted(b, down, -4), like(ty, 15))) for down, up in pairs]


def _plane_bits(b: Builder, width: int, to: int, planes: Sequence[Value]) -> list[Value]:
    """What planes of ``width`` bits a word say of each of 8 words, with the lowest bit at place ``to``."""
    ty, per_plane = planes[0].type, 8 // width
    out = []
    for j in range(8):
        shift = width * (j % per_plane)
        bits = b.and_(planes[j // per_plane], like(ty, ((1 << width) - 1) << shift))
        out.append(shifted(b, bits, to - shift))
    return out


def shifted(b: Builder, v: Value, by: int) -> Value:
    """Bytes shifted left as 16-bit words: a byte keeps its value if nothing is pushed out of it. (Shifts of bytes
    become multiplications of bit matrices where a processor has them, in the units that products need.)"""
    shorts = vec(I16, v.type.count // 2)
    wide = b.bitcast(v, shorts)
    if by == 0:
        return v
    moved = b.shl(wide, like(shorts, by)) if by > 0 else b.lshr(wide, like(shorts, -by))
    return b.bitcast(moved, v.type)
