"""Layers of BERT and its kin: layer norms after each half, attention both ways."""

from __future__ import annotations

from collections.abc import Callable

from kinetic.backends.base import Array, Attention, Ops, Rope, Weights
from kinetic.layers.attention import grouped_query, project

FeedForward = Callable[[str, Array], Array]
"""(prefix, x [T, E]) -> [T, E]."""


def encoded(
    ops: Ops,
    weights: Weights,
    layers: tuple[Attention, ...],
    rope: Rope | None,
    eps: float,
    feed_forward: FeedForward,
) -> Array:
    """All rows [T, E] after the last layer. Tables of token types and of positions are added where the file has them;
    every token is of type 0."""
    x = ops.embed(weights["token_embd.weight"])
    if "token_types.weight" in weights:
        x = ops.add(x, ops.first_row(weights["token_types.weight"]))
    if "position_embd.weight" in weights:
        x = ops.add(x, ops.positions(weights["position_embd.weight"]))
    x = normed(ops, weights, "token_embd_norm", x, eps)
    for number, spec in enumerate(layers):
        p = f"blk.{number}."
        x = ops.add(x, grouped_query(ops, weights, p, x, spec, rope))
        x = normed(ops, weights, f"{p}attn_output_norm", x, eps)
        x = ops.add(x, feed_forward(p, x))
        x = normed(ops, weights, f"{p}layer_output_norm", x, eps)
    return x


def normed(ops: Ops, weights: Weights, name: str, x: Array, eps: float) -> Array:
    """Layer norm ``name`` with its bias, if the file has one."""
    return ops.layer_norm(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"), eps)


def rank_head(ops: Ops, weights: Weights, x: Array) -> Array:
    """A classification head on pooled vectors [n, E]: [n, labels]."""
    if "cls.weight" in weights:
        x = tanh(ops, project(ops, weights, "cls", x))
    return project(ops, weights, "cls.output", x)


def tanh(ops: Ops, x: Array) -> Array:
    """``sigmoid(2 x) - sigmoid(-2 x)``."""
    rising, falling = (ops.activate(ops.scale(x, factor), "sigmoid") for factor in (2.0, -2.0))
    return ops.add(rising, ops.scale(falling, -1.0))
