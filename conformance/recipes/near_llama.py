"""Models of families that differ from llama in a few tensors and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conformance.recipes.model import Model, Sizes, Tensor, layer, matrix, norm, settings
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "attn_q": "Q5_0", "attn_v": "Q4_1", "attn_output": "Q5_1", "ffn_gate": "Q4_0", "ffn_down": "Q4_1"}
"""Only blocks of 32, so that widths need not be multiples of 256."""

PRE = ("attn_norm", "ffn_norm")
POST = ("post_attention_norm", "post_ffw_norm")


def near_llama(
    architecture: str,
    s: Sizes,
    seed: int,
    *,
    norms: Sequence[str] = PRE,
    keys: Mapping[str, Any] | None = None,
    head_norms: tuple[int, int] | None = None,
    more: Callable[[str], list[Tensor]] = lambda prefix: [],
) -> Model:
    """``norms`` of each layer, ``keys`` under ``architecture.``, and ``more(prefix)`` tensors in each layer.

    ``head_norms`` are the widths of the norms of queries and keys. The output matrix is the embedding table.
    """
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, 3.0), norm("output_norm", s.width)]
    for number in range(s.layers):
        p = f"blk.{number}."
        tensors += layer(number, s, norms) + more(p)
        if head_norms:
            tensors += [norm(f"{p}attn_{name}_norm", width) for name, width in zip("qk", head_norms, strict=True)]
    metadata = settings(architecture, s) | tokenizer
    return Model(
        metadata | {f"{architecture}.{key}": value for key, value in (keys or {}).items()}, tensors, MIXED, seed
    )
