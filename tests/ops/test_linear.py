"""Products with weights of every format: the CPU has the reference's bits, whatever the rows, widths and values."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from kinetic.backends.base import Weight
from kinetic.errors import UnsupportedModel
from kinetic.formats.samples import put_half, put_scales
from tests.support.backends import MANY, check_row_counts, inputs, loaded, rows_of, run, run_both
from tests.support.blocks import (
    FLOATS,
    FORMATS,
    QUANTISED,
    any_floats,
    float_weight,
    normals,
    random_weight,
)
from tests.support.exact import fused

WIDTHS = (32, 64, 96, 128, 256, 288, 384, 576)
ODD_WIDTHS = (1, 33, 100, 257)
"""Float formats have no blocks."""

OUTPUTS = 40
"""Two whole groups of 16 rows and a half."""


def cases():
    for name, fmt in FORMATS.items():
        widths = [width for width in WIDTHS if width % fmt.BLOCK == 0]
        widths += [] if fmt.QUANTISED else ODD_WIDTHS
        widths += [512, 768] if fmt.BLOCK == 256 else []
        for width in widths:
            yield pytest.param(name, width, id=f"{name}-{width}")


def spread_inputs(width, rows=MANY):
    """Rows of very different sizes, so that sums round at every magnitude."""
    return np.ldexp(normals(width, rows, width), (np.arange(rows) % 23 - 11)[:, None])


@pytest.mark.parametrize("name, width", list(cases()))
def test_rows_and_widths(name, width):
    values = spread_inputs(width)
    weight = random_weight("w", name, OUTPUTS, width, seed=width)
    check_row_counts(lambda ops: ops.linear(inputs(ops, values), weight), threads=1 + width % 3)


@pytest.mark.parametrize("name", FORMATS)
def test_bias(name):
    width, counts = 256, (1, 5, 16, 17, 33)
    values = spread_inputs(width, 33)
    weight = random_weight("w", name, 37, width, seed=5)
    bias = random_weight("b", "F32", 1, 37, seed=6)._replace(shape=(37,))
    expected = check_row_counts(lambda ops: ops.linear(inputs(ops, values), weight, bias), 33, counts)
    plain = run(lambda ops: ops.linear(inputs(ops, values), weight), rows_of(33), backend="reference")
    assert not np.array_equal(plain, expected)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_bias_of_another_format(kind):
    values = spread_inputs(64, 3)
    weight = random_weight("w", "Q8_0", 16, 64, seed=5)
    bias = random_weight("b", kind, 1, 16, seed=6)._replace(shape=(16,))
    run_both(lambda ops: ops.linear(inputs(ops, values), weight, bias), (), rows_of(3))


# --- special values ---

SPECIALS = [np.nan, np.inf, -np.inf, np.float32(np.finfo(np.float32).max), np.float32(1e-45), -0.0]


@pytest.mark.parametrize("name", FORMATS)
def test_special_values_in_every_place(name):
    """32 places x specials, one row each, in the second block; rows beside them are as if alone."""
    width = max(64, FORMATS[name].BLOCK)
    rows = []
    for special in SPECIALS:
        block = np.repeat(normals(7, 1, width), 32, axis=0)
        block[range(32), range(32, 64)] = special
        rows += [block, normals(8, 1, width)]
    values = np.concatenate(rows)
    weight = random_weight("w", name, 17, width, seed=3)
    found = run_both(lambda ops: ops.linear(inputs(ops, values), weight), (), rows_of(len(values)))
    spoiled = ~np.isfinite(found).all(axis=1)
    assert spoiled[:32].all()  # a NaN in any place
    assert not spoiled[32::33].any()  # the ordinary rows between them


def amax_rows(width):
    """One row for each edge of quantising: the block's largest magnitude is the given one."""
    edge = np.float32(2.0**-90)
    sizes = [0.0, 1e-45, 1e-39, 1.1754944e-38, 3e-37, 3.7e-37, np.nextafter(edge, np.float32(0))]
    sizes += [edge, np.nextafter(edge, np.float32(1)), 127.0, 3.0e38, np.finfo(np.float32).max]
    shape = normals(9, len(sizes), width)
    shape /= np.abs(shape).max(axis=1, keepdims=True)
    with np.errstate(under="ignore"):
        return np.concatenate([shape * np.array(sizes, np.float32)[:, None], ties(width)])


