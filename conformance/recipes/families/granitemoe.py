"""``granitemoe``: experts beside a block that every row passes; scaled inputs and outputs of layers; a tied table."""

from __future__ import annotations

from conformance.recipes.model import Mixture, Model, Sizes, layer, matrix, norm, settings, with_experts
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "attn_v": "Q4_1", "ffn_gate_inp": "F16", "ffn_gate_exps": "BF16", "ffn_up_exps": "MXFP4"}
"""Of the two products that are multiplied one takes floats, the other blocks."""

SCALES = {"embedding_scale": 1.5, "residual_scale": 0.75, "attention.scale": 0.15, "logit_scale": 0.5}


def mixed() -> Model:
    s = Sizes(2, 64, 4, 2, 32, 96)
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, 3.0), norm("output_norm", s.width)]
    for number in range(s.layers):
        tensors += layer(number, s, ("attn_norm", "ffn_norm"))
    metadata = settings("granitemoe", s) | tokenizer | {f"granitemoe.{key}": value for key, value in SCALES.items()}
    return with_experts(Model(metadata, tensors, MIXED, 51), "granitemoe", s.width, Mixture(6, 2, 96, 32))
