"""``nemotron_h``: layers of Mamba-2, of squared ReLU, and one of attention without positions."""

from __future__ import annotations

import math

from conformance.recipes.mamba import FLOATS, Mixer, one_mixer, varied_settings
from conformance.recipes.model import Model, Sizes, Tensor, matrix, norm
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "ssm_in": "Q5_1", "ssm_out": "F16", "attn_k": "Q5_0", "ffn_up": "Q4_0", "ffn_down": "Q4_1"}
KINDS = "mfamf"
"""Mamba-2, feed-forward, attention."""


def mixed() -> Model:
    s, m = Sizes(len(KINDS), 64, 4, 2, 32, 96), Mixer(8, 16, 2, 16)
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, 3.0), norm("output_norm", s.width)]
    tensors.append(matrix("output", count, s.width, 3.0))
    for number, kind in enumerate(KINDS):
        tensors += one_mixer(number, kind, s, m)
        if kind == "f":
            shapes = {"up": (s.ffn, s.width), "down": (s.width, s.ffn)}
            tensors += [
                Tensor(f"blk.{number}.ffn_{name}.weight", shape, 1.5 / math.sqrt(shape[1]))
                for name, shape in shapes.items()
            ]
    return Model(varied_settings("nemotron_h", KINDS, s, m) | tokenizer, tensors, MIXED | FLOATS, 73)
