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

WIDTHS = (32, 64, 96, 256, 288, 576)
ODD_WIDTHS = (1, 33, 100, 257)
"""Float formats have no blocks."""

OUTPUTS = 40
"""Two whole groups of 16 rows and a half."""


def cases():
    for name, fmt in FORMATS.items():
        widths = [width for width in WIDTHS if width % fmt.BLOCK == 0]
        widths += [] if fmt.QUANTISED else ODD_WIDTHS
        widths += [2 * fmt.BLOCK, 3 * fmt.BLOCK] if fmt.BLOCK > 32 else []
        for width in sorted(set(widths)):
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


EXTREMES = {
    "Q1_0": (2, -1, 1, 1),
    "Q2_0": (2, -1, 2, 1),
    "Q4_0": (2, -8, 7, 1),
    "Q4_1": (4, 0, 15, 1),
    "Q5_0": (2, -16, 15, 1),
    "Q5_1": (4, 0, 31, 1),
    "Q8_0": (2, -128, 127, 1),
    "Q2_K": (16, 0, 3, 15),
    "Q3_K": (0, -4, 3, (-32, 31)),
    "Q4_K": (16, 0, 15, 63),
    "Q5_K": (16, 0, 31, 63),
    "Q6_K": (0, -32, 31, (127, -128)),
    "IQ4_NL": (2, -127, 113, 1),
    "IQ4_XS": (2, -127, 113, (-32, 31)),
    "TQ1_0": (0, -1, 1, 1),
    "TQ2_0": (0, -1, 2, 1),
    "MXFP4": (1, -12, 12, 1),
    "NVFP4": (4, -12, 12, 1),
}
"""Where the integers (and factors stored with them) begin in a block, the lowest and highest of them, and the factor
each is given, one or that of the lowest and that of the highest. Lattices have no such rows."""

FILLS = {"Q8_0": (128, 127), "MXFP4": (0xFF, 0x77), "NVFP4": (0xFF, 0x77)}
"""What the bytes of the lowest and the highest integers are, where not 0 and 255."""


def extreme(name, highest, columns):
    """One row whose integers are all as large (or as small) as they can be, with every scale 1 and minimum 0."""
    fmt = FORMATS[name]
    blocks = np.zeros((columns // fmt.BLOCK, fmt.BYTES), np.uint8)
    quants, low, high, sub = EXTREMES[name]
    blocks[:, quants:] = FILLS.get(name, (0, 255))[highest]
    sub = sub[highest] if isinstance(sub, tuple) else sub
    if name == "Q6_K":
        blocks[:, 192:208] = np.int8(sub).view(np.uint8)
    if name == "Q2_K":
        blocks[:, :16] = 15
    if name in ("Q4_K", "Q5_K"):
        blocks[:, 4:8] = 63 | 0xC0  # scales 63; the upper bits are those of scales 4 to 7
        blocks[:, 8:12] = 0
        blocks[:, 12:16] = 15
    put_scales(fmt, blocks, np.ones(len(blocks), np.float32), np.zeros(len(blocks), np.float32))
    return blocks.reshape(1, -1), high if highest else low, sub


def summed(integer, sub, signs):
    """The product of a row of ``integer`` with +-127, by whole numbers inside a block and single roundings between."""
    total = np.float32(0)
    for chunk in range(0, len(signs), 256):
        partial = np.float32(0)
        for block in range(chunk, min(chunk + 256, len(signs)), 32):
            dot = sum(int(sign) * 127 * integer for sign in signs[block : block + 32])
            partial = np.float32(fused(dot, sub, partial))
        total = np.float32(fused(1, total, partial))
    return total


@pytest.mark.parametrize("highest", [True, False], ids=["highest", "lowest"])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_weights_against_whole_numbers(name, highest):
    columns = 512
    raw, integer, sub = extreme(name, highest, columns)
    weight = Weight("w", FORMATS[name].TYPE_ID, (16, columns), np.repeat(raw, 16, axis=0))
    signs = np.ones((4, columns), np.int64)
    signs[1] = -1
    signs[2, 1::2] = -1
    signs[3] = np.where(normals(15, columns) > 0, 1, -1)
    values = (signs * 127).astype(np.float32)
    found = run_both(lambda ops: ops.linear(inputs(ops, values), weight), (), rows_of(4))
    for row in range(4):
        expected = summed(integer, sub, signs[row])
        assert set(found[row].tolist()) == {float(expected)}, (row, Fraction(float(expected)))
    assert integer == 0 or abs(found[0, 0]) > 0


# --- scales that are not finite ---


def broken(name, at, value):
    weight = random_weight("blk.0.ffn_up.weight", name, 20, 512, seed=16)
    fmt = FORMATS[name]
    blocks = weight.data.reshape(-1, fmt.BYTES).copy()
    put_half(blocks[-1:], at, np.array([value], np.float32))
    return weight._replace(data=blocks.reshape(20, -1))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", QUANTISED)
def test_scales_that_are_not_finite_are_refused_by_name(name, value, backend):
    fmt = FORMATS[name]
    for at in [at for at in (fmt.D_AT, fmt.M_AT) if at >= 0]:
        weight = broken(name, at, value)
        values = normals(17, 1, 512)
        with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight") as caught:
            run(lambda ops: ops.linear(inputs(ops, values), weight), rows_of(1), backend=backend)  # noqa: B023
        assert caught.value.name == "NON_FINITE_SCALE"


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_format_that_is_not_there_is_refused_by_name(backend):
    weight = Weight("blk.3.ffn_gate.weight", 4, (32, 256), np.zeros((32, 64), np.uint8))
    with pytest.raises(UnsupportedModel, match=r"blk\.3\.ffn_gate\.weight") as caught:
        run(lambda ops: ops.linear(inputs(ops, normals(17, 1, 256)), weight), rows_of(1), backend=backend)
    assert caught.value.name == "UNSUPPORTED_WEIGHT_TYPE"


def test_the_largest_finite_scale_is_taken():
    weight = broken("Q8_0", FORMATS["Q8_0"].D_AT, 65504.0)
    run_both(lambda ops: ops.linear(inputs(ops, normals(17, 2, 512)), weight), (), rows_of(2))


# --- fused instructions: gate, up and activation in one, residuals added on the way out ---


@pytest.mark.parametrize("activation", ["silu", "gelu"])
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
