"""Small models of the dense families that are close to llama, each with what sets it apart.

write_tiny_family(path, "qwen2")
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import tiny_models as tiny

PRE = ("attn_norm", "ffn_norm")
POST = ("post_attention_norm", "post_ffw_norm")
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}

WINDOWS = {"attention.sliding_window": 64, "attention.sliding_window_pattern": 4}
SCALES = {"embedding_scale": 1.3, "residual_scale": 0.8, "attention.scale": 0.2, "logit_scale": 1.5}
LONGROPE = {
    "rope.scaling.type": "longrope",
    "rope.scaling.original_context_length": 64,
    "rope.scaling.attn_factor": 1.19,
}


@dataclass(frozen=True)
class Kind:
    """What a family has beside the matrices of llama. ``head_norms``: "" none, "each" head or the whole "row"."""

    norms: tuple[str, ...] = PRE
    layers: int = 2
    head_norms: str = ""
    biases: tuple[str, ...] = ()
    tied: bool = True
    fused: bool = False
    """Queries, keys and values in one tensor, gate and up in another, and factors of longrope."""
    heads: tuple[int, int, int] = (6, 2, 48)
    keys: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "qwen2": Kind(biases=("attn_q", "attn_k", "attn_v"), keys=YARN),
    "granite": Kind(keys=SCALES),
    "olmo2": Kind(POST, layers=5, head_norms="row", tied=False, keys=YARN | WINDOWS),
    "smollm3": Kind(layers=5),
    "ernie4_5": Kind(),
    "hunyuan-dense": Kind(head_norms="each"),
    "exaone4": Kind(POST, head_norms="each"),
    "phi3": Kind(fused=True, heads=(4, 1, 24), keys=LONGROPE),  # values begin within a group of rows
}


def write_tiny_family(path: Path, architecture: str, *, layers: int = 0, keys: Mapping[str, Any] | None = None) -> Path:
    """A model of that family, of formats with blocks of 32; heads are wider together than the model.

    ``layers`` and ``keys`` take the place of the family's own.
    """
    kind = KINDS[architecture]
    tokenizer = tiny.chatml_tokenizer()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    s = tiny.Shape(
        layers or kind.layers, 64, *kind.heads, 96, count, tiny.GEMMA_MIX, 40 + list(KINDS).index(architecture), {}
    )
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    tensors: tiny.Tensors = [
        ("token_embd.weight", (count, 64), 3.0 / math.sqrt(64)),
        ("output_norm.weight", (64,), 0.2),
    ]
    if not kind.tied:
        tensors.append(("output.weight", (count, 64), 3.0 / math.sqrt(64)))
    if kind.fused:
        tensors += [(f"rope_factors_{name}.weight", (s.head_dim // 2,), 0.2) for name in ("long", "short")]
    for number in range(s.layers):
        p = f"blk.{number}."
        inner = tiny._layer(p, s, kind.norms)
        tensors += _fused(inner, p, s) if kind.fused else inner
        if kind.head_norms:
            widths = {"each": (s.head_dim, s.head_dim), "row": (q, kv)}[kind.head_norms]
            tensors += [(f"{p}attn_{name}_norm.weight", (n,), 0.2) for name, n in zip("qk", widths, strict=True)]
        lengths = {"attn_q": q, "attn_k": kv, "attn_v": kv}
        tensors += [(f"{p}{name}.bias", (lengths[name],), 0.3) for name in kind.biases]
    metadata = tiny._settings(architecture, s, 2048) | tokenizer
    return tiny._write(
        path,
        metadata | {f"{architecture}.{key}": value for key, value in (kind.keys | (keys or {})).items()},
        s,
        tensors,
    )


def _fused(tensors: tiny.Tensors, p: str, s: tiny.Shape) -> tiny.Tensors:
    apart = {f"{p}{name}.weight" for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")}
    rows = {"attn_qkv": (s.heads + 2 * s.kv_heads) * s.head_dim, "ffn_up": 2 * s.ffn}
    fused = [(f"{p}{name}.weight", (count, s.width), 1.5 / math.sqrt(s.width)) for name, count in rows.items()]
    return [tensor for tensor in tensors if tensor[0] not in apart] + fused
