"""Settings and tensors of models whose rows see their whole text, and that make vectors of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Attention
from kinetic.models.family import refuse
from kinetic.models.settings import Dense
from kinetic.models.shapes import Shapes, in_layers

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

EPS = "layer_norm_epsilon"
"""The setting that goes with layer norms."""


def both_ways(gguf: Gguf, architecture: str, d: Dense, windows: tuple[int, ...] = ()) -> tuple[Attention, ...]:
    """The layers, none of them causal. Raises UnsupportedModel if the file says that they are."""
    key = f"{architecture}.attention.causal"
    if gguf.get(key, "bool", False):
        raise refuse("UNSUPPORTED_ATTENTION", f"'{key}' is true; rows of this architecture see their whole text")
    return tuple(replace(spec, causal=False) for spec in d.attention(windows=windows))


def layer_shapes(d: Dense) -> Shapes:
    """What every layer of BERT and its kin has, but for queries, keys and values; and the embedding table."""
    inner: Shapes = {f"{name}_norm.{part}": (d.width,) for name in ("attn_output", "layer_output")
                     for part in ("weight", "bias")}  # fmt: skip
    inner |= {"attn_output.weight": (d.width, d.heads * d.head_dim)}
    inner |= {"ffn_up.weight": (d.ffn, d.width), "ffn_down.weight": (d.width, d.ffn)}
    outer: Shapes = {"token_embd.weight": (d.vocab_size, d.width)}
    outer |= {f"token_embd_norm.{part}": (d.width,) for part in ("weight", "bias")}
    return outer | in_layers(d, inner)


def table_shapes(gguf: Gguf, d: Dense) -> Shapes:
    """The table of token types, of which there may be any number."""
    tensor = gguf.tensors.get("token_types.weight")
    return {"token_types.weight": (tensor.shape[0], d.width)} if tensor is not None and tensor.shape else {}


def head_shapes(gguf: Gguf, d: Dense) -> Shapes:
    """A rank head: a dense layer that may be there, and one with as many outputs as there are labels."""
    rank = rank_shapes(gguf, d)
    labels = rank["cls.output.weight"][0]
    return rank | {"cls.weight": (d.width, d.width), "cls.bias": (d.width,), "cls.output.bias": (labels,)}


def rank_shapes(gguf: Gguf, d: Dense) -> Shapes:
    """The matrix of a rank head, which has a row for each label."""
    tensor = gguf.tensors.get("cls.output.weight") or gguf.tensors.get("cls.output.bias")
    return {"cls.output.weight": (tensor.shape[0] if tensor is not None and tensor.shape else 1, d.width)}
