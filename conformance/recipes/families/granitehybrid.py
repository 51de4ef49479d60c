"""``granitehybrid``: Mamba-2 in two layers, attention without positions in one; scaled inputs and outputs of layers."""

from __future__ import annotations

from conformance.recipes.mamba import FLOATS, Mixer, keys, mixer
from conformance.recipes.model import Model, Sizes, layer, matrix, norm, settings
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "ssm_in": "Q5_0", "ssm_out": "Q4_1", "attn_v": "Q5_1", "ffn_gate": "Q4_0", "ffn_up": "F16"}
SCALES = {"embedding_scale": 1.5, "residual_scale": 0.75, "attention.scale": 0.15, "logit_scale": 1.25}


def mixed() -> Model:
    s, m = Sizes(3, 64, 4, 2, 32, 96), Mixer(6, 16, 1, 20)
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, 3.0), norm("output_norm", s.width)]
    for number in range(s.layers):
        whole = layer(number, s, ("attn_norm", "ffn_norm"))
        if number == 1:
            tensors += whole
            continue
        tensors += [t for t in whole if ".attn_" not in t.name or t.name.endswith("attn_norm.weight")]
        tensors += mixer(number, m, s.width)
    own = SCALES | {"attention.head_count_kv": [0, 2, 0], "rope.scaling.finetuned": False}
    metadata = settings("granitehybrid", s) | tokenizer | keys("granitehybrid", m)
    metadata |= {f"granitehybrid.{key}": value for key, value in own.items()}
    return Model(metadata, tensors, MIXED | FLOATS, 71)
