"""IQ2 and IQ3: 256 values in sub-blocks with a 4-bit scale, each 8 or 4 of them a lattice point and signs.

ggml's ``quantize_row_iq2_xxs_impl`` and its like. Imported only by the build process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kinetic.backends.cpu.emitted import write_i64
from kinetic.backends.cpu.quantise.lattice_scales import Shape, make_refined, make_tried
from kinetic.backends.cpu.quantise.lattice_tables import STATUS
from kinetic.backends.cpu.quantise.lattice_uniform import uniform_scale
from kinetic.backends.cpu.quantise.lattice_values import (
    SIGNED,
    SUPER,
    make_unsigned,
    put_word,
    roots,
    weigh,
)
from kinetic.backends.cpu.quantise.memory import bytes_at, floats, floats_at, ints, kernel, small
from kinetic.backends.cpu.quantise.numbers import HALF, ONE, ZERO, nearest, put_half, within
from kinetic.backends.cpu.quantise.weights import sum_of_squares

FACTORS, LARGEST_FACTOR = np.float32(31), np.int32(15)
"""A sub-block's scale is d * (2 * factor + 1), factor 0 .. 15; d is 1 / 31 of the largest scale."""

SEVEN, BYTE = np.int32(127), np.int32(255)


class Form(NamedTuple):
    """What one format does its own way."""

    shape: Shape
    bytes: int
    """Of a block."""
    squares: float
    """Spread of the weights, in means of the squares."""
    part: float
    """Part of the spread in weights without an importance."""
    even: bool
    """Signs of eight values are stored as seven bits: the number of minus signs is even."""
    tiny: float
    """A sub-block whose largest magnitude is below it has scale 0."""
    fudge: float
    """What the stored d is multiplied by."""
    put_points: Any
    """put_points(y, sub, place, points, signs): codes of sub-block ``sub``, the ``place``-th that is not 0."""
    put_factor: Any
    """put_factor(y, sub, factor): a sub-block's scale."""
    uniform_start: bool = False
    """The first scale is that of equally spaced levels, not just from the largest value."""
    clears: bool = True
    """A block whose scales are all 0 is all 0."""


