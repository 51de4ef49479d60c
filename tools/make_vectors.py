"""Vectors of the arithmetic: ``python -m tools.make_vectors`` computes conformance/vectors/ops anew.

Each file is one operation of the profile: inputs, and the outputs of the
reference backend, as little-endian bytes in hex. Any implementation, in any
language, is right only if it gives these bits. A file that changes means that
the arithmetic changed; then the profile's draft number must rise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetic import rng
from kinetic.backends.base import CHUNK, DELTA_COLUMNS, Attention, Delta, Experts, Rope, Routing, Scan, State, Weight
from kinetic.backends.reference import functions, quantise
from kinetic.backends.reference.candidates import candidates
from kinetic.backends.reference.ops import Caches, ReferenceOps
from kinetic.backends.rope_tables import frequencies
from kinetic.backends.states import StateStore
from kinetic.bits import F32
from kinetic.formats import RUNNABLE, by_type
from kinetic.formats.samples import put_scales
from kinetic.sampling import Sampler
from kinetic.types import PROFILE, Batch, Sampling

FOLDER = Path(__file__).resolve().parent.parent / "conformance" / "vectors" / "ops"

EDGES = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, -87.0, -87.00001, -104.0, -105.0, 88.72, 88.73, np.inf, -np.inf]

Vector = dict[str, Any]

LATER_DRAWS: dict[str, Vector] = {
    "typical": {"temperature": "1.5", "typ_p": "0.5"},
    "top_n_sigma": {"temperature": "1.5", "top_k": 0, "top_n_sigma": "1.25"},
    "xtc": {"temperature": "1.5", "xtc_probability": "0.5", "xtc_threshold": "0.05"},
    "dynatemp": {"temperature": "1.25", "min_p": "0.01", "dynatemp_range": "0.75", "dynatemp_exponent": "0.5"},
    "dry": {
        "temperature": "1.5",
        "dry_multiplier": "4.5",
        "dry_base": "1.75",
        "dry_allowed_length": 0,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": [],
    },
}
"""Settings of further vectors of "draw", beside the defaults."""

LONG = ("F16", "Q4_1", "Q8_0")
"""Formats of products with more rows than devices share a weight between, and three chunks: the order of two sums can't
show."""


def vectors() -> Iterator[tuple[str, Vector]]:
    """(name, content) of every file."""
    yield "exp", _function(functions.exp32)
    yield "silu", _function(functions.silu)
    yield "gelu", _function(functions.gelu)
    yield "softcap", _softcap()
    yield "sigmoid", _function(functions.sigmoid)
    yield "relu_sqr", _function(functions.relu_sqr)
    yield "swiglu_oai", _swiglu_oai()
    yield "quantise", _quantise()
    yield "rms_norm", _rms_norm(40)
    yield "rms_norm_wide", _rms_norm(600)
    yield "rope", _rope(interleaved=False)
    yield "rope_interleaved", _rope(interleaved=True)
    yield "rope_part", _rope(interleaved=True, first=3)
    yield "attend", _attend(window=0)
    yield "attend_window", _attend(window=5)
    yield "attend_softcap", _attend(window=0, softcap=2.5)
    yield "attend_small", _attend(window=0, small=True)
    yield "attend_shared", _attend_shared()
    yield "attend_sinks", _attend(window=0, value_dim=6, sinks=True)
    for type_id in sorted(RUNNABLE):
        name = by_type(type_id, "").NAME
        yield f"linear_{name.lower()}", _linear(type_id, name)
        if name in LONG:
            yield f"linear_rows_{name.lower()}", _linear(type_id, name, rows=9, chunks=2)
    yield "route", _route("softmax", normalised=True, scale=1.0)
    yield "route_sigmoid", _route("sigmoid", normalised=False, scale=2.5)
    yield "route_factors", _route("softmax", normalised=True, scale=1.0, factors=True)
    yield "cut", _cut()
    yield "route_chosen", _route("softmax_chosen", normalised=False, scale=1.0)
    yield "route_groups", _route("sigmoid", normalised=True, scale=2.5, groups=5, used_groups=2)
    yield "experts", _experts()
    yield "short_conv", _short_conv(4, bias=True, activation="silu")
    yield "short_conv_plain", _short_conv(3, bias=False, activation="")
    yield "scan", _scan()
    yield "experts_biases", _experts("swiglu_oai", biases=True)
    yield "linear_heads", _linear_heads()
    yield "delta", _delta()
    yield "random_bits", _random_bits()
    yield "draw", _draw()
    for name, parameters in LATER_DRAWS.items():
        yield f"draw_{name}", _later_draw(parameters)


def main() -> int:
    """Write what changed; 1 if a file that was there did."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    before = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    after = {f"{name}.json": dump(vector) for name, vector in vectors()}
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            (FOLDER / name).unlink()
        elif before.get(name) != after[name]:
            (FOLDER / name).write_text(after[name], encoding="utf-8")
    changed = sorted(name for name in before if after.get(name) != before[name])
    for name in changed:
        print(f"{name} changed: the arithmetic is another, so the profile must be too")
    print(f"vectors: {len(after)} files, {len(changed)} changed, {len(after.keys() - before.keys())} new")
    return 1 if changed else 0


