"""Sizes that a file may give once, or for each layer: heads, key/value heads, feed-forward lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kinetic.models.family import refuse
from kinetic.models.settings import Dense, per_layer

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


class Sizes(NamedTuple):
    """Of one layer; letters as in ``backends.base``."""

    heads: int
    kv_heads: int
    ffn: int


def read_sizes(gguf: Gguf, architecture: str, d: Dense) -> tuple[Sizes, ...]:
    """Those of every layer. ``d`` is from ``read_dense(..., varied=True)``; here no layer may do without one."""
    names = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    defaults = (d.heads, d.heads, 0)
    values = [per_layer(gguf, f"{architecture}.{names[k]}", d.layers, defaults[k]) for k in range(3)]
    if len(set(values[0])) > 1 and f"{architecture}.attention.key_length" not in gguf.metadata:
        message = f"'{architecture}.attention.head_count' differs between layers, and no key says how wide heads are"
        raise refuse("BAD_HEAD_COUNT", message)
    out = tuple(Sizes(*row) for row in zip(*values, strict=True))
    for i, size in enumerate(out):
        if min(size) < 1:
            raise refuse("UNSUPPORTED_LAYERS", f"layer {i} has no attention or no feed-forward block")
        if size.heads % size.kv_heads:
            message = f"{size.heads} query heads cannot share {size.kv_heads} key/value heads in layer {i}"
            raise refuse("BAD_HEAD_COUNT", message)
    return out
