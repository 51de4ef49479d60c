"""Models some of whose layers have a short convolution instead of attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from conformance.recipes.model import Model, Sizes, Tensor, layer, matrix, norm, settings
from conformance.recipes.tokenizers import byte_level

TAPS = 3


def convolved(architecture: str, s: Sizes, attends: Sequence[int], seed: int, kinds: Mapping[str, str]) -> Model:
    """``attends`` has 1 for each layer with attention, else 0."""
    tokenizer = byte_level()
    count, e = len(tokenizer["tokenizer.ggml.tokens"]), s.width
    tensors = [matrix("token_embd", count, e, 3.0), norm("token_embd_norm", e)]
    for number, is_attention in enumerate(attends):
        p = f"blk.{number}."
        inner = layer(number, s, ("attn_norm", "ffn_norm"), normed_heads=True)
        if not is_attention:
            inner = [t for t in inner if ".attn_" not in t.name or t.name.endswith("attn_norm.weight")]
            inner += [Tensor(f"{p}shortconv.in_proj.weight", (3 * e, e), 1.5 / math.sqrt(e))]
            inner += [Tensor(f"{p}shortconv.out_proj.weight", (e, e), 1.5 / math.sqrt(e))]
            inner += [Tensor(f"{p}shortconv.conv.weight", (e, TAPS), 0.6)]
        tensors += inner
    keys = {"attention.head_count_kv": [s.kv_heads * n for n in attends], "shortconv.l_cache": TAPS}
    metadata = settings(architecture, s) | tokenizer | {f"{architecture}.{key}": v for key, v in keys.items()}
    return Model(metadata, tensors, {**kinds, "conv": "F32"}, seed)