def ties(width):
    """With amax 127 the factor is exactly 1, and every x.5 is a tie; then with amax 254, where it is 1/2."""
    halves = np.arange(-width // 2, width - width // 2, dtype=np.float32) + np.float32(0.5)
    halves = np.clip(halves, -126.5, 126.5)
    halves[::32] = 127
    return np.stack([halves, halves * 2, halves[::-1].copy(), np.nextafter(halves, np.float32(200))])


@pytest.mark.parametrize("name", FORMATS)
def test_edges_of_quantising(name):
    width = 256
    values = amax_rows(width)
    weight = random_weight("w", name, 17, width, seed=4)
    found = run_both(lambda ops: ops.linear(inputs(ops, values), weight), (), rows_of(len(values)))
    if FORMATS[name].QUANTISED:
        assert not found[:7].any()  # below 2^-90 a block is zero
        assert found[7:].any(axis=1).all()


@pytest.mark.parametrize("name", FORMATS)
def test_any_bits_at_all(name):
    """Inputs with random sign, exponent and payload, NaNs and infinities among them."""
    values = any_floats(11, 64, 256)
    values[:32] = np.where(np.isfinite(values[:32]), values[:32], np.float32(1))
    weight = random_weight("w", name, 17, 256, seed=12)
    run_both(lambda ops: ops.linear(inputs(ops, values), weight), (), rows_of(64))


@pytest.mark.parametrize("name", FLOATS)
def test_float_weights_with_any_bits(name):
    """NaN, infinity and subnormal weights are as they are: only block scales are refused."""
    fmt = FORMATS[name]
    raw = any_floats(13, 20, 64 * fmt.BYTES // 4).view(np.uint8)
    weight = Weight("w", fmt.TYPE_ID, (20, 64), raw)
    run_both(lambda ops: ops.linear(inputs(ops, normals(14, 6, 64)), weight), (), rows_of(6))


# --- rows of extreme weights, against whole numbers ---


def filled(name, byte, columns):
    """One row of blocks of one byte, every scale 1 and every minimum 0.5."""
    fmt = FORMATS[name]
    count = columns // fmt.BLOCK
    blocks = np.full((count, fmt.BYTES), byte, np.uint8)
    put_scales(fmt, blocks, np.ones(count, np.float32), np.full(count, 0.5, np.float32))
    return blocks.reshape(1, -1)


def summed(parts, signs):
    """The product of a row of integers with +-127: whole numbers inside a block, fused steps from block to block."""
    total = np.float32(0)
    dx = np.float32(1)
    for chunk in range(0, len(signs), 256):
        partial = np.float32(0)
        for block in range(chunk // 32, min(chunk + 256, len(signs)) // 32):
            for dot, scale in dots_and_scales(parts, signs, block):
                partial = fused(dot, scale * dx, partial)
            if parts.minimum is not None:
                partial = fused(parts.minimum[0, block], weighted_sum(parts, signs, block), partial)
        total = fused(1, total, partial)
    return total


def halves_of(parts, signs, block):
    """For each half: its products with +-127 and their sum, in whole numbers."""
    for at in range(32 * block, 32 * block + 32, 16):
        integers = [int(q) for q in parts.q[0, at : at + 16]]
        yield at // 16, sum(127 * int(s) * q for s, q in zip(signs[at : at + 16], integers, strict=True))


def dots_and_scales(parts, signs, block):
    """What is to be multiplied, once a block, or once a half where each has a scale."""
    halves = list(halves_of(parts, signs, block))
    if parts.scale.shape[1] == len(signs) // 16:
        return [(dot, parts.scale[0, half]) for half, dot in halves]
    factors = [1, 1] if parts.sub is None else [int(parts.sub[0, half]) for half, _ in halves]
    return [(sum(factor * dot for factor, (_, dot) in zip(factors, halves, strict=True)), parts.scale[0, block])]


def weighted_sum(parts, signs, block):
    """127 times the signs of a block, each half times the factor of its minimum."""
    sums = [127 * int(signs[at : at + 16].sum()) for at in (32 * block, 32 * block + 16)]
    if parts.sub_minimum is None:
        return sum(sums)
    return sum(int(parts.sub_minimum[0, 2 * block + half]) * sums[half] for half in range(2))


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("name", QUANTISED)
def test_extreme_weights_against_whole_numbers(name, byte):
    columns = 512
    raw = filled(name, byte, columns)
    weight = Weight("w", FORMATS[name].TYPE_ID, (16, columns), np.repeat(raw, 16, axis=0))
    signs = np.ones((4, columns), np.int64)
    signs[1] = -1
    signs[2, 1::2] = -1
    signs[3] = np.where(normals(15, columns) > 0, 1, -1)
    values = (signs * 127).astype(np.float32)
    found = run_both(lambda ops: ops.linear(inputs(ops, values), weight), (), rows_of(4))
    for row in range(4):
        expected = summed(FORMATS[name].integers(raw), signs[row])
        assert set(found[row].tolist()) == {float(expected)}, (row, Fraction(float(expected)))


WIDEST = {"Q8_0": (-128, 127), "Q6_K": (-32, 31), "Q3_K": (-4, 3), "IQ4_NL": (-127, 113), "IQ3_XXS": (-62, 62)}
"""Integers that the fills above reach in formats whose integers are wide."""


@pytest.mark.parametrize("name", WIDEST)
def test_those_weights_are_the_extremes(name):
    found = [FORMATS[name].integers(filled(name, byte, 256)).q for byte in (0x00, 0x7F, 0x80, 0xFF)]
    assert (min(q.min() for q in found), max(q.max() for q in found)) == WIDEST[name]


# --- scales that are not finite ---


def broken(name, at, value):
    """The last scale of the last block is ``value``; ``at`` -1 is where ``put_scales`` writes it."""
    weight = random_weight("blk.0.ffn_up.weight", name, 20, 512, seed=16)
    fmt = FORMATS[name]
    blocks = weight.data.reshape(-1, fmt.BYTES).copy()
    scale = np.array([value], np.float32)
    if at < 0:
        put_scales(fmt, blocks[-1:], scale)
    else:
        put_half(blocks[-1:], at, scale)
    return weight._replace(data=blocks.reshape(20, -1))


ALWAYS_FINITE = ("MXFP4", "NVFP4")
"""Formats whose every byte is a finite scale."""


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [name for name in QUANTISED if name not in ALWAYS_FINITE])
def test_scales_that_are_not_finite_are_refused_by_name(name, value, backend):
    fmt = FORMATS[name]
    for at in [fmt.D_AT] + [fmt.M_AT] * (fmt.M_AT >= 0):
        weight = broken(name, at, value)
        values = normals(17, 1, 512)
        with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight") as caught:
            run(lambda ops: ops.linear(inputs(ops, values), weight), rows_of(1), backend=backend)  # noqa: B023
        assert caught.value.name == "NON_FINITE_SCALE"


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_format_that_is_not_there_is_refused_by_name(backend):
    weight = Weight("blk.3.ffn_gate.weight", 36, (32, 256), np.zeros((32, 66), np.uint8))
    with pytest.raises(UnsupportedModel, match=r"blk\.3\.ffn_gate\.weight") as caught:
        run(lambda ops: ops.linear(inputs(ops, normals(17, 1, 256)), weight), rows_of(1), backend=backend)
    assert caught.value.name == "UNSUPPORTED_WEIGHT_TYPE"


def test_the_largest_finite_scale_is_taken():
    weight = broken("Q8_0", FORMATS["Q8_0"].D_AT, 65504.0)
    run_both(lambda ops: ops.linear(inputs(ops, normals(17, 2, 512)), weight), (), rows_of(2))


# --- fused instructions: gate, up and activation in one, residuals added on the way out ---


@pytest.mark.parametrize("activation", ["silu", "gelu", "swiglu_oai"])
@pytest.mark.parametrize("gate, up, down", [("Q4_K", "Q8_0", "Q6_K"), ("Q4_0", "Q4_0", "F32"), ("F16", "Q4_1", "Q5_K")])
def test_feed_forward(gate, up, down, activation):
    values = spread_inputs(256, 65)
    w_gate, w_up = random_weight("gate", gate, 512, 256, 20, 0.1), random_weight("up", up, 512, 256, 21, 0.1)
    w_down = random_weight("down", down, 256, 512, 22, 0.1)

    def forward(ops):
        x = inputs(ops, values)
        hidden = ops.gated(ops.linear(x, w_gate), ops.linear(x, w_up), activation)
        return ops.add(x, ops.linear(hidden, w_down))

    check_row_counts(forward, 65, (1, 2, 8, 15, 16, 17, 33, 65), threads=3)


def test_outputs_before_the_last_product():
    """Only wanted rows reach the vocabulary, and they are those of all rows."""
    values = spread_inputs(96, 40)
    norm, weight = float_weight("norm", normals(24, 96)), random_weight("w", "Q8_0", 51, 96, 23)

    def forward(ops):
        return ops.linear(ops.rms_norm(ops.outputs(inputs(ops, values)), norm, 1e-5), weight)

    everything = run_both(forward, (), rows_of(40))
    with loaded(forward, threads=3) as program:
        for wanted in [(0,), (39,), (1, 17, 38), (), tuple(range(16)), tuple(range(3, 20))]:
            batch = rows_of(40)
            batch = type(batch)(batch.tokens, batch.positions, batch.sequences, wanted)
            assert program.run(batch).tobytes() == everything[list(wanted)].tobytes()
