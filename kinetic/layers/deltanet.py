"""Layers of gated DeltaNet, linear attention whose state forgets and learns only what it did not know, and of attention
with a gate; and the layer that predicts one token more than the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kinetic.backends.base import Array, Attention, Delta, Ops, Rope, State, Weight, Weights
from kinetic.layers.attention import project, scaled
from kinetic.layers.head import output_weight

HIDDEN = "hidden"
"""Name of the tap that holds the last norm of every row: what a layer that predicts one token more begins with."""

FeedForward = Callable[[Ops, str, Array], Array]
"""The second half of a layer whose names begin with a prefix, x [T, E], normed -> [T, E]."""


class DeltaNet(NamedTuple):
    """One layer: the states of its convolutions, by the parts 'q', 'k' and 'v', and its recurrence."""

    convolutions: dict[str, State]
    delta: Delta

    @property
    def states(self) -> tuple[State, ...]:
        return (*self.convolutions.values(), self.delta.state)


class Layers(NamedTuple):
    """What all layers of a model share, and of each layer what is its own."""

    inner: tuple[Attention | DeltaNet, ...]
    rope: Rope
    eps: float
    feed_forward: FeedForward


def layer(ops: Ops, weights: Weights, prefix: str, x: Array, inner: Attention | DeltaNet, model: Layers) -> Array:
    """One layer, x [T, E] -> [T, E]. ``prefix`` is 'blk.N.'."""
    normed = ops.rms_norm(x, weights[f"{prefix}attn_norm.weight"], model.eps)
    if isinstance(inner, DeltaNet):
        x = ops.add(x, _delta_net(ops, weights, prefix, normed, inner, model))
    else:
        x = ops.add(x, _gated_query(ops, weights, prefix, normed, inner, model))
    normed = ops.rms_norm(x, weights[f"{prefix}post_attention_norm.weight"], model.eps)
    return ops.add(x, model.feed_forward(ops, prefix, normed))


def _delta_net(ops: Ops, weights: Weights, prefix: str, x: Array, net: DeltaNet, model: Layers) -> Array:
    """``attn_q``, ``attn_k``, ``attn_v``, and as many of ``ssm_conv1d``, are parts of tensors of the file."""

    def mixed(name: str) -> Array:
        y = project(ops, weights, f"{prefix}attn_{name}", x)
        return ops.short_conv(y, weights[f"{prefix}ssm_conv1d_{name}.weight"], None, net.convolutions[name], "silu")

    q, k, v = (mixed(name) for name in "qkv")
    gate, beta = (project(ops, weights, f"{prefix}ssm_{name}", x) for name in ("alpha", "beta"))
    y = ops.delta(q, k, v, gate, beta, net.delta)
    y = ops.rms_norm(y, weights[f"{prefix}ssm_norm.weight"], model.eps)
    y = ops.gated(project(ops, weights, f"{prefix}attn_gate", x), y, "silu")
    return project(ops, weights, f"{prefix}ssm_out", y)


def _gated_query(ops: Ops, weights: Weights, prefix: str, x: Array, spec: Attention, model: Layers) -> Array:
    """As ``grouped_query`` with normed heads; what it attended to is multiplied by ``sigmoid(attn_q_gate(x))``."""
    q, k, v = (project(ops, weights, f"{prefix}attn_{name}", x) for name in "qkv")

    def turned(y: Array, name: str) -> Array:
        return ops.rope(ops.rms_norm(y, weights[f"{prefix}{name}.weight"], model.eps), model.rope, spec.head_dim)

    attended = ops.attend(turned(q, "attn_q_norm"), turned(k, "attn_k_norm"), v, spec)
    gate = project(ops, weights, f"{prefix}attn_q_gate", x)
    return project(ops, weights, f"{prefix}attn_output", ops.gated(gate, attended, "sigmoid"))


def trunk(ops: Ops, weights: Weights, model: Layers, *, taps_hidden: bool) -> Array:
    """The whole model: logits [len(outputs), V]. With ``taps_hidden`` its last norm of every row is tapped."""
    x = ops.embed(weights["token_embd.weight"])
    for i, inner in enumerate(model.inner):
        x = layer(ops, weights, f"blk.{i}.", x, inner, model)
    return _logits(ops, weights["output_norm.weight"], output_weight(weights), weights, "output", x, model, taps_hidden)


def next_token(ops: Ops, weights: Weights, prefix: str, spec: Attention, model: Layers) -> Array:
    """Logits of one token more [len(outputs), V], of rows that are a token and the hidden row [E] of the one before.

    Its own hidden rows are tapped: with them it goes on to the next token.
    """
    p = f"{prefix}nextn."
    table = weights.get(f"{p}embed_tokens.weight") or weights["token_embd.weight"]
    e = ops.rms_norm(ops.embed(table), weights[f"{p}enorm.weight"], model.eps)
    h = ops.rms_norm(ops.given(table.shape[1]), weights[f"{p}hnorm.weight"], model.eps)
    x = ops.add(project(ops, weights, f"{p}eh_proj_e", e), project(ops, weights, f"{p}eh_proj_h", h))
    x = layer(ops, weights, prefix, x, spec, model)
    norm = weights.get(f"{p}shared_head_norm.weight") or weights["output_norm.weight"]
    own = weights.get(f"{p}shared_head_head.weight")
    name = f"{p}shared_head_head" if own else "output"
    return _logits(ops, norm, own or output_weight(weights), weights, name, x, model, True)


def _logits(
    ops: Ops, norm: Weight, matrix: Weight, weights: Weights, name: str, x: Array, model: Layers, taps_hidden: bool
) -> Array:
    if taps_hidden:
        x = ops.outputs(ops.tap(ops.rms_norm(x, norm, model.eps), HIDDEN))
    else:
        x = ops.rms_norm(ops.outputs(x), norm, model.eps)
    return scaled(ops, weights, name, ops.linear(x, matrix))
