"""``llama``: adjacent pairs are rotated, an output matrix of its own; with experts, or without."""

from __future__ import annotations

import math
from collections.abc import Mapping

from conformance.recipes.model import Mixture, Model, Sizes, layer, matrix, norm, settings, with_experts
from conformance.recipes.tokenizers import byte_level

MIXED = {
    "token_embd": "BF16",
    "output": "F16",
    "attn_q": "Q4_K",
    "attn_k": "Q5_K",
    "attn_v": "Q6_K",
    "attn_output": "Q4_1",
    "ffn_gate": "Q4_0",
    "ffn_up": "Q4_0",
    "ffn_down": "Q8_0",
}
"""Formats of blocks of 32 and of 256, and halves at the ends."""


def mixed() -> Model:
    return _model(Sizes(2, 256, 4, 2, 64, 256), MIXED, seed=11)


def experts() -> Model:
    kinds = {"": "Q8_0", "ffn_gate_inp": "F32", "ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q4_K", "ffn_down_exps": "Q6_K"}
    model = _model(Sizes(2, 256, 4, 2, 64, 256), kinds, seed=13)
    return with_experts(model, "llama", 256, Mixture(4, 2, 256))


def of_format(kind: str) -> Model:
    return _model(Sizes(1, 256, 4, 2, 64, 256), {"": kind}, seed=12)


def _model(s: Sizes, kinds: Mapping[str, str], seed: int) -> Model:
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, math.sqrt(s.width)), norm("output_norm", s.width)]
    tensors.append(matrix("output", count, s.width, 3.0))
    for number in range(s.layers):
        tensors += layer(number, s, ("attn_norm", "ffn_norm"))
    return Model(settings("llama", s) | tokenizer, tensors, kinds, seed)
