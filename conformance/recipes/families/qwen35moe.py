"""``qwen35moe``: the layers of ``qwen35``, each with six experts and a block with a gate that every row passes."""

from __future__ import annotations

from conformance.recipes.deltanet import KINDS, Heads, first_half, keys
from conformance.recipes.model import Mixture, Model, Sizes, Tensor, matrix, norm, settings, with_experts
from conformance.recipes.tokenizers import byte_level

SIZES = Sizes(3, 64, 4, 2, 32, 96)
HEADS = Heads(3, 1, 16)
"""That share one key."""

MIXED = KINDS | {"": "Q8_0", "ffn_gate_inp": "F32", "ssm_out": "F16", "ffn_up_exps": "Q4_0"}


def mixed() -> Model:
    e, inner = SIZES.width, 96
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, e, 3.0), norm("output_norm", e)]
    for number in range(SIZES.layers):
        tensors += first_half(number, SIZES, HEADS, attends=number > 1)
    more = keys(HEADS) | {"expert_feed_forward_length": inner}
    metadata = settings("qwen35moe", SIZES) | tokenizer | {f"qwen35moe.{key}": value for key, value in more.items()}
    model = with_experts(Model(metadata, tensors, MIXED, 161), "qwen35moe", e, Mixture(6, 2, inner, 32))
    gates = [Tensor(f"blk.{number}.ffn_gate_inp_shexp.weight", (e,), 0.3) for number in range(SIZES.layers)]
    return model._replace(tensors=[*model.tensors, *gates])
