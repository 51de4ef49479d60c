"""``gemma3``: every sixth layer sees all keys, the others a window of them; four norms a layer; a tied table."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.recipes.model import Model, Sizes, layer, matrix, norm, settings
from conformance.recipes.tokenizers import sentence_piece

MIXED = {"": "Q8_0", "attn_q": "Q5_0", "attn_v": "Q4_1", "attn_output": "Q5_1", "ffn_gate": "Q4_0", "ffn_down": "Q4_1"}
"""Only blocks of 32, so that widths need not be multiples of 256."""

NORMS = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
WINDOW = 64


def mixed() -> Model:
    return _model(Sizes(7, 64, 4, 1, 32, 96), MIXED, seed=21)


def _model(s: Sizes, kinds: Mapping[str, str], seed: int) -> Model:
    tokenizer = sentence_piece()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    metadata = settings("gemma3", s) | tokenizer
    metadata |= {"gemma3.attention.sliding_window": WINDOW, "gemma3.rope.freq_base": 1_000_000.0}
    # The table is scaled by the root of the width where it is read.
    tensors = [matrix("token_embd", count, s.width, 1.6), norm("output_norm", s.width)]
    for number in range(s.layers):
        tensors += layer(number, s, NORMS, normed_heads=True)
    return Model(metadata, tensors, kinds, seed)
