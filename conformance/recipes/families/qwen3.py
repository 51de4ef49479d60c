"""``qwen3``: heads normed before they are rotated, and wider together than the model; a tied output matrix."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.recipes.model import Model, Sizes, layer, matrix, norm, settings
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "attn_q": "Q5_0", "attn_v": "Q4_1", "attn_output": "Q5_1", "ffn_gate": "Q4_0", "ffn_down": "Q4_1"}
"""Only blocks of 32, so that widths need not be multiples of 256."""


def mixed() -> Model:
    return _model(Sizes(2, 64, 6, 2, 48, 96), MIXED, seed=31)


def _model(s: Sizes, kinds: Mapping[str, str], seed: int) -> Model:
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, 3.0), norm("output_norm", s.width)]
    for number in range(s.layers):
        tensors += layer(number, s, ("attn_norm", "ffn_norm"), normed_heads=True)
    return Model(settings("qwen3", s) | tokenizer, tensors, kinds, seed)
