"""Small models with recurrent layers.

write_tiny_recurrent(path, "lfm2")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support import tiny_models as tiny


def lfm2(s: tiny.Shape) -> tuple[dict[str, Any], tiny.Tensors]:
    """Convolutions of four taps in four of six layers."""
    attends = (0, 0, 1, 0, 1, 0)
    tensors: tiny.Tensors = [("token_embd_norm.weight", (s.width,), 0.2)]
    for number, is_attention in enumerate(attends):
        p, e = f"blk.{number}.", s.width
        layer = tiny._layer(p, s, ("attn_norm", "ffn_norm"))
        if is_attention:
            layer += [(f"{p}attn_{name}_norm.weight", (s.head_dim,), 0.2) for name in "qk"]
        else:
            layer = [row for row in layer if ".attn_" not in row[0] or row[0].endswith("attn_norm.weight")]
            layer += [(f"{p}shortconv.in_proj.weight", (3 * e, e), 1.5 / math.sqrt(e))]
            layer += [(f"{p}shortconv.out_proj.weight", (e, e), 1.5 / math.sqrt(e))]
            layer += [(f"{p}shortconv.conv.weight", (e, 4), 0.6)]
        tensors += layer
    keys = {"attention.head_count_kv": [s.kv_heads * n for n in attends], "shortconv.l_cache": 4}
    return keys | {"block_count": len(attends)}, tensors


def lfm2moe(s: tiny.Shape) -> tuple[dict[str, Any], tiny.Tensors]:
    """The same with experts in all layers but the first, chosen with a bias."""
    keys, tensors = lfm2(s)
    later = [row for row in tensors if row[0].startswith("blk.0.") or ".ffn_" not in row[0] or len(row[1]) == 1]
    for number in range(1, keys["block_count"]):
        later += tiny._experts(f"blk.{number}.", s, 6, 0)
        later.append((f"blk.{number}.exp_probs_b.bias", (6,), 0.3))
    experts = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": s.ffn}
    return keys | experts | {"leading_dense_block_count": 1, "expert_gating_func": 2}, later


RECURRENT: dict[str, tuple[Callable[[tiny.Shape], tuple[dict[str, Any], tiny.Tensors]], dict[str, str]]] = {
    "lfm2": (lfm2, tiny.GEMMA_MIX | {"conv": "F32"}),
    "lfm2moe": (lfm2moe, {"": "Q8_0", "conv": "F32", "ffn_gate_inp": "F32", "ffn_up_exps": "Q5_0"}),
}
"""What makes each model's settings and its tensors but the embedding table, and its formats."""


def write_tiny_recurrent(path: Path, architecture: str, *, more: Mapping[str, Any] | None = None) -> Path:
    """One of ``RECURRENT``. ``more`` settings take the place of its own."""
    make, types = RECURRENT[architecture]
    tokenizer = tiny.chatml_tokenizer()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    s = tiny.Shape(2, 64, 4, 2, 32, 96, count, types, 70 + list(RECURRENT).index(architecture), {})
    keys, tensors = make(s)
    metadata = tiny._settings(architecture, s, 2048) | tokenizer
    metadata |= {f"{architecture}.{key}": value for key, value in (keys | dict(more or {})).items()}
    return tiny._write(path, metadata, s, [("token_embd.weight", (count, s.width), 3.0 / math.sqrt(s.width)), *tensors])
