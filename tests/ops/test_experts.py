"""Mixtures of experts: which experts a row gets, and the sum of what they make, for every number of rows, as alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinetic.backends.base import Experts, Routing, Weight
from kinetic.backends.cpu import native, target
from kinetic.backends.cpu.weights import WeightStore
from kinetic.backends.reference.experts import route
from tests.support.backends import assert_same, check_row_counts, inputs, loaded, rows_of, run, run_both
from tests.support.blocks import FORMATS, any_floats, float_weight, normals, random_rows, random_weight

COUNTS = (1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65)


def matrices(name, kind, experts, rows, columns, seed):
    """A weight [experts, rows, columns] of format ``kind``."""
    fmt = FORMATS[kind]
    data = random_rows(fmt, experts * rows, columns, seed, 1.5 / np.sqrt(columns))
    return Weight(name, fmt.TYPE_ID, (experts, rows, columns), data)


def mixture(kinds, *, count=7, width=64, hidden=96, out=80, activation="silu"):
    gate, up, down = kinds
    return Experts(
        matrices("gate", gate, count, hidden, width, 1),
        matrices("up", up, count, hidden, width, 2),
        matrices("down", down, count, out, hidden, 3),
        activation,
    )


def passing(experts, routing, rows=65, router="F32"):
    """A forward pass of one mixture and a norm before it."""
    width = experts.up.shape[2]

    def forward(ops):
        x = ops.rms_norm(inputs(ops, normals(5, rows, width)), float_weight("norm", normals(6, width)), 1e-5)
        logits = ops.linear(x, random_weight("router", router, experts.up.shape[0], width, 7, 0.4))
        return ops.outputs(ops.experts(x, ops.route(logits, routing), experts))

    return forward


KINDS = {
    "Q4_0": ("Q4_0",) * 3,
    "gate and up differ": ("Q8_0", "Q4_1", "Q5_0"),
    "F32": ("F32",) * 3,
    "down as floats": ("Q8_0", "Q8_0", "F16"),
    "inputs as floats": ("BF16", "F16", "Q8_0"),
    "gate as floats": ("F32", "Q5_1", "Q4_0"),
    "NVFP4": ("MXFP4", "MXFP4", "IQ4_NL"),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_rows_as_alone(kinds, threads):
    forward = passing(mixture(kinds), Routing(used=2))
    expected = check_row_counts(forward, 65, COUNTS, threads)
    assert np.isfinite(expected).all()
    assert 0.1 < expected.std() < 10


@pytest.mark.parametrize("kinds", [("Q4_K", "Q4_K", "Q6_K"), ("Q2_K", "IQ3_S", "Q5_K"), ("TQ2_0", "TQ2_0", "IQ2_S")])
def test_superblocks(kinds):
    check_row_counts(passing(mixture(kinds, width=256, hidden=512), Routing(used=3)), 33, (1, 2, 7, 33))


@pytest.mark.parametrize("hidden, out", [(70, 50), (16, 16), (33, 1), (15, 100)])
def test_odd_widths(hidden, out):
    """Of float formats, which have no blocks."""
    experts = mixture(("F32", "BF16", "F16"), width=60, hidden=hidden, out=out, activation="gelu")
    check_row_counts(passing(experts, Routing(used=3)), 40, (1, 2, 9, 16, 17, 40))


@pytest.mark.parametrize("kind", ["Q4_0", "F32", "down as floats", "inputs as floats"])
def test_without_a_gate(kind):
    """``down(relu_sqr(up(x)))``; the gate that there is not is of no format."""
    experts = mixture(KINDS[kind], activation="relu_sqr")._replace(gate=None)
    expected = check_row_counts(passing(experts, Routing(used=2)), 65, COUNTS)
    assert 0.1 < expected.std() < 10


@pytest.mark.parametrize("used", [1, 2, 7])
@pytest.mark.parametrize("gating", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalised, scale", [(True, 1.0), (False, 1.0), (True, 2.5), (False, 0.3)])
def test_routings(used, gating, normalised, scale):
    routing = Routing(used, gating, normalised, scale)
    check_row_counts(passing(mixture(KINDS["Q4_0"]), routing, router="Q8_0"), 33, (1, 2, 17, 33))


def test_one_expert_for_all():
    """Many tiles of one expert, and most experts without a row."""

    def forward(ops):
        x = inputs(ops, normals(5, 65, 64))
        bias = float_weight("bias", np.array([0, 0, 99, 0, 50, 0, 0], np.float32))
        logits = ops.linear(x, random_weight("router", "F32", 7, 64, 7, 0.1), bias)
        return ops.experts(x, ops.route(logits, Routing(2)), mixture(KINDS["Q4_0"]))

    check_row_counts(forward, 65, COUNTS)


def test_two_mixtures_of_the_same_memory():
    """The second layer takes over the memory of the first, with residuals around both and wanted rows between."""

    def forward(ops):
        x = inputs(ops, normals(5, 40, 64))
        for layer in range(3):
            logits = ops.linear(x, random_weight(f"router {layer}", "F32", 7, 64, 7 + layer, 0.4))
            experts = mixture(KINDS["Q4_0"], out=64)
            named = [side._replace(name=f"{side.name} {layer}") for side in experts[:3]]
            x = ops.add(x, ops.experts(x, ops.route(logits, Routing(2)), Experts(*named, "silu")))
            if layer == 1:
                x = ops.outputs(x)
        return x

    expected = run(forward, rows_of(40), backend="reference")
    with loaded(forward, threads=3) as program:
        for _ in range(2):
            assert_same(program.run(rows_of(40)), expected)
        for wanted in ((0, 17, 39), (5,), ()):
            assert_same(program.run(replace(rows_of(40), outputs=wanted)), expected[list(wanted)])


@pytest.mark.parametrize("kinds", ["Q4_0", "F32", "down as floats", "inputs as floats"])
@pytest.mark.parametrize("activation", ["swiglu_oai", "silu"])
def test_biases(kinds, activation):
    """Of all three products; widths that leave the last group of columns short, where floats allow it."""
    hidden, out = (72, 50) if kinds == "F32" else (96, 80)
    plain = mixture(KINDS[kinds], hidden=hidden, out=out, activation=activation)
    spreads = {"gate_bias": (hidden, 3), "up_bias": (hidden, 5), "down_bias": (out, 2)}
    biases = {
        name: float_weight(name, normals(30 + spread, 7, length) * np.float32(spread))
        for name, (length, spread) in spreads.items()
    }
    found = check_row_counts(passing(plain._replace(**biases), Routing(3), 33), 33, (1, 2, 9, 16, 17, 33), 3)
    for name in biases:  # each has an effect of its own
        without = run(passing(plain._replace(**biases | {name: None}), Routing(3), 33), rows_of(33))
        assert (without != found).mean() > 0.9


# --- routing ---


def routes_of(logits, routing, backend, bias=None):
    """What a backend makes of ``logits`` [T, X]."""
    logits = np.asarray(logits, np.float32)
    weight = None if bias is None else float_weight("bias", bias)
    return run(lambda ops: ops.route(inputs(ops, logits), routing, weight), rows_of(len(logits)), backend=backend)


def routes_of_both(logits, routing, bias=None):
    found = routes_of(logits, routing, "cpu", bias)
    assert_same(found, routes_of(logits, routing, "reference", bias))
    return found


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "softmax_chosen"])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 128, 250])
def test_numbers_of_experts(gating, count):
    logits = normals(3, 20, count) * np.float32(3)
    routing = Routing(min(count, 8), gating)
    assert_same(routes_of(logits, routing, "cpu"), routes_of(logits, routing, "reference"))


def test_equal_values():
    """The lower number comes first."""
    found = routes_of([[1, 3, 3, -2, 3], [0, 0, -0.0, 0, 0]], Routing(4), "cpu")
    assert found[:, :4].tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    assert_same(found, route(np.array([[1, 3, 3, -2, 3], [0, 0, 0, 0, 0]], np.float32), Routing(4)))


def test_against_plain_softmax():
    logits = normals(9, 50, 12).astype(np.float64)
    found = routes_of(logits, Routing(3, scale=2.0), "cpu")
    for row, (result, values) in enumerate(zip(found, logits, strict=True)):
        chosen = sorted(range(12), key=lambda e: (-np.float32(values[e]), e))[:3]
        weights = np.exp(values[chosen]) / np.exp(values[chosen]).sum()
        assert result[:3].tolist() == chosen, row
        assert np.abs(result[3:] - 2 * weights).max() < 1e-6


def test_softmax_of_the_chosen():
    logits = normals(9, 50, 12).astype(np.float64) * 3
    found = routes_of_both(logits, Routing(4, "softmax_chosen", normalised=False))
    for result, values in zip(found, logits, strict=True):
        chosen = sorted(range(12), key=lambda e: (-np.float32(values[e]), e))[:4]
        weights = np.exp(values[chosen] - values.max())
        assert result[:4].tolist() == chosen
        assert np.abs(result[4:] - weights / weights.sum()).max() < 1e-6


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "softmax_chosen"])
def test_bias_of_the_choice(gating):
    """It decides who is chosen, and no weight shows it."""
    logits, bias = normals(40, 33, 9), np.zeros(9, np.float32)
    bias[[3, 7]] = 50, 40
    found = routes_of_both(logits, Routing(3, gating, normalised=False), bias)
    assert (found[:, :2] == [3, 7]).all()
    plain = routes_of_both(logits, Routing(9, gating, normalised=False))
    by_expert = np.take_along_axis(plain[:, 9:], np.argsort(plain[:, :9], axis=1), axis=1)
    if gating == "softmax_chosen":
        assert np.abs(found[:, 3:].sum(axis=1) - 1).max() < 1e-6
    else:
        assert_same(found[:, 3:].copy(), np.take_along_axis(by_expert, found[:, :3].astype(int), axis=1))


@pytest.mark.parametrize("gating", ["softmax", "sigmoid"])
@pytest.mark.parametrize("groups, used_groups, used", [(4, 2, 3), (2, 1, 6), (12, 5, 8), (6, 6, 2)])
def test_groups(gating, groups, used_groups, used):
    """Only experts of the groups with the best two are chosen; ties go to the lower numbers."""
    logits, bias = normals(41, 60, 24), normals(42, 1, 24)[0] * np.float32(0.3)
    logits[10:20] = np.round(logits[10:20])
    routing = Routing(used, gating, True, 2.5, groups, used_groups)
    assert_same(routes_of_both(logits, routing), route(logits, routing))
    found = routes_of_both(logits, routing, bias)
    values = route(logits, Routing(24, gating, normalised=False))
    for row, result in zip(values, found, strict=True):
        keys = np.zeros(24)
        keys[row[:24].astype(int)] = row[24:] + bias[row[:24].astype(int)]
        best = np.sort(keys.astype(np.float32).reshape(groups, -1), axis=1)[:, -2:]
        kept = sorted(range(groups), key=lambda g: (-(best[g, 0] + best[g, 1]), g))[:used_groups]
        allowed = [e for e in range(24) if e // (24 // groups) in kept]
        assert result[:used].tolist() == sorted(allowed, key=lambda e: (-np.float32(keys[e]), e))[:used]


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "softmax_chosen"])
@pytest.mark.parametrize("normalised", [True, False])
def test_any_floats(gating, normalised):
    """NaNs, infinities, subnormals: whatever comes of it, it is the same."""
    logits = any_floats(11, 64, 24)
    logits[:20] = normals(12, 20, 24) * np.float32(40)
    logits[3, 5], logits[4, 6], logits[5], logits[6] = np.nan, np.inf, -np.inf, -200
    routes_of_both(logits, Routing(5, gating, normalised))
    routes_of_both(logits, Routing(5, gating, normalised, groups=4, used_groups=3), any_floats(13, 1, 24)[0])


def test_weights_too_small_to_be_divided_by():
    """Of a sigmoid: their sum counts as 2^-14 then."""
    found = routes_of([[-30, -40, -50.0]], Routing(2, "sigmoid"), "cpu")
    assert 0 < found[0, 2] < 1e-8
    assert_same(found, routes_of([[-30, -40, -50.0]], Routing(2, "sigmoid"), "reference"))


def test_a_value_that_is_not_a_number():
    """It does not reach other rows."""
    experts = mixture(KINDS["Q4_0"])
    values = normals(5, 20, 64)
    values[7, 3] = np.nan

    def forward(ops):
        x = inputs(ops, values)
        logits = ops.linear(x, random_weight("router", "F32", 7, 64, 7, 0.4))
        return ops.experts(x, ops.route(logits, Routing(2)), experts)

    found = run_both(forward, (), rows_of(20))
    assert np.isnan(found[7]).all()
    assert np.isfinite(np.delete(found, 7, axis=0)).all()


# --- weights of experts ---


@pytest.mark.parametrize("kind", ["Q4_K", "F16"])
def test_packed_as_matrices_of_their_own(kind):
    """Also where rows are no whole groups; each byte of the file is given back once."""
    weight = matrices("weight", kind, 3, 21, 256, 8)
    given_back = []
    experts = weight._replace(release=lambda offset, length: given_back.extend(range(offset, offset + length)))
    rows = weight.data.reshape(3, 21, -1)
    alone = [Weight(f"expert {number}", weight.ggml_type, (21, 256), rows[number]) for number in range(3)]
    store = WeightStore(native.Kernels(target.choose(), [weight.ggml_type]), [experts, *alone], threads=2)
    packed = store.packed(experts)
    assert packed.matrix_bytes * 3 == len(packed.data)
    for number, one in enumerate(alone):
        begin = number * packed.matrix_bytes
        assert np.array_equal(packed.data[begin : begin + packed.matrix_bytes], store.packed(one).data)
    assert given_back == list(range(weight.data.nbytes))
    store.close()