def make_kernel(form: Form) -> Any:
    """The C function of a format."""
    fit, put_scales = make_fit(form), make_put_scales(form)
    size, blocks_bytes, clears = form.shape.size, form.bytes, form.clears
    squares, part, count = np.float32(form.squares), np.float32(form.part), SUPER // form.shape.size
    put_points, mean_of = form.put_points, np.float32(SUPER)
    new_floats, new_scales, new_points = floats(size), floats(count), ints(size)

    @small
    def one(x, importance, y, record):
        w, scales, points, signs = new_floats(), new_scales(), new_points(), new_points()
        spread = squares * sum_of_squares(x, SUPER) / mean_of
        most, place = ZERO, 0
        for sub in range(count):
            weights_at = importance + 4 * size * sub if importance != 0 else 0
            weigh(x, size * sub, weights_at, spread, part, size, w)
            scale, some = fit(x, size * sub, w, points, signs, record)
            scales[sub] = scale
            if some:
                put_points(y, sub, place, points, signs)
                place += 1
                if not scale >= ZERO:
                    write_i64(record + 8 * STATUS, 1)
                most = most if most > scale else scale
        if most != ZERO:
            put_scales(y, scales, most)
        elif clears:
            for i in range(blocks_bytes):
                y[i] = np.uint8(0)

    @kernel
    def quantise(source, importance, target, rows, width, record):
        for block in range(rows * width // SUPER):
            y = bytes_at(target + block * blocks_bytes)
            for i in range(blocks_bytes):
                y[i] = np.uint8(0)
            weights_at = importance + 4 * (block * SUPER % width) if importance != 0 else 0
            one(floats_at(source + 4 * SUPER * block), weights_at, y, record)

    return quantise


def make_fit(form: Form) -> Any:
    """fit(x, at, w, points, signs, record) -> scale of the sub-block from ``at`` on, and whether it has points."""
    shape, even, uniform_start = form.shape, form.even, form.uniform_start
    unsigned, tried, refined = make_unsigned(shape.size, even), make_tried(shape), make_refined(shape)
    new_floats = floats(shape.size)
    top, highest = np.float32(2 * shape.levels - 1), np.float32(shape.levels)
    tiny, size, mask = np.float32(form.tiny), shape.size, SEVEN if even else BYTE

    @small
    def fit(x, at, w, points, signs, record):
        magnitudes, root = new_floats(), new_floats()
        roots(w, size, root)
        most = unsigned(x, at, w, magnitudes, signs)
        if most < tiny or most == ZERO:
            return ZERO, False
        scale = most / top
        if uniform_start:
            scale = uniform_scale(magnitudes, w, most)
            most = scale * highest
            if most <= ZERO:
                return ZERO, False
        scale = tried(record, magnitudes, w, root, scale, most, points)
        scale = refined(record, magnitudes, w, root, scale, points)
        turned = np.int32(0)
        if scale < ZERO:
            scale, turned = -scale, BYTE
        for group in range(size // SIGNED):
            signs[group] = (signs[group] ^ turned) & mask
        return scale, True

    return fit


def make_put_scales(form: Form) -> Any:
    """put_scales(y, scales, most): the block's d and the sub-blocks' factors. most > 0: the largest scale."""
    count, fudge, put_factor = SUPER // form.shape.size, np.float32(form.fudge), form.put_factor

    @small
    def put_scales(y, scales, most):
        d = most / FACTORS
        put_half(y, 0, d * fudge)
        inverse = ONE / d
        for sub in range(count):
            factor = nearest(HALF * (inverse * scales[sub] - ONE))
            put_factor(y, sub, within(np.int32(0), factor, LARGEST_FACTOR))

    return put_scales


@small
def four_signs(signs):
    """Four times seven sign bits."""
    word = np.int64(0)
    for k in range(4):
        word |= np.int64(signs[k]) << (7 * k)
    return word


@small
def put_points_2_xxs(y, sub, place, points, signs):
    for k in range(4):
        y[2 + 8 * sub + k] = np.uint8(points[k])
    put_word(y, 6 + 8 * sub, four_signs(signs), 4)


@small
def put_factor_2_xxs(y, sub, factor):
    y[9 + 8 * sub] |= np.uint8(factor << 4)


@small
def put_points_2_xs(y, sub, place, points, signs):
    for k in range(2):
        put_word(y, 2 + 2 * (2 * sub + k), np.int64(points[k]) | np.int64(signs[k]) << 9, 2)


@small
def put_factor_2_xs(y, sub, factor):
    y[66 + sub // 2] |= np.uint8(factor << 4 * (sub & 1))


@small
def put_points_2_s(y, sub, place, points, signs):
    for k in range(2):
        at = 2 * sub + k
        y[2 + at] = np.uint8(points[k] & BYTE)
        y[34 + at] = np.uint8(signs[k])
        y[66 + at // 4] |= np.uint8(points[k] >> 8 << 2 * (at & 3))


@small
def put_factor_2_s(y, sub, factor):
    y[74 + sub // 2] |= np.uint8(factor << 4 * (sub & 1))


@small
def put_points_3_xxs(y, sub, place, points, signs):
    for k in range(8):
        y[2 + 8 * sub + k] = np.uint8(points[k])
    put_word(y, 66 + 4 * sub, four_signs(signs), 4)


@small
def put_factor_3_xxs(y, sub, factor):
    y[69 + 4 * sub] |= np.uint8(factor << 4)


@small
def put_points_3_s(y, sub, place, points, signs):
    """Low bits and signs close up behind a sub-block that is 0, ninth bits do not: a quirk of ggml's that is kept."""
    for k in range(8):
        y[2 + 8 * place + k] = np.uint8(points[k] & BYTE)
        y[66 + sub] |= np.uint8(points[k] >> 8 << k)
    for k in range(4):
        y[74 + 4 * place + k] = np.uint8(signs[k])


@small
def put_factor_3_s(y, sub, factor):
    y[106 + sub // 2] |= np.uint8(factor << 4 * (sub & 1))


IQ2_XXS = Form(
    Shape(32, 8, 3, 6, 0.1, always=True, all=True), 66, 1, 0, True, 1e-15, 1, put_points_2_xxs, put_factor_2_xxs, True
)
IQ2_XS = Form(Shape(16, 8, 3, 9, 0.1), 74, 1, 0, True, 1e-15, 1, put_points_2_xs, put_factor_2_xs)
IQ2_S = Form(Shape(16, 8, 3, 9, 0.1), 82, 2, 0.25, False, 1e-8, 0.9875, put_points_2_s, put_factor_2_s, clears=False)
IQ3_XXS = Form(Shape(32, 4, 8, 15, 0.2), 98, 2, 0, True, 1e-8, 1.0125, put_points_3_xxs, put_factor_3_xxs)
IQ3_S = Form(
    Shape(32, 4, 8, 9, 0.2, all=True), 110, 2, 0, False, 0, 1.033, put_points_3_s, put_factor_3_s, clears=False
)

FORMS = {16: IQ2_XXS, 17: IQ2_XS, 18: IQ3_XXS, 21: IQ3_S, 22: IQ2_S}

KERNELS = {ggml_type: make_kernel(form) for ggml_type, form in FORMS.items()}
