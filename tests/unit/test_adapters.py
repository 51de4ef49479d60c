"""Adapters: what they add is what merged weights would give, in the very bits of the definition, row for row."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.adapters import close_all, fit, open_adapters
from kinetic.backends.reference.linear import linear
from kinetic.backends.reference.ops import Caches, ReferenceOps
from kinetic.backends.states import StateStore
from kinetic.engine import Engine
from kinetic.errors import KineticError, UnsupportedModel, UsageError
from kinetic.formats import by_type
from kinetic.gguf import Gguf
from kinetic.layers.adapted import Lora, Pair, adapted
from kinetic.loader import open_model_file
from tests.support.adapters import TABLE, merged, write_adapter
from tests.support.backends import rows_of, run_both
from tests.support.blocks import float_weight, normals, random_weight
from tests.support.tiny_families import write_tiny_family
from tests.support.tiny_models import write_tiny_llama, write_tiny_mixture
from tests.support.tiny_recurrent import write_tiny_recurrent

TOKENS = [3, 77, 105, 41, 250, 3, 9, 61, 84]
ATTENTION = {f"blk.{i}.attn_{name}.weight": 4 for i in range(2) for name in ("q", "k", "v", "output")}
FEED = {f"blk.{i}.ffn_{name}.weight": 3 for i in range(2) for name in ("gate", "up", "down")}
SMALL = {"width": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "ffn": 96}
Q8 = {"": "Q8_0"}
MIX = Q8 | {"attn_v": "F16"}


def logits(path, asked=(), tokens=TOKENS, rows=128, backend="cpu", threads=2):
    adapters = open_adapters(asked)
    try:
        with open_model_file(path) as file:
            loras = fit(adapters, file.gguf, file.weights)
            engine = Engine(file.gguf, file.weights, backend=backend, threads=threads, adapters=loras)
            try:
                return np.concatenate(list(engine.passes(tokens, 0, rows)))
            finally:
                engine.close()
    finally:
        close_all(adapters)


def test_as_merged_weights(tmp_path):
    """The table and the output matrix too, with two adapters, one of them taken away in part."""
    base = write_tiny_llama(tmp_path / "m.gguf", types={"": "F32"}, **SMALL)
    ranks = ATTENTION | FEED | {TABLE: 5, "output.weight": 2}
    one = write_adapter(tmp_path / "one.gguf", base, ranks)
    two = write_adapter(tmp_path / "two.gguf", base, ATTENTION, seed=2, alpha=0.5)
    with Gguf.open(base) as gguf:
        tensors = {}
        for name in ranks:
            weight = gguf.data(name).view(np.float32).reshape(gguf.tensors[name].shape)
            tensors[name] = merged(name, weight, one, 0.75)
            if name in ATTENTION:
                tensors[name] = merged(name, tensors[name], two, -1.0)
    whole = write_tiny_llama(tmp_path / "w.gguf", types={"": "F32"}, replace=tensors, **SMALL)
    found, expected, plain = logits(base, [(one, 0.75), (two, -1.0)]), logits(whole), logits(base)
    assert np.abs(found - expected).max() < 2e-4 < 1 < np.abs(found - plain).max()
    assert np.array_equal(logits(base, [(one, 0.0)]), plain)


def test_the_table_of_a_model_without_an_output_matrix(tmp_path):
    base = write_tiny_llama(tmp_path / "m.gguf", types={"": "F32"}, tied=True, **SMALL)
    one = write_adapter(tmp_path / "one.gguf", base, {TABLE: 6}, spread=0.1)
    with Gguf.open(base) as gguf:
        weight = gguf.data(TABLE).view(np.float32).reshape(gguf.tensors[TABLE].shape)
        replace = {TABLE: merged(TABLE, weight, one, 1.0)}
    whole = write_tiny_llama(tmp_path / "w.gguf", types={"": "F32"}, tied=True, replace=replace, **SMALL)
    found, plain = logits(base, [one]), logits(base)
    assert np.abs(found - logits(whole)).max() < 2e-4 < 0.5 < np.abs(found - plain).max()


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_bits_of_the_definition(tmp_path, kind):
    """Quantised weights stay as they are; every row has the bits that it has alone."""
    base = write_tiny_llama(
        tmp_path / "m.gguf", types=Q8 | {"attn_v": "F16"}, biases=True, tied=kind == "BF16", **SMALL
    )
    ranks = ATTENTION | FEED | {TABLE: 7} | ({} if kind == "BF16" else {"output.weight": 33})
    asked = [write_adapter(tmp_path / "one.gguf", base, ranks, kind=kind),
             (write_adapter(tmp_path / "two.gguf", base, ATTENTION, seed=2, kind=kind), 0.3)]  # fmt: skip
    expected = logits(base, asked, backend="reference")
    for rows, threads in ((128, 1), (128, 2), (1, 2), (4, 2)):
        assert logits(base, asked, rows=rows, threads=threads).tobytes() == expected.tobytes()
    assert logits(base, asked[::-1]).tobytes() != expected.tobytes()


def test_the_order_of_the_operations():
    """As docs/NUMERICS.md has it: the product with its bias, then one adapter after the other."""
    table = random_weight("token_embd.weight", "F32", 8, 96, 1)
    weight, bias = random_weight("w", "Q4_0", 40, 96, 2), float_weight("b", normals(3, 40))
    pairs = [Pair(random_weight(f"a{n}", "F32", 5, 96, 10 + n), random_weight(f"b{n}", "F32", 40, 5, 20 + n), 0.3 + n)
             for n in range(3)]  # fmt: skip
    loras = [Lora(f"{n}.gguf", {"w": pair}) for n, pair in enumerate(pairs)]
    batch = rows_of(6)

    def forward(ops):
        return ops.linear(ops.outputs(ops.embed(table)), weight, bias)

    def by_hand(order):
        ops = ReferenceOps(batch, Caches([]), StateStore(()))
        x = ops.embed(table)
        y = linear(x, weight) + by_type(0, "b").decode(bias.data).reshape(-1)
        for pair in order:
            y = y + linear(linear(x, pair.a), pair.b) * np.float32(pair.scale)
        return y

    found = run_both(adapted(forward, loras, {}), (), batch)
    assert found.tobytes() == by_hand(pairs).tobytes() != by_hand(pairs[::-1]).tobytes()


def test_parts_of_a_tensor_take_the_rows_of_the_pair(tmp_path):
    """One tensor for q, k and v: the same numbers as adapters of three, each with its own rows."""
    base = write_tiny_family(tmp_path / "phi3.gguf", "phi3")
    ranks = {f"blk.{i}.{name}.weight": 4 for i in range(2) for name in ("attn_qkv", "ffn_up", "ffn_down")}
    one = write_adapter(tmp_path / "one.gguf", base, ranks, kind="F16")
    expected = logits(base, [one], backend="reference")
    assert logits(base, [one]).tobytes() == logits(base, [one], rows=1).tobytes() == expected.tobytes()
    assert np.abs(expected - logits(base)).max() > 0.5
    # Only the rows of the values: the last ones of B.
    with Gguf.open(one) as gguf:
        name = "blk.0.attn_qkv.weight"
        a, b = (gguf.data(f"{name}.lora_{end}").view(np.float16).reshape(-1, n) for end, n in (("a", 64), ("b", 4)))
    zeros = b.copy()
    zeros[: (4 + 1) * 24] = 0
    halves = {f"{name}.lora_a": a.copy(), f"{name}.lora_b": zeros}
    values = write_adapter(tmp_path / "values.gguf", base, {}, tensors=halves)
    taps = {kind: taps_of(base, asked) for kind, asked in (("plain", []), ("values", [values]), ("all", [one]))}
    assert np.array_equal(taps["plain"]["q"], taps["values"]["q"])
    assert not np.array_equal(taps["plain"]["v"], taps["values"]["v"])
    assert np.array_equal(taps["all"]["v"], taps["values"]["v"])
    assert not np.array_equal(taps["all"]["q"], taps["values"]["q"])


def taps_of(path, asked):
    """Queries and values of the first layer."""
    seen = {}

    class Watch:
        def __init__(self, ops):
            self._ops = ops

        def attend(self, q, k, v, spec, sinks=None):
            if spec.layer == 0:
                q, v = self._ops.tap(q, "q"), self._ops.tap(v, "v")
            return self._ops.attend(q, k, v, spec, sinks)

        def __getattr__(self, name):
            return getattr(self._ops, name)

    adapters = open_adapters(asked)
    with open_model_file(path) as file:
        loras = fit(adapters, file.gguf, file.weights)
        engine = Engine(file.gguf, file.weights, backend="reference", watch=Watch, adapters=loras)
        list(engine.passes(TOKENS[:3]))
        seen = engine.taps()
        engine.close()
    close_all(adapters)
    return seen


def test_the_router_of_experts_is_a_product_as_others_are(tmp_path):
    base = write_tiny_mixture(tmp_path / "m.gguf", "granitemoe")
    ranks = {"blk.0.ffn_gate_inp.weight": 2, "blk.1.ffn_up_shexp.weight": 2, "blk.1.attn_q.weight": 2}
    one = write_adapter(tmp_path / "one.gguf", base, ranks)
    expected = logits(base, [one], backend="reference")
    assert logits(base, [one]).tobytes() == expected.tobytes() != logits(base).tobytes()


HALF = np.ones((3, 64), np.float32)


@pytest.mark.parametrize(
    "ranks, options, name",
    [
        ({}, {}, "EMPTY_ADAPTER"),
        ({"blk.0.attn_q.weight": 0}, {}, None),
        ({"blk.9.attn_q.weight": 2}, {}, "ADAPTER_TENSOR"),
        ({"blk.0.ffn_gate_exps.weight": 2}, {}, "ADAPTER_TENSOR"),
        ({"blk.0.attn_q.weight": 2}, {"tensors": {"output_norm.weight": np.ones(64, np.float32)}}, "ADAPTER_TENSOR"),
        ({"blk.0.attn_q.weight": 2}, {"tensors": {"blk.0.attn_k.weight.lora_a": HALF}}, "MISSING_TENSOR"),
        ({"output_norm.weight": 2}, {}, "UNSUPPORTED_ADAPTER"),
        ({"blk.0.attn_q.weight": 2}, {"keys": {"general.type": "model"}}, "NOT_AN_ADAPTER"),
        ({"blk.0.attn_q.weight": 2}, {"keys": {"general.type": None}}, "NOT_AN_ADAPTER"),
        ({"blk.0.attn_q.weight": 2}, {"keys": {"adapter.type": "dora"}}, "ADAPTER_TYPE"),
        ({"blk.0.attn_q.weight": 2}, {"keys": {"general.architecture": "qwen3"}}, "ADAPTER_ARCHITECTURE"),
        ({"blk.0.attn_q.weight": 2}, {"alpha": float("inf")}, "BAD_SETTING"),
        ({"blk.0.attn_q.weight": 2}, {"alpha": 3e38}, "BAD_SCALE"),
        (
            {"blk.0.attn_q.weight": 2},
            {"keys": {"adapter.alora.invocation_tokens": [1, 2]}},
            "UNSUPPORTED_ADAPTER",
        ),
    ],
)
def test_refused(tmp_path, ranks, options, name):
    base = write_tiny_llama(tmp_path / "m.gguf", types=Q8, **SMALL)
    with pytest.raises(KineticError) as caught:
        logits(base, [write_adapter(tmp_path / "one.gguf", base, ranks, **options)])
    assert name is None or caught.value.name == name
    assert "one.gguf" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("swap", [False, True])
def test_shapes_must_fit(tmp_path, swap):
    base = write_tiny_llama(tmp_path / "m.gguf", types=Q8, **SMALL)
    a, b = np.ones((2, 64), np.float32), np.ones((64 if swap else 63, 3 if swap else 2), np.float32)
    halves = {"blk.0.attn_q.weight.lora_a": a, "blk.0.attn_q.weight.lora_b": b}
    one = write_adapter(tmp_path / "one.gguf", base, {}, tensors=halves)
    with pytest.raises(UnsupportedModel) as caught:
        logits(base, [one])
    assert caught.value.name == "WRONG_SHAPE"


def test_experts_are_refused(tmp_path):
    base = write_tiny_mixture(tmp_path / "m.gguf", "mixtral")
    a, b = np.ones((6, 2, 64), np.float32), np.ones((6, 96, 2), np.float32)
    halves = {"blk.0.ffn_up_exps.weight.lora_a": a, "blk.0.ffn_up_exps.weight.lora_b": b}
    with pytest.raises(UnsupportedModel) as caught:
        logits(base, [write_adapter(tmp_path / "one.gguf", base, {}, tensors=halves)])
    assert caught.value.name == "UNSUPPORTED_ADAPTER" and "experts" in str(caught.value)


def test_products_with_a_factor_are_refused(tmp_path):
    """What is added would be multiplied by the factor, which it is not in llama.cpp."""
    factors = {"blk.0.attn_qkv": 0.5, "output": 0.5}
    model = write_tiny_recurrent(tmp_path / "m.gguf", "qwen35", factors=factors)
    for name in ("blk.0.attn_qkv.weight", "token_embd.weight"):
        adapter = write_adapter(tmp_path / "a.gguf", model, {name: 4})
        with pytest.raises(UnsupportedModel, match="multiplies by") as caught:
            logits(model, [adapter])
        assert caught.value.name == "UNSUPPORTED_ADAPTER"


def test_scales_must_be_finite(tmp_path):
    base = write_tiny_llama(tmp_path / "m.gguf", types=Q8, **SMALL)
    one = write_adapter(tmp_path / "one.gguf", base, {"blk.0.attn_q.weight": 2})
    for scale in (float("nan"), float("inf"), 1e39):
        with pytest.raises(UsageError):
            open_adapters([(one, scale)])
    with pytest.raises(UsageError):
        open_adapters([one] * 65)
