"""Operations on single rows, alone: embed, scale, norm, add, activations, rotation, the choice of outputs."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import Rope
from kinetic.backends.reference import functions
from kinetic.backends.rope_tables import frequencies
from kinetic.errors import UnsupportedModel
from kinetic.formats.samples import put_half
from kinetic.types import Batch
from tests.support.backends import assert_same, check_row_counts, inputs, loaded, rows_of, run, run_both, same
from tests.support.blocks import FORMATS, any_floats, float_weight, normals, random_weight, uniforms

COUNTS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 45, 64, 65)
ROWS = max(COUNTS)
EDGES = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 1.0, -1.0, 3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan]

# What the activations see near their turning points: exp's limits, and where 1 + exp(-x) stops changing.
TURNING = [16.6, 17.4, 86.9, 87.0, 87.1, 88.7, 88.72, 88.73, 103.9, 104.0, 104.1, 5.5, 6.0, 9.1, 10.0, 1e19, 1e20]


def wide(seed, rows, columns):
    """Rows of sizes from 2^-30 to 2^30, and some that are nothing but edges."""
    values = np.ldexp(normals(seed, rows, columns), (np.arange(rows) * 7 % 61 - 30)[:, None])
    values[-1] = np.resize(np.array(EDGES, np.float32), columns)
    return values


@pytest.mark.parametrize("name", FORMATS)
def test_embed(name):
    table = random_weight("token_embd.weight", name, 40, 256, seed=30)
    for tokens in [(39,), (0, 7, 7, 39, 3)]:
        rows = range(len(tokens))
        batch = Batch(tokens, tuple(rows), (0,) * len(tokens), tuple(rows))
        found = run_both(lambda ops: ops.outputs(ops.embed(table)), (), batch)
        assert_same(found, FORMATS[name].decode(table.data)[list(tokens)])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_table_with_a_scale_that_is_not_finite_is_refused(backend):
    """Even in a row that nobody asks for."""
    table = random_weight("token_embd.weight", "Q4_1", 40, 64, seed=30)
    put_half(table.data.reshape(-1, FORMATS["Q4_1"].BYTES)[-1:], FORMATS["Q4_1"].M_AT, np.array([np.inf], np.float32))
    with pytest.raises(UnsupportedModel, match=r"token_embd\.weight") as caught:
        run(lambda ops: ops.outputs(ops.embed(table)), rows_of(1), backend=backend)
    assert caught.value.name == "NON_FINITE_SCALE"


@pytest.mark.parametrize("factor", [1.0, 0.1, 25.298221281347036, -3.0, 0.0, 2.0**-140, 1e38])
def test_scale(factor):
    check_row_counts(lambda ops: ops.scale(inputs(ops, wide(31, ROWS, 50)), factor), ROWS, COUNTS, threads=3)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 50, 96, 256, 576])
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_rms_norm_of_rows(width, eps):
    weight = float_weight("norm", normals(32, width))
    values = wide(33, ROWS, width)
    check_row_counts(lambda ops: ops.outputs(ops.rms_norm(inputs(ops, values), weight, eps)), ROWS, COUNTS)


@pytest.mark.parametrize("width, heads", [(16, 3), (24, 3), (64, 2), (80, 3), (5, 4)])
def test_rms_norm_of_heads(width, heads):
    """Groups that are no multiple of a vector must not touch their neighbours."""
    weight = float_weight("norm", normals(34, width))
    values = wide(35, ROWS, width * heads)
    check_row_counts(lambda ops: ops.outputs(ops.rms_norm(inputs(ops, values), weight, 1e-6)), ROWS, COUNTS)


def test_rms_norm_of_zeros_and_extremes():
    """eps alone decides the root of a zero row; squares overflow and underflow as they must."""
    weight = float_weight("norm", normals(36, 40))
    values = np.stack([np.full(40, value, np.float32) for value in [0, -0.0, 1e-30, 1e19, 2e19, 3e38, np.inf, np.nan]])
    for eps in (1e-5, 0.0, 1e-38):
        found = run_both(lambda ops: ops.outputs(ops.rms_norm(inputs(ops, values), weight, eps)), (), rows_of(8))  # noqa: B023
        assert np.isfinite(found[2]).all() or eps == 0


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_norm_weights_of_other_formats(kind):
    weight = random_weight("norm", kind, 1, 96, seed=37)._replace(shape=(96,))
    values = wide(38, 5, 96)
    run_both(lambda ops: ops.outputs(ops.rms_norm(inputs(ops, values), weight, 1e-5)), (), rows_of(5))


def test_norm_with_its_two_readers():
    """A norm that a quantised and a float product both read is made twice, in two forms, from the same numbers."""
    norm = float_weight("norm", normals(39, 96))
    first, second = random_weight("a", "Q8_0", 96, 96, 40), random_weight("b", "F16", 96, 96, 41)

    def forward(ops):
        normed = ops.rms_norm(inputs(ops, normals(42, ROWS, 96)), norm, 1e-5)
        return ops.add(ops.linear(normed, first), ops.linear(normed, second))

    check_row_counts(forward, ROWS, COUNTS, threads=3)


@pytest.mark.parametrize("width", [1, 16, 50])
def test_add(width):
    values = wide(43, ROWS, width)

    def forward(ops):
        x = inputs(ops, values)
        return ops.add(ops.scale(x, 0.7), x)

    check_row_counts(forward, ROWS, COUNTS)


@pytest.mark.parametrize("activation", ["silu", "gelu", "swiglu_oai"])
def test_gated(activation):
    """The whole range of a gate, with the places where exp changes its rule and every edge value."""
    points = np.array([*EDGES, *TURNING, *(-np.array(TURNING))], np.float32)
    sweep = (uniforms(44, ROWS * 50 - len(points)) - np.float32(0.5)) * np.float32(240)
    values = np.concatenate([points, sweep]).reshape(ROWS, 50)

    def forward(ops):
        x = inputs(ops, values)
        return ops.gated(x, ops.scale(x, -0.37), activation)

    check_row_counts(forward, ROWS, COUNTS, threads=3)


@pytest.mark.parametrize("activation", ["silu", "gelu", "swiglu_oai"])
def test_gated_with_any_bits(activation):
    values = any_floats(45, 64, 100)

    def forward(ops):
        x = inputs(ops, values)
        return ops.gated(x, ops.scale(x, 1.5), activation)

    run_both(forward, (), rows_of(64))


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
@pytest.mark.parametrize("width, rotated", [(64, 64), (80, 80), (64, 16), (128, 96), (16, 16), (20, 6), (256, 256)])
def test_rope(width, rotated, interleaved):
    """Whole heads and parts of them; the first positions, and those around the growth of the tables."""
    rope = Rope(frequencies(10000.0, rotated), interleaved)
    values = wide(46, ROWS, 3 * width)

    def forward(ops):
        return ops.rope(inputs(ops, values), rope, width)

    for start in (0, 250, 5000):
        batch = rows_of(ROWS, start)
        expected = run(forward, batch, backend="reference")
        with loaded(forward, threads=3) as program:
            for count in (1, 3, 17, ROWS):
                assert_same(program.run(rows_of(count, start)), expected[:count], f"at {start} with {count} rows")
    assert not same(expected[1], values[1]).all()


def test_rope_far_out():
    rope = Rope(frequencies(1_000_000.0, 8), True)
    run_both(lambda ops: ops.rope(inputs(ops, wide(47, 9, 16)), rope, 8), (), rows_of(9, 131_000))


def test_rope_with_magnitude_and_divisors():
    rope = Rope(frequencies(500000.0, 32, tuple(float(d) for d in range(1, 17)), 4.0), False, 1.19)
    run_both(lambda ops: ops.rope(inputs(ops, wide(47, 9, 96)), rope, 32), (), rows_of(9, 1000))


def test_norm_then_rope():
    """Fused on the CPU: each head is normed and turned in one step."""
    rope = Rope(frequencies(10000.0, 24), False)
    norm = float_weight("norm", normals(48, 24))

    def forward(ops):
        return ops.rope(ops.rms_norm(inputs(ops, wide(49, ROWS, 72)), norm, 1e-6), rope, 24)

    check_row_counts(forward, ROWS, COUNTS, threads=3)


def test_exp_of_the_program():
    """What sampling uses: a dense sweep, every 65,521st bit pattern, every limit and its neighbours, short lengths."""
    limits = np.array([0, -0.0, -87, 88.72, -104, 88.8, 128, -150, np.inf, -np.inf, np.nan], np.float32)
    near = np.concatenate([np.nextafter(limits[:8], np.float32(sign * 1000)) for sign in (-1, 1)])
    patterns = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    # A polynomial with one step rounded twice differs in one of a thousand values.
    sweep = (uniforms(51, 300_000) - np.float32(0.54)) * np.float32(194)
    x = np.concatenate([limits, near, patterns, sweep])
    with loaded(lambda ops: ops.outputs(inputs(ops, normals(50, 1, 1)))) as program:
        assert_same(program.exp(x), functions.exp32(x))
        for length in range(1, 41):
            assert_same(program.exp(x[:length]), functions.exp32(x[:length]), f"of {length}")
