"""``falcon-h1``: attention and Mamba-2 beside one another; two groups of heads, no norm behind the gate."""

from __future__ import annotations

from conformance.recipes.mamba import FLOATS, Mixer, keys, mixer
from conformance.recipes.model import Model, Sizes, Tensor, layer, matrix, norm, settings
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "ssm_in": "Q4_0", "attn_q": "Q5_0", "attn_output": "BF16", "ffn_down": "Q4_1"}


def mixed() -> Model:
    s, m = Sizes(2, 64, 4, 2, 32, 96), Mixer(4, 24, 2, 12)
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, 3.0), norm("output_norm", s.width)]
    tensors.append(matrix("output", count, s.width, 3.0))
    for number in range(s.layers):
        tensors += layer(number, s, ("attn_norm",)) + mixer(number, m, s.width, normed=False)
        tensors.append(Tensor(f"blk.{number}.ffn_norm", (s.width,), 0.2, 1.0))
    metadata = settings("falcon-h1", s) | tokenizer | keys("falcon-h1", m)
    return Model(metadata | {"falcon-h1.rope.freq_base": 1e8}, tensors, MIXED | FLOATS, 72)
