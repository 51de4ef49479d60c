"""``qwen35``: gated DeltaNets, one layer that attends, and one more that answers don't see."""

from __future__ import annotations

from conformance.recipes.deltanet import KINDS, Heads, first_half, keys
from conformance.recipes.model import Model, Sizes, layer, matrix, norm, settings
from conformance.recipes.tokenizers import byte_level

SIZES = Sizes(3, 64, 4, 2, 32, 96)
HEADS = Heads(4, 2, 48)
"""Each of three groups of 16 value elements."""

MIXED = KINDS | {"": "Q8_0", "attn_qkv": "Q5_1", "attn_gate": "Q4_1", "attn_q": "Q5_0", "ssm_out": "Q4_0"}


def mixed() -> Model:
    e, p = SIZES.width, f"blk.{SIZES.layers}.nextn."
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, e, 3.0), norm("output_norm", e)]
    for number in range(SIZES.layers + 1):
        tensors += first_half(number, SIZES, HEADS, attends=number > 1)
        tensors += [tensor for tensor in layer(number, SIZES, ()) if ".ffn_" in tensor.name]
    tensors += [norm(f"{p}{name}", e) for name in ("enorm", "hnorm", "shared_head_norm")]
    tensors += [matrix(f"{p}eh_proj", e, 2 * e, 1.5)]
    more = keys(HEADS) | {"block_count": SIZES.layers + 1, "nextn_predict_layers": 1}
    metadata = settings("qwen35", SIZES) | tokenizer | {f"qwen35.{key}": value for key, value in more.items()}
    return Model(metadata, tensors, MIXED, 151)
