"""``phi3``: queries, keys and values in one tensor, gate and up in another; longrope."""

from __future__ import annotations

import math

from conformance.recipes.model import Model, Sizes, Tensor, norm
from conformance.recipes.near_llama import near_llama

SIZES = Sizes(2, 64, 4, 1, 24, 96)
"""Values begin within a group of rows."""

LONGROPE = {
    "rope.scaling.type": "longrope",
    "rope.scaling.original_context_length": 64,
    "rope.scaling.attn_factor": 1.19,
}
APART = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")


def mixed() -> Model:
    model = near_llama("phi3", SIZES, 111, keys=LONGROPE)
    tensors = [tensor for tensor in model.tensors if tensor.name.split(".")[-2] not in APART]
    tensors += [norm(f"rope_factors_{name}", SIZES.head_dim // 2) for name in ("long", "short")]
    rows = {"attn_qkv": (SIZES.heads + 2 * SIZES.kv_heads) * SIZES.head_dim, "ffn_up": 2 * SIZES.ffn}
    for number in range(SIZES.layers):
        for name, count in rows.items():
            tensors.append(Tensor(f"blk.{number}.{name}.weight", (count, SIZES.width), 1.5 / math.sqrt(SIZES.width)))
    return model._replace(tensors=tensors, kinds={**model.kinds, "attn_qkv": "Q5_0", "ffn_up": "Q4_0"})
