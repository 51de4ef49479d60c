"""``qwen3moe``: the block of ``qwen3`` with eight experts, narrower than the feed-forward length says."""

from __future__ import annotations

from conformance.recipes.model import Mixture, Model, Sizes, layer, matrix, norm, settings, with_experts
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "attn_q": "Q5_0", "ffn_gate_inp": "F32", "ffn_gate_exps": "Q4_0", "ffn_down_exps": "F16"}
"""Inputs in blocks, and what is between the products in floats."""


def mixed() -> Model:
    s, inner = Sizes(2, 64, 6, 2, 48, 192), 48
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, 3.0), norm("output_norm", s.width)]
    for number in range(s.layers):
        tensors += layer(number, s, ("attn_norm", "ffn_norm"), normed_heads=True)
    metadata = settings("qwen3moe", s) | tokenizer | {"qwen3moe.expert_feed_forward_length": inner}
    return with_experts(Model(metadata, tensors, MIXED, 41), "qwen3moe", s.width, Mixture(8, 3, inner))
