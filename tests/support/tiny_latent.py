"""Small models of the families gpt-oss and deepseek2: sinks and biases of experts; latent attention in both its forms.

write_tiny_gpt_oss(path)
write_tiny_deepseek2(path, absorbed=True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import tiny_models as tiny

EXPERTS = 6
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
OSS_TYPES = {
    "": "Q8_0",
    "bias": "F32",
    "attn_q": "Q5_0",
    "ffn_gate_inp": "F32",
    "ffn_gate_exps": "MXFP4",
    "ffn_up_exps": "MXFP4",
    "ffn_down_exps": "MXFP4",
}
"""A bias of experts is a matrix, and always of floats."""
ABSORBED_TYPES = {"": "Q8_0", "attn_q_b": "Q4_0", "attn_k_b": "Q5_0", "attn_v_b": "Q4_1", "ffn_gate_inp": "F32"}
APART_TYPES = {"": "Q4_1", "attn_kv_b": "Q8_0", "attn_kv_a_mqa": "Q5_1", "ffn_gate_inp": "F32", "ffn_down_exps": "F16"}

RANK, QUERY_RANK, PLAIN, ROTATED, VALUE = 64, 32, 32, 16, 24
"""Values begin and end within a group of 16 columns."""

V3 = YARN | {
    "rope.scaling.yarn_log_multiplier": 0.1,
    "attention.q_lora_rank": QUERY_RANK,
    "attention.key_length": RANK + ROTATED,
    "attention.value_length": RANK,
    "attention.key_length_mla": PLAIN + ROTATED,
    "attention.value_length_mla": VALUE,
    "attention.head_count_kv": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_group_count": 3,
    "expert_group_used_count": 2,
}
"""Settings of the absorbed form: those of DeepSeek 3. The other form has those of DeepSeek 2 Lite."""


def write_tiny_gpt_oss(path: Path, *, keys: Mapping[str, Any] | None = None) -> Path:
    """Three layers, of which the one in the middle sees all keys."""
    s, tensors = _begin(tiny.Shape(3, 64, 6, 2, 32, 96, 0, OSS_TYPES, 61))
    q, kv, e = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.width
    for layer in range(s.layers):
        p = f"blk.{layer}."
        tensors += _without_feed_forward(tiny._layer(p, s, ("attn_norm", "post_attention_norm")))
        tensors += tiny._experts(p, s, EXPERTS, 0)
        biases = {"attn_q": (q,), "attn_k": (kv,), "attn_v": (kv,), "attn_output": (e,), "ffn_gate_inp": (EXPERTS,)}
        widths = {"gate": s.ffn, "up": s.ffn, "down": e}
        biases |= {f"ffn_{name}_exps": (EXPERTS, width) for name, width in widths.items()}
        tensors += [(f"{p}{name}.bias", shape, 0.3) for name, shape in biases.items()]
        tensors.append((f"{p}attn_sinks.weight", (s.heads,), 2.0))
    settings = YARN | {"attention.sliding_window": 64} | _experts(s.ffn)
    return _write(path, "gpt-oss", s, tensors, settings | dict(keys or {}))


def write_tiny_deepseek2(path: Path, *, absorbed: bool = True, keys: Mapping[str, Any] | None = None) -> Path:
    """A dense layer, then mixtures beside a shared block."""
    s, tensors = _begin(
        tiny.Shape(2, 64, 4, 4, PLAIN + ROTATED, 64, 0, ABSORBED_TYPES if absorbed else APART_TYPES, 62)
    )
    e, h, key = s.width, s.heads, PLAIN + ROTATED
    for layer in range(s.layers):
        p = f"blk.{layer}."
        shapes = {"attn_kv_a_mqa": (RANK + ROTATED, e), "attn_output": (e, h * VALUE)}
        if absorbed:
            shapes |= {"attn_q_a": (QUERY_RANK, e), "attn_q_b": (h * key, QUERY_RANK)}
            shapes |= {"attn_k_b": (h, RANK, PLAIN), "attn_v_b": (h, VALUE, RANK)}
        else:
            shapes |= {"attn_q": (h * key, e), "attn_kv_b": (h * (PLAIN + VALUE), RANK)}
        norms = {"attn_norm": e, "ffn_norm": e, "attn_kv_a_norm": RANK}
        norms |= {"attn_q_a_norm": QUERY_RANK} if absorbed else {}
        tensors += [(f"{p}{name}.weight", (width,), 0.2) for name, width in norms.items()]
        tensors += [(f"{p}{name}.weight", shape, 1.5 / math.sqrt(shape[-1])) for name, shape in shapes.items()]
        if layer == 0:
            tensors += [row for row in tiny._layer(p, s, ()) if ".ffn_" in row[0]]
            continue
        tensors += tiny._experts(p, s, EXPERTS, 2 * s.ffn)
        tensors += [(f"{p}exp_probs_b.bias", (EXPERTS,), 0.3)] if absorbed else []
    settings = {"attention.kv_lora_rank": RANK, "rope.dimension_count": ROTATED, "leading_dense_block_count": 1}
    settings |= {"expert_shared_count": 2, "attention.value_length": VALUE} | _experts(s.ffn) | (V3 if absorbed else {})
    return _write(path, "deepseek2", s, tensors, settings | dict(keys or {}))


def _begin(s: tiny.Shape) -> tuple[tiny.Shape, tiny.Tensors]:
    """The shape with a vocabulary, and the tensors outside the layers."""
    s.vocab = len(tiny.chatml_tokenizer()["tokenizer.ggml.tokens"])
    spread = 3.0 / math.sqrt(s.width)
    ends: tiny.Tensors = [(f"{name}.weight", (s.vocab, s.width), spread) for name in ("token_embd", "output")]
    return s, [*ends, ("output_norm.weight", (s.width,), 0.2)]


def _without_feed_forward(tensors: tiny.Tensors) -> tiny.Tensors:
    return [row for row in tensors if ".ffn_" not in row[0]]


def _experts(width: int) -> dict[str, Any]:
    return {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": width}


def _write(path: Path, name: str, s: tiny.Shape, tensors: tiny.Tensors, settings: Mapping[str, Any]) -> Path:
    metadata = tiny._settings(name, s, 2048) | tiny.chatml_tokenizer()
    return tiny._write(path, metadata | {f"{name}.{key}": value for key, value in settings.items()}, s, tensors)
