"""``qwen2``: biases on queries, keys and values; positions stretched by YaRN."""

from __future__ import annotations

from conformance.recipes.model import Model, Sizes, Tensor, bias
from conformance.recipes.near_llama import near_llama

SIZES = Sizes(2, 64, 6, 2, 48, 96)
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}


def mixed() -> Model:
    return near_llama("qwen2", SIZES, 41, keys=YARN, more=_biases)


def _biases(prefix: str) -> list[Tensor]:
    heads = {"attn_q": SIZES.heads, "attn_k": SIZES.kv_heads, "attn_v": SIZES.kv_heads}
    return [bias(prefix + name, count * SIZES.head_dim) for name, count in heads.items()]
