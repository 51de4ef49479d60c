"""Operations on a device against the reference, bit for bit: a graph of many, each tapped, and products of formats."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import ACTIVATIONS, Attention, Experts, Rope, Routing, Weight
from kinetic.backends.gpu import GpuBackend
from kinetic.backends.reference import ReferenceBackend
from kinetic.types import Batch
from tests.support.backends import assert_same, inputs
from tests.support.blocks import FORMATS, float_weight, random_weight

EDGES = np.array(
    [0, -0.0, 1e-45, -1e-40, 2.0**-126, 0.3, -0.6249, 0.625, 1, -1, 6.99, 7.01, -7.01, 9, 20, -20, 87, -88.5, 104, -110,
     1e5, -65519.9, 65520, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 6.1e-5, 5.9e-8, 2.9e-8, 3.1e-8],
    np.float32,
)  # fmt: skip
"""Where functions change their course, and float16 its exponent."""


def numbers(rows: int, width: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32) * 4
    x[: len(x) // 2, : len(EDGES)] = EDGES[:width]
    return np.roll(x, seed, axis=1)


def both(device, forward, batch: Batch, layers=()):
    """Logits and taps of the device and of the reference are the same."""
    found, expected = (backend.load(forward, layers) for backend in (GpuBackend(device), ReferenceBackend()))
    outputs = [program.run(batch) for program in (found, expected)]
    assert_same(*outputs)
    taps = found.taps()
    assert taps.keys() == expected.taps().keys()
    for name, values in expected.taps().items():
        assert_same(taps[name], values, name)
    return outputs[0], taps


def test_operations_on_edges(device):
    """All rows, then those that are wanted."""
    a, b = numbers(9, 96, 1), numbers(9, 96, 40)
    gate, grouped = numbers(9, 1, 3), np.random.default_rng(5).standard_normal((3, 32)).astype(np.float32)

    def forward(ops):
        x, y, one = inputs(ops, a, "a"), inputs(ops, b, "b"), inputs(ops, gate, "one")
        made = {
            "scale": ops.scale(x, 0.1),
            "add": ops.add(x, y),
            "square": ops.mul(x, x),
            "mul": ops.mul(x, y),
            "cap": ops.softcap(x, 30.0),
            "cut": ops.cut(x, 4, 5, 11),
            "join": ops.join(ops.cut(x, 3, 0, 8), y, 3),
            "shared": ops.join(x, ops.cut(y, 1, 0, 7), 4, shared=True),
            "norm": ops.rms_norm(y, float_weight("whole", b[0]), 1e-5),
            "heads": ops.rms_norm(x, float_weight("head", grouped[0]), 1e-6),
            "groups": ops.rms_norm(x, float_weight("groups", grouped), 1e-6),
        }
        made |= {f"{kind} alone": ops.activate(x, kind) for kind in ACTIVATIONS}
        made |= {f"{kind} gate": ops.gated(x, y, kind) for kind in (*ACTIVATIONS, "swiglu_oai")}
        made |= {f"{kind} of one": ops.gated(one, y, kind) for kind in ("sigmoid", "silu")}
        for name, value in made.items():
            ops.tap(value, name)
        wanted = ops.outputs(made["add"])
        return ops.tap(ops.scale(wanted, 3.0), "wanted")

    _, taps = both(device, forward, wanting(9, (0, 4, 8)))
    assert len(taps) == 11 + 2 * len(ACTIVATIONS) + 1 + 2 + 1
    assert all(np.isfinite(values).any() for values in taps.values())
    both(device, forward, wanting(9, ()))


def wanting(rows: int, outputs: tuple[int, ...]) -> Batch:
    return Batch(tuple(range(rows)), tuple(range(rows)), (0,) * rows, outputs)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(device, interleaved):
    """With elements before and behind those that rotate; positions beyond the first table too."""
    a = numbers(5, 80, 2)
    rope = Rope((1.0, 0.31, 0.02, 0.0007), interleaved, magnitude=1.19, first=3)
    batch = Batch(tuple(range(5)), (0, 1, 255, 256, 700), (0,) * 5, tuple(range(5)))
    both(device, lambda ops: ops.rope(inputs(ops, a), rope, 20), batch)


@pytest.mark.parametrize("name", ["Q4_1", "BF16"])
def test_products_and_biases(device, name):
    """Rows in more than one group, a whole chunk and a half, an odd number of outputs."""
    fmt = FORMATS[name]
    width = 512 if fmt.BLOCK == 256 else 384
    a = numbers(11, width, 7)
    a[3:] = np.random.default_rng(8).standard_normal((8, width))
    w = random_weight("w", name, 13, width, seed=5)
    bias = float_weight("bias", a[4, :13])

    def forward(ops):
        x = inputs(ops, a)
        ops.tap(ops.linear(x, w), "plain")
        return ops.linear(ops.outputs(x), w, bias)

    out, _ = both(device, forward, wanting(11, (1, 2, 9, 10)))
    assert np.isfinite(out).any()


def test_attention_of_several_sequences(device):
    """Rows of three sequences in one pass, and one that reads what an earlier node has stored."""
    spec = Attention(0, 4, 2, 16, 0.3, window=5, value_dim=8, softcap=3.0)
    q, k, v = numbers(9, 64, 1), numbers(9, 32, 2), numbers(9, 16, 3)
    sinks = float_weight("sinks", np.array([0.5, -100.0, np.inf, 90.0], np.float32))

    def forward(ops):
        made = ops.attend(inputs(ops, q, "q"), inputs(ops, k, "k"), inputs(ops, v, "v"), spec, sinks)
        again = ops.attend(inputs(ops, np.roll(q, 1, axis=0), "r"), None, None, spec)
        return ops.add(ops.tap(made, "made"), ops.tap(again, "again"))

    rows, positions = tuple(range(9)), (0, 0, 1, 0, 2, 1, 3, 4, 5)
    both(device, forward, Batch(rows, positions, (7, 3, 7, 9, 7, 3, 7, 7, 7), rows), (spec,))


ROUTINGS = (
    Routing(3),
    Routing(2, "sigmoid", normalised=False, scale=2.5),
    Routing(8, "softmax_chosen"),
    Routing(4, "sigmoid", scale=0.7, groups=4, used_groups=2),
    Routing(3, groups=6, used_groups=3),
)


def logits() -> np.ndarray:
    """Rows with ties, zeros of both signs, NaN, infinities, all NaN, all -inf, and sums that vanish."""
    x = np.round(np.random.default_rng(4).standard_normal((16, 24)) * 8).astype(np.float32) / 2
    x[6:9, :8] = EDGES[-8:], EDGES[20:28], EDGES[:8]
    x[0], x[1], x[2, ::2] = 0.0, np.nan, np.nan
    x[3], x[4], x[5] = -np.inf, -100.0, [0.0, -0.0] * 12
    return x


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
def test_routes(device, routing):
    bias = float_weight("bias", np.round(logits()[9] / 4))
    factors = float_weight("factors", numbers(2, 24, 13)[1])

    def forward(ops):
        x = inputs(ops, logits())
        ops.tap(ops.route(x, routing), "plain")
        ops.tap(ops.route(x, routing, bias), "biased")
        return ops.route(x, routing, None, factors)

    both(device, forward, wanting(16, ()))


@pytest.mark.parametrize("with_gate", [True, False])
def test_experts(device, with_gate):
    """Quantised and float matrices, biases, rows that are not finite."""
    a, scores = numbers(9, 64, 3), logits()[7:]

    def several(name: str, kind: str, rows: int, columns: int) -> Weight:
        return random_weight(name, kind, 24 * rows, columns, seed=rows)._replace(shape=(24, rows, columns))

    made = [float_weight(f"bias {n}", np.random.default_rng(n).standard_normal((24, n))) for n in (32, 13)]
    biases = (made[0], made[0], made[1]) if with_gate else ()
    gate = several("gate", "F16", 32, 64) if with_gate else None
    kind = "swiglu_oai" if with_gate else "relu_sqr"
    experts = Experts(gate, several("up", "Q4_0", 32, 64), several("down", "Q8_0", 13, 32), kind, *biases)

    def forward(ops):
        routes = ops.route(inputs(ops, scores, "scores"), Routing(3, "sigmoid"))
        x = inputs(ops, a)
        ops.tap(ops.linear(x, random_weight("same rows", "Q4_0", 5, 64, seed=1)), "beside")
        return ops.experts(x, routes, experts)

    out, _ = both(device, forward, wanting(9, tuple(range(9))))
    assert np.isfinite(out).any()


@pytest.mark.parametrize("kind", ["Q4_0", "F32"])
def test_products_of_heads(device, kind):
    a = numbers(9, 3 * 64, 3)
    w = random_weight("w", kind, 3 * 7, 64, seed=1)._replace(shape=(3, 7, 64))
    both(device, lambda ops: ops.linear_heads(inputs(ops, a), w), wanting(9, ()))
