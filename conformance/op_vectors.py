"""Runs a vector of ``vectors/ops`` on a backend: inputs in, bits out.

found = run(vector, device="cpu")         # name of an output: its array
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetic.api import probe
from kinetic.backends.base import (
    BLOCK,
    DELTA_COLUMNS,
    Array,
    Attention,
    Delta,
    Experts,
    Forward,
    Ops,
    Rope,
    Routing,
    State,
    Weight,
)
from kinetic.types import Batch, Sampling

FOLDER = Path(__file__).resolve().parent / "vectors" / "ops"

Vector = Mapping[str, Any]
Arrays = dict[str, NDArray[Any]]
Run = Callable[[Vector, Arrays, Mapping[str, Any]], Arrays]
"""Vector, its inputs, and the options of ``probe.run_operations``, to its outputs."""


def read() -> Iterator[tuple[str, Vector]]:
    """Name and content of every vector."""
    for path in sorted(FOLDER.glob("*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def run(vector: Vector, **options: Any) -> Arrays:
    """The outputs that a backend gives. ``options``: device, threads, isa. Raises KeyError for an unknown operation."""
    return RUNNERS[vector["op"]](vector, arrays(vector.get("inputs", {})), options)


def wanted(vector: Vector) -> Arrays:
    """The outputs that a backend must give."""
    if vector["op"] == "random_bits":
        return {"bits": np.array([int(case["bits"]) for case in vector["cases"]], np.uint64)}
    if vector["op"] == "quantise":
        q, d = arrays(vector["outputs"]).values()
        # What a product with a single one shows of it: q times d, rounded once.
        return {"y": (q.astype(np.float32) * d[..., None]).reshape(len(q), -1)}
    return arrays(vector["outputs"])


def arrays(group: Mapping[str, Any]) -> Arrays:
    return {name: _array(value) for name, value in group.items()}


def _array(value: Mapping[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(value["dtype"]).newbyteorder("<")
    return np.frombuffer(bytes.fromhex(value["hex"]), dtype).reshape(value["shape"]).astype(value["dtype"])


def same(found: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    """Where two arrays have the same bits, or a NaN both."""
    if found.dtype != np.float32:
        return np.asarray(found == expected)
    bits = np.ascontiguousarray(found).view(np.uint32) == np.ascontiguousarray(expected).view(np.uint32)
    return np.asarray(bits | (np.isnan(found) & np.isnan(expected)))


# --- one operation each ---


def _one_pass(forward: Forward, rows: int, options: Mapping[str, Any], **more: Any) -> NDArray[np.float32]:
    """``forward`` over ``rows`` rows: token t is row t of the tables, at position t or as ``positions`` says."""
    positions = tuple(more.get("positions", range(rows)))
    # Each in a sequence of its own where positions have gaps: nothing came before them.
    sequences = tuple(range(rows)) if "positions" in more else (0,) * rows
    batch = Batch(tuple(range(rows)), positions, sequences, tuple(range(rows)))
    layers, states = more.get("layers", ()), more.get("states", ())
    return probe.run_operations(forward, layers, [batch], states=states, **options)[0]


def _table(name: str, values: NDArray[np.float32]) -> Weight:
    """float32 [N, K] or [K] as an F32 weight."""
    matrix = np.ascontiguousarray(np.atleast_2d(values), "<f4")
    return Weight(name, 0, np.shape(values), matrix.view(np.uint8))


def _exp(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    with probe.bare(options["device"], options.get("isa", ""), width=len(given["x"])) as program:
        return {"y": program.exp(given["x"])}


def _activation(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    return {"y": activate(given["x"].reshape(1, -1), vector["op"], **options).reshape(-1)}


def activate(x: NDArray[np.float32], name: str, **options: Any) -> NDArray[np.float32]:
    """``name`` ("silu", "gelu", ...) of x float32 [T, K], finite, as the gate of a 1."""

    def forward(ops: Ops) -> Array:
        gate, width = ops.embed(_table("gate", x)), x.shape[1]
        zeros, ones = _table("zeros", np.zeros((width, width), np.float32)), _table("ones", np.ones(width, np.float32))
        return ops.gated(gate, ops.linear(gate, zeros, ones), name)

    return _one_pass(forward, len(x), options)


def _swiglu_oai(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    """Both sides come from one table."""
    width = len(given["gate"])

    def forward(ops: Ops) -> Array:
        x = ops.embed(_table("sides", np.concatenate([given["gate"], given["up"]]).reshape(1, -1)))
        return ops.gated(ops.cut(x, 1, 0, width), ops.cut(x, 1, width, width), "swiglu_oai")

    return {"y": _one_pass(forward, 1, options).reshape(-1)}


def _quantise(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    """Through products with rows that are 1 at one place and 0 elsewhere, in Q8_0."""
    x, width = given["x"], given["x"].shape[1]
    q8 = probe.formats()["Q8_0"]
    blocks = np.zeros((width, width // BLOCK, q8.BYTES), np.uint8)
    blocks[..., q8.D_AT : q8.D_AT + 2] = np.array([1], "<f2").view(np.uint8)
    for i in range(width):
        blocks[i, i // BLOCK, q8.D_AT + 2 + i % BLOCK] = 1
    weight = Weight("ones", q8.TYPE_ID, (width, width), blocks.reshape(width, -1))
    return {"y": _one_pass(lambda ops: ops.linear(ops.embed(_table("x", x)), weight), len(x), options)}


def _rms_norm(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    x, weight, eps = given["x"], _table("weight", given["weight"]), vector["parameters"]["eps"]
    return {"y": _one_pass(lambda ops: ops.rms_norm(ops.embed(_table("x", x)), weight, eps), len(x), options)}


def _rope(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    p, x = vector["parameters"], given["x"]
    rope = Rope(probe.frequencies(p["base"], p["rotated"]), p["interleaved"], first=p.get("first", 0))
    forward: Forward = lambda ops: ops.rope(ops.embed(_table("x", x)), rope, p["head_dim"])  # noqa: E731
    return {"y": _one_pass(forward, len(x), options, positions=p["positions"])}


def _attend(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    p = vector["parameters"]
    spec = Attention(0, p["heads"], p["kv_heads"], p["head_dim"], p["scale"], p["window"], p.get("value_dim", 0))
    rows = len(given["k"])
    q = np.zeros((rows, given["q"].shape[1]), np.float32)
    q[p["rows"]] = given["q"]

    sinks = _table("sinks", given["sinks"]) if "sinks" in given else None

    def forward(ops: Ops) -> Array:
        queries, keys, values = _taken(ops, [q, given["k"], given["v"]])
        return ops.attend(queries, keys, values, spec, sinks)

    return {"y": _one_pass(forward, rows, options, layers=[spec])[p["rows"]]}


def _taken(ops: Ops, parts: Sequence[NDArray[np.float32]]) -> list[Array]:
    """All come from one table; a product with ones and zeros takes each out of it, to the bit."""
    ends = np.cumsum([0, *(part.shape[1] for part in parts)])  # exact: integers
    x, ones = ops.embed(_table("parts", np.concatenate(parts, axis=1))), np.eye(ends[-1], dtype=np.float32)
    return [ops.linear(x, _table(f"part at {begin}", ones[begin:end])) for begin, end in pairwise(ends)]


def _linear(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    x, raw = given["x"], given["weight"]
    weight = Weight("weight", vector["parameters"]["ggml_type"], (len(raw), x.shape[1]), raw)
    return {"y": _one_pass(lambda ops: ops.linear(ops.embed(_table("x", x)), weight), len(x), options)}


def _route(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    logits, routing = given["logits"], Routing(**vector["parameters"])
    bias = _table("bias", given["bias"]) if "bias" in given else None
    forward: Forward = lambda ops: ops.route(ops.embed(_table("x", logits)), routing, bias)  # noqa: E731
    return {"routes": _one_pass(forward, len(logits), options)}


def _linear_heads(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    x, heads = given["x"], vector["parameters"]["heads"]
    weight = _table("weight", given["weight"])._replace(
        shape=(heads, len(given["weight"]) // heads, x.shape[1] // heads)
    )
    return {"y": _one_pass(lambda ops: ops.linear_heads(ops.embed(_table("x", x)), weight), len(x), options)}


def _experts(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    """Inputs and logits come from one table, as in ``_attend``."""
    p, x, logits = vector["parameters"], given["x"], given["logits"]
    width, count = x.shape[1], p["experts"]
    shapes = {name: (count, len(given[name]) // count, size) for name, size in (("gate", width), ("up", width))}
    shapes["down"] = (count, len(given["down"]) // count, shapes["gate"][1])
    weights = [Weight(name, p["ggml_type"], shape, given[name]) for name, shape in shapes.items()]
    biases = [_table(name, given[name]) if name in given else None for name in ("gate_bias", "up_bias", "down_bias")]
    experts = Experts(weights[0], weights[1], weights[2], p["activation"], *biases)
    both, ones = np.concatenate([x, logits], axis=1), np.eye(width + count, dtype=np.float32)

    def routes(ops: Ops, table: Array) -> Array:
        return ops.route(ops.linear(table, _table("logits", ones[width:])), Routing(p["used"]))

    def mixed(ops: Ops) -> Array:
        table = ops.embed(_table("x", both))
        return ops.experts(ops.linear(table, _table("inputs", ones[:width])), routes(ops, table), experts)

    found = {"routes": _one_pass(lambda ops: routes(ops, ops.embed(_table("x", both))), len(x), options)}
    return found | {"y": _one_pass(mixed, len(x), options)}


def _short_conv(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    p, x, weight = vector["parameters"], given["x"], _table("weight", given["weight"])
    bias = _table("bias", given["bias"]) if "bias" in given else None
    state = State(0, "short_conv", (p["taps"] - 1, x.shape[1]))

    def forward(ops: Ops) -> Array:
        return ops.short_conv(ops.embed(_table("x", x)), weight, bias, state, p["activation"])

    return {"y": _one_pass(forward, len(x), options, states=[state])}


def _delta(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    p = vector["parameters"]
    state = State(0, "delta", (p["heads"], p["width"] // DELTA_COLUMNS, p["width"], DELTA_COLUMNS))
    spec = Delta(state, p["key_heads"], _table("a", given["a"]), _table("bias", given["bias"]), p["eps"])

    def forward(ops: Ops) -> Array:
        q, k, v, gate, beta = _taken(ops, [given[name] for name in ("q", "k", "v", "gate", "beta")])
        return ops.delta(q, k, v, gate, beta, spec)

    return {"y": _one_pass(forward, len(given["q"]), options, states=[state])}


def _draw(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    p = {name: value for name, value in vector["parameters"].items() if name != "history"}
    sampling = Sampling(**{name: _number(value) for name, value in p.items()})
    with probe.bare(options["device"], options.get("isa", ""), width=len(given["row"])) as program:
        count = len(_array(vector["outputs"]["tokens"]))
        tokens = [probe.draw(program, given["row"], list(range(n)), sampling) for n in range(1, count + 1)]
    return {"tokens": np.array(tokens, np.int32)}


def _number(value: Any) -> Any:
    return value if not isinstance(value, str) else int(value) if value.isdigit() else float(value)


def _random_bits(vector: Vector, given: Arrays, options: Mapping[str, Any]) -> Arrays:
    names = ("seed", "completion_index", "position", "purpose")
    found = [probe.random_bits(*(int(case[name]) for name in names)) for case in vector["cases"]]
    return {"bits": np.array(found, np.uint64)}


RUNNERS: dict[str, Run] = {
    "attend": _attend,
    "delta": _delta,
    "draw": _draw,
    "exp32": _exp,
    "experts": _experts,
    "gelu": _activation,
    "linear": _linear,
    "linear_heads": _linear_heads,
    "quantise": _quantise,
    "random_bits": _random_bits,
    "relu_sqr": _activation,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "route": _route,
    "short_conv": _short_conv,
    "sigmoid": _activation,
    "silu": _activation,
    "swiglu_oai": _swiglu_oai,
}