def dump(vector: Vector) -> str:
    return json.dumps({"profile": PROFILE, **vector}, indent=1) + "\n"


def _vector(op: str, parameters: Vector, inputs: dict[str, NDArray[Any]], outputs: dict[str, NDArray[Any]]) -> Vector:
    arrays = {
        side: {name: _array(value) for name, value in group.items()}
        for side, group in (("inputs", inputs), ("outputs", outputs))
    }
    return {"op": op, "parameters": parameters, **arrays}


def _array(value: NDArray[Any]) -> Vector:
    little = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"))
    return {"dtype": value.dtype.name, "shape": list(value.shape), "hex": little.tobytes().hex()}


# --- inputs: the project's own generator, so that they are the same everywhere ---


def _bytes(stream: int, count: int) -> NDArray[np.uint8]:
    words = [rng.random_bits(stream, 0, i, 0).to_bytes(8, "little") for i in range(-(-count // 8))]
    return np.frombuffer(b"".join(words)[:count], np.uint8).copy()


def _floats(stream: int, *shape: int) -> F32:
    """float32 in -8..8 with 24 random bits, so that nothing repeats and everything is exact."""
    whole = _bytes(stream, 4 * int(np.prod(shape))).view(np.uint32) >> np.uint32(8)
    return ((whole.astype(np.float32) - np.float32(1 << 23)) * np.float32(2.0**-20)).reshape(shape)


def _ops(positions: list[int], *states: State) -> ReferenceOps:
    rows = len(positions)
    batch = Batch(tokens=(0,) * rows, positions=tuple(positions), sequences=(0,) * rows, outputs=())
    return ReferenceOps(batch, Caches([]), StateStore(states))


def _weight(values: F32) -> Weight:
    return Weight("weight", 0, values.shape, values.reshape(1, -1).view(np.uint8))


# --- one operation each ---


def _function(function: Callable[[F32], F32]) -> Vector:
    x = np.concatenate([np.array(EDGES, np.float32), _floats(1, 51) * np.float32(8)])
    x = x if function is functions.exp32 else x[np.isfinite(x)]
    return _vector(function.__name__, {}, {"x": x}, {"y": function(x)})


def _swiglu_oai() -> Vector:
    gate = np.concatenate([np.array([x for x in EDGES if np.isfinite(x)], np.float32), _floats(1, 53) * np.float32(2)])
    up = _floats(14, len(gate)) * np.float32(2)
    return _vector("swiglu_oai", {}, {"gate": gate, "up": up}, {"y": functions.swiglu_oai(gate, up)})


def _softcap() -> Vector:
    """Around the place where the tanh changes its rule, where it becomes 1, and at the edges."""
    cap = 15.0
    turns = [turn * cap for turn in (0.625, -0.625, 8.5, 9.0, -9.1, 44.36, 44.37, 1e-20)]
    x = np.concatenate([np.array([*EDGES, *turns, 3.4e38, -3.4e38], np.float32), _floats(14, 51)])
    return _vector("softcap", {"cap": cap}, {"x": x}, {"y": functions.softcap(x, cap)})


def _cut() -> Vector:
    x = _floats(15, 2, 3 * 9)
    y = _ops([0, 1]).cut(x, 3, 2, 5)
    return _vector("cut", {"heads": 3, "first": 2, "count": 5}, {"x": x}, {"y": y})


def _quantise() -> Vector:
    x = _floats(2, 5, 64)
    x[1, :32] = np.arange(32, dtype=np.float32) - np.float32(15.5)  # amax 15.5
    x[2] *= np.float32(2.0**-100)  # below the smallest block that is kept
    x[3] *= np.float32(2.0**120)
    x[4, 7], x[4, 40] = np.nan, np.inf
    q, d = quantise.quantise(x)
    d = np.where(np.isnan(d), np.float32(np.nan), d)  # no NaN but the plain one in a file
    return _vector("quantise", {}, {"x": x}, {"q": q, "d": d})


def _rms_norm(width: int) -> Vector:
    x, w, eps = _floats(3, 3, width), _floats(4, width), 1e-5
    return _vector("rms_norm", {"eps": eps}, {"x": x, "weight": w}, {"y": _ops([0, 1, 2]).rms_norm(x, _weight(w), eps)})


def _rope(*, interleaved: bool, first: int = 0) -> Vector:
    positions, base, rotated, head_dim = [0, 1, 255, 8191], 10000.0, 12, 16
    x = _floats(5, len(positions), 2 * head_dim)
    rope = Rope(frequencies(base, rotated), interleaved, first=first)
    parameters: Vector = {"first": first} if first else {}
    parameters |= {"positions": positions, "base": base, "rotated": rotated, "head_dim": head_dim}
    y = _ops(positions).rope(x, rope, head_dim)
    return _vector("rope", parameters | {"interleaved": interleaved}, {"x": x}, {"y": y})


def _attend(
    *, window: int, value_dim: int = 0, sinks: bool = False, softcap: float = 0.0, small: bool = False
) -> Vector:
    """With sinks one below the largest scores and one above them, and these so close that the order of sums shows.
    Small values are subnormal as float16, and then all keys weigh something."""
    rows, spec = CHUNK + 4, Attention(0, 2, 1, 4, 0.5, window, value_dim, softcap)
    q, k, v = (_floats(6 + i, rows, width) for i, width in enumerate((8, 4, spec.value_width)))
    q = q * np.float32(2.0**-5) if sinks or small else q
    v = v * np.float32(2.0**-18) if small else v
    shown = [0, 1, 17, CHUNK - 1, CHUNK, CHUNK + 3]
    drains = np.array([0.75, 4.5], np.float32)
    y = _ops(list(range(rows))).attend(q, k, v, spec, _weight(drains) if sinks else None)
    parameters: Vector = {"heads": 2, "kv_heads": 1, "head_dim": 4, "scale": 0.5, "window": window, "rows": shown}
    parameters |= {"value_dim": value_dim} if value_dim else {}
    parameters |= {"softcap": softcap} if softcap else {}
    inputs = {"q": q[shown], "k": k, "v": v} | ({"sinks": drains} if sinks else {})
    return _vector("attend", parameters, inputs, {"y": y[shown]})


def _attend_shared() -> Vector:
    """Of two layers the second has more query heads, and reads what the first has stored."""
    rows, first = 7, Attention(layer=0, heads=2, kv_heads=1, head_dim=4, scale=0.5)
    q, more, k, v = (_floats(16 + i, rows, heads * first.head_dim) for i, heads in enumerate((2, 3, 1, 1)))
    ops = _ops(list(range(rows)))
    y = ops.attend(q, k, v, first)
    z = ops.attend(more, None, None, replace(first, heads=3))
    parameters = {"heads": 2, "kv_heads": 1, "head_dim": 4, "scale": 0.5, "window": 0, "later_heads": 3}
    return _vector("attend_shared", parameters, {"q": q, "later_q": more, "k": k, "v": v}, {"y": y, "later_y": z})


def _linear(type_id: int, name: str, rows: int = 2, chunks: int = 1) -> Vector:
    fmt = by_type(type_id, "")
    outputs, width = 3, chunks * CHUNK + max(32, fmt.BLOCK)  # the last chunk is shorter where it can be
    blocks = _bytes(20 + type_id, outputs * width // fmt.BLOCK * fmt.BYTES).reshape(outputs, -1, fmt.BYTES)
    # Bit 6 of a float's high byte keeps its exponent below that of 1, and so the number finite.
    highs = [at + 1 for at in (fmt.D_AT, fmt.M_AT) if at >= 0] if fmt.QUANTISED else [fmt.BYTES - 1]
    blocks[..., highs] &= 0xBF
    if fmt.QUANTISED and fmt.D_AT < 0:
        sizes = np.abs(_floats(60 + type_id, blocks[..., 0].size)) + np.float32(0.5)
        put_scales(fmt, blocks.reshape(-1, fmt.BYTES), sizes)
    raw = blocks.reshape(outputs, -1)
    x = _floats(9, rows, width)
    y = _ops([*range(rows)]).linear(x, Weight("weight", type_id, (outputs, width), raw))
    return _vector("linear", {"format": name, "ggml_type": type_id}, {"x": x, "weight": raw}, {"y": y})


def _route(
    gating: str, *, normalised: bool, scale: float, groups: int = 1, used_groups: int = 1, factors: bool = False
) -> Vector:
    """With groups there is a bias too."""
    logits = _floats(11, 6, 20)
    logits[1, 3:9] = logits[1, 2]  # equal ones: the lower number comes first
    logits[2] = np.float32(-0.0)
    logits[3] *= np.float32(30)
    logits[4], logits[4, 7] = np.float32(-40), np.float32(-39)
    parameters: Vector = {"used": 4, "gating": gating, "normalised": normalised, "scale": scale}
    inputs, bias = {"logits": logits}, None
    if groups > 1:
        parameters |= {"groups": groups, "used_groups": used_groups}
        inputs["bias"] = _floats(15, 20) * np.float32(0.0625)
        bias = _weight(inputs["bias"])
    inputs |= {"factors": _floats(20, 20)} if factors else {}
    weight = _weight(inputs["factors"]) if factors else None
    routes = _ops(list(range(6))).route(logits, Routing(**parameters), bias, weight)
    return _vector("route", parameters, inputs, {"routes": routes})


def _linear_heads() -> Vector:
    """Two heads, each with three rows of more than one chunk."""
    raw, x = _floats(16, 2 * 3, CHUNK + 20), _floats(17, 2, 2 * (CHUNK + 20))
    weight = Weight("weight", 0, (2, 3, CHUNK + 20), raw.view(np.uint8))
    return _vector("linear_heads", {"heads": 2}, {"x": x, "weight": raw}, {"y": _ops([0, 1]).linear_heads(x, weight)})


def _experts(activation: str = "silu", *, biases: bool = False) -> Vector:
    """Four experts, of which each row uses three, as the order of two sums can't show; widths are those of blocks."""
    count, used, rows, width, hidden = 4, 3, 5, 64, 32
    sizes = {"gate": (hidden, width), "up": (hidden, width), "down": (width, hidden)}
    fmt = by_type(8, "")
    raw = {}
    for stream, (name, (n, k)) in enumerate(sizes.items()):
        blocks = _bytes(90 + stream, count * n * k // fmt.BLOCK * fmt.BYTES).reshape(-1, fmt.BYTES)
        put_scales(fmt, blocks, np.abs(_floats(95 + stream, len(blocks))) * np.float32(2.0**-10))
        raw[name] = blocks.reshape(count * n, -1)
    weights = [Weight(name, fmt.TYPE_ID, (count, *sizes[name]), raw[name]) for name in sizes]
    x, logits = _floats(12, rows, width), _floats(13, rows, count)
    ops = _ops(list(range(rows)))
    routes = ops.route(logits, Routing(used))
    added = {f"{name}_bias": _floats(100 + i, count, n) for i, (name, (n, _)) in enumerate(sizes.items())}
    added = added if biases else {}
    rows_of_floats = {name: Weight(name, 0, values.shape, values.view(np.uint8)) for name, values in added.items()}
    y = ops.experts(x, routes, Experts(weights[0], weights[1], weights[2], activation, **rows_of_floats))
    parameters = {
        "experts": count,
        "used": used,
        "format": fmt.NAME,
        "ggml_type": fmt.TYPE_ID,
        "activation": activation,
    }
    return _vector("experts", parameters, {"x": x, "logits": logits, **raw, **added}, {"routes": routes, "y": y})


def _short_conv(taps: int, *, bias: bool, activation: str) -> Vector:
    """Rows of one sequence from its start on."""
    rows, channels = 7, 20
    x, weight, offsets = _floats(14, rows, channels), _floats(15, channels, taps), _floats(16, channels)
    state = State(0, "short_conv", (taps - 1, channels))
    ops = _ops(list(range(rows)), state)
    y = ops.short_conv(x, _weight(weight), _weight(offsets) if bias else None, state, activation)
    given = {"x": x, "weight": weight} | ({"bias": offsets} if bias else {})
    return _vector("short_conv", {"taps": taps, "activation": activation}, given, {"y": y})


def _scan() -> Vector:
    """Rows of one sequence from its start on: three heads in each of two groups, wider than 16."""
    rows, heads, width, groups, size = 6, 6, 18, 2, 8
    x, dt = _floats(17, rows, heads * width + 2 * groups * size) * np.float32(0.125), _floats(18, rows, heads)
    dt[2, 1] = np.float32(25)  # beyond it softplus changes nothing
    given = {"a": -np.abs(_floats(19, heads)), "d": _floats(20, heads), "bias": _floats(21, heads)}
    spec = Scan(heads, width, groups, size, *(_weight(values) for values in given.values()))
    state = State(0, "scan", (heads, 2, size, 16))
    y = _ops(list(range(rows)), state).scan(x, dt, spec, state)
    parameters: Vector = {"heads": heads, "head_dim": width, "groups": groups, "size": size}
    return _vector("scan", parameters, {"x": x, "dt": dt, **given}, {"y": y})


def _delta() -> Vector:
    """Rows of one sequence from its start on; two heads share one key."""
    rows, heads, width = 6, 2, 16
    values = {name: _floats(17 + n, rows, width) for n, name in enumerate("qk")}
    values |= {
        "v": _floats(19, rows, heads * width),
        "gate": _floats(20, rows, heads),
        "beta": _floats(21, rows, heads),
    }
    values |= {
        "a": -np.abs(_floats(22, 1, heads)).reshape(-1) * np.float32(2.0**-5),
        "bias": _floats(23, 1, heads).reshape(-1),
    }
    state = State(0, "delta", (heads, width // DELTA_COLUMNS, width, DELTA_COLUMNS))
    spec = Delta(state, 1, _weight(values["a"]), _weight(values["bias"]), 1e-6)
    ops = _ops(list(range(rows)), state)
    y = ops.delta(values["q"], values["k"], values["v"], values["gate"], values["beta"], spec)
    parameters = {"heads": heads, "key_heads": 1, "width": width, "eps": 1e-6}
    return _vector("delta", parameters, values, {"y": y})


def _random_bits() -> Vector:
    cases = [(0, 0, 0, 0), (7, 0, 41, 0), (7, 1, 41, 0), (7, 0, 41, 1), (2**64 - 1, 2**32 - 1, 2**33, 0)]
    bits = [str(rng.random_bits(*case)) for case in cases]
    names = ("seed", "completion_index", "position", "purpose")
    rows = [dict(zip(names, map(str, case), strict=True)) for case in cases]
    return {"op": "random_bits", "cases": [row | {"bits": value} for row, value in zip(rows, bits, strict=True)]}


def _draw() -> Vector:
    row = _floats(10, 64)
    settings = Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, repeat_penalty=1.1, seed=7)
    sampler = Sampler(settings, 0, len(row))
    tokens = [sampler.draw(row, list(range(n)), candidates).token for n in range(1, 33)]
    parameters = {"temperature": "0.8", "top_k": 20, "top_p": "0.9", "min_p": "0.02", "repeat_last_n": 64}
    parameters |= {"repeat_penalty": "1.1", "seed": "7", "history": "0, 1 ... n - 1 for n = 1 ... 32"}
    return _vector("draw", parameters, {"row": row}, {"tokens": np.array(tokens, np.int32)})


def _later_draw(parameters: Vector) -> Vector:
    """Draws with one of the samplers that are off by default; numbers as text are decimals of binary32 numbers."""
    row = _floats(13, 64)
    values: dict[str, Any] = {
        name: float(value) if isinstance(value, str) else value for name, value in parameters.items()
    }
    sampler = Sampler(Sampling(**values | {"seed": 7}), 0, len(row))
    tokens = [sampler.draw(row, list(range(n)), candidates).token for n in range(1, 33)]
    shown = parameters | {"seed": "7", "history": "0, 1 ... n - 1 for n = 1 ... 32"}
    return _vector("draw", shown, {"row": row}, {"tokens": np.array(tokens, np.int32)})


if __name__ == "__main__":
    sys.exit(main())
