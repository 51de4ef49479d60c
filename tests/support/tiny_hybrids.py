"""Small models of families with layers of Mamba-2: attention in one layer, or beside it in each.

write_tiny_hybrid(path, "granitehybrid")
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import tiny_models as tiny
from tests.support.blocks import normals

FLOATS = dict.fromkeys(("ssm_a", "ssm_d", "ssm_conv1d", "ssm_norm"), "F32")


@dataclass(frozen=True)
class Hybrid:
    """``layers``: a letter each, m Mamba-2, a attention, b both, f feed-forward; ``every``: that in every layer too.

    ``inside``: heads of Mamba-2, width of one, groups, elements of state. ``experts``: how many, used, shared width.
    """

    architecture: str
    layers: str
    inside: tuple[int, int, int, int]
    types: Mapping[str, str] = field(default_factory=lambda: tiny.GEMMA_MIX)
    feed: str = "gated"
    every: bool = True
    experts: tuple[int, int, int] = (0, 0, 0)
    normed: bool = True
    keys: Mapping[str, Any] = field(default_factory=dict)


SCALES = {"embedding_scale": 1.3, "residual_scale": 0.6, "attention.scale": 0.2, "logit_scale": 1.5}
SIGMOID = {"expert_weights_norm": True, "expert_weights_scale": 1.5, "expert_feed_forward_length": 32}

HYBRIDS = {
    "granitehybrid": Hybrid("granitehybrid", "mam", (6, 16, 1, 20), keys=SCALES | {"rope.scaling.finetuned": False}),
    "granitehybrid-moe": Hybrid("granitehybrid", "am", (4, 40, 2, 16), experts=(6, 2, 32), keys=SCALES),
    "falcon-h1": Hybrid("falcon-h1", "bb", (4, 24, 2, 12), normed=False),
    "nemotron_h": Hybrid("nemotron_h", "mfamf", (8, 16, 2, 16), feed="squared", every=False),
    "nemotron_h_moe": Hybrid(
        "nemotron_h_moe", "mfa", (2, 64, 1, 16), feed="squared", every=False, experts=(6, 2, 64), keys=SIGMOID
    ),
}


def write_tiny_hybrid(path: Path, name: str, *, keys: Mapping[str, Any] | None = None, drop: str = "") -> Path:
    """The model ``name`` of ``HYBRIDS``. ``keys`` take the place of its own; the tensor ``drop`` is left out."""
    kind = HYBRIDS[name]
    tokenizer = tiny.chatml_tokenizer()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    seed = 90 + list(HYBRIDS).index(name)
    s = tiny.Shape(len(kind.layers), 64, 4, 2, 32, 96, count, dict(kind.types) | FLOATS, seed)
    tensors: tiny.Tensors = [("token_embd.weight", (count, 64), 3.0 / 8), ("output_norm.weight", (64,), 0.2)]
    replace: dict[str, np.ndarray] = {}
    for number, letter in enumerate(kind.layers):
        p = f"blk.{number}."
        tensors.append((f"{p}attn_norm.weight", (64,), 0.2))
        if letter in "ab":
            tensors += [row for row in tiny._layer(p, s, ()) if ".attn_" in row[0]]
        if letter in "mb":
            tensors += _mamba(p, kind, 64)
            replace |= _decays(p, kind, 1000 * seed + number)
        if kind.every:
            tensors.append((f"{p}ffn_norm" + ("" if kind.architecture == "falcon-h1" else ".weight"), (64,), 0.2))
        if kind.every or letter == "f":
            tensors += _feed_forward(p, kind, s)
    metadata = tiny._settings(kind.architecture, s, 2048) | tokenizer
    metadata |= {f"{kind.architecture}.{key}": value for key, value in (_keys(kind, s) | dict(keys or {})).items()}
    s.replace = replace
    return tiny._write(path, metadata, s, [row for row in tensors if row[0] != drop])


def _keys(kind: Hybrid, s: tiny.Shape) -> dict[str, Any]:
    heads, width, groups, size = kind.inside
    keys: dict[str, Any] = {"ssm.conv_kernel": 4, "ssm.inner_size": heads * width, "ssm.state_size": size}
    keys |= {"ssm.time_step_rank": heads, "ssm.group_count": groups}
    if "b" not in kind.layers:
        keys["attention.head_count_kv"] = [s.kv_heads if letter == "a" else 0 for letter in kind.layers]
    if not kind.every:
        keys["feed_forward_length"] = [s.ffn if letter == "f" else 0 for letter in kind.layers]
    if kind.experts[0]:
        names = ("expert_count", "expert_used_count", "expert_shared_feed_forward_length")
        keys |= dict(zip(names, kind.experts, strict=True))
    return keys | dict(kind.keys)


def _mamba(p: str, kind: Hybrid, e: int) -> tiny.Tensors:
    heads, width, groups, size = kind.inside
    inner, channels = heads * width, heads * width + 2 * groups * size
    out: tiny.Tensors = [(f"{p}ssm_in.weight", (inner + channels + heads, e), 1.5 / math.sqrt(e))]
    out += [(f"{p}ssm_conv1d.weight", (channels, 4), 0.5), (f"{p}ssm_conv1d.bias", (channels,), 0.3)]
    out += [(f"{p}ssm_dt.bias", (heads,), 1.0), (f"{p}ssm_a", (heads, 1), 1.0), (f"{p}ssm_d", (heads, 1), 0.5)]
    if kind.normed:
        shape = (inner,) if groups == 1 else (groups, inner // groups)
        out.append((f"{p}ssm_norm.weight", shape, 0.2))
    return [*out, (f"{p}ssm_out.weight", (e, inner), 1.5 / math.sqrt(inner))]


def _decays(p: str, kind: Hybrid, stream: int) -> dict[str, np.ndarray]:
    """Rates of decay, all of them negative, and norms around 1."""
    heads, width, groups, _ = kind.inside
    rates = -np.abs(normals(stream, heads, 1)) - np.float32(0.1)
    norm = normals(stream + 500, groups, heads * width // groups) * np.float32(0.2) + np.float32(1)
    return {f"{p}ssm_a": rates} | ({f"{p}ssm_norm.weight": norm} if groups > 1 else {})


def _feed_forward(p: str, kind: Hybrid, s: tiny.Shape) -> tiny.Tensors:
    experts, _, shared = kind.experts
    sides = ("gate", "up") if kind.feed == "gated" else ("up",)
    f = kind.keys.get("expert_feed_forward_length", s.ffn)
    shapes: dict[str, tuple[int, ...]] = {}
    if experts:
        shapes = {f"{name}_exps": (experts, f, s.width) for name in sides} | {"down_exps": (experts, s.width, f)}
        shapes |= {f"{name}_shexp": (shared, s.width) for name in sides} | {"down_shexp": (s.width, shared)}
        shapes["gate_inp"] = (experts, s.width)
    else:
        shapes = dict.fromkeys(sides, (s.ffn, s.width)) | {"down": (s.width, s.ffn)}
    out: tiny.Tensors = [(f"{p}ffn_{name}.weight", shape, 1.5 / math.sqrt(shape[-1])) for name, shape in shapes.items()]
    if experts and kind.feed == "squared":
        out.append((f"{p}exp_probs_b.bias", (experts,), 0.3))
    return out
