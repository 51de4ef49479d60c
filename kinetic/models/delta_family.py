"""Builds the families whose layers are gated DeltaNets and attention with a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import DELTA_COLUMNS, Attention, Delta, State, Weights
from kinetic.layers.deltanet import DeltaNet, FeedForward, Layers, next_token, trunk
from kinetic.models.delta_settings import Hybrid, text_rope
from kinetic.models.family import Family, NextToken

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def attention_of(h: Hybrid, i: int) -> Attention:
    """Layer i, which attends."""
    d = h.dense
    return Attention(i, d.heads, d.kv_heads, d.head_dim, d.scale)


def delta_of(weights: Weights, h: Hybrid, i: int) -> DeltaNet:
    """Layer i, which is a recurrence."""
    s = h.sizes
    convolutions = {name: State(i, f"conv_{name}", (s.taps - 1, channels)) for name, channels in s.rows.items()}
    state = State(i, "delta", (s.heads, s.width // DELTA_COLUMNS, s.width, DELTA_COLUMNS))
    delta = Delta(state, s.key_heads, weights[f"blk.{i}.ssm_a"], weights[f"blk.{i}.ssm_dt.bias"], h.dense.eps)
    return DeltaNet(convolutions, delta)


def family(gguf: Gguf, name: str, h: Hybrid, weights: Weights, feed_forward: FeedForward) -> Family:
    """The family whose layers are those of ``h``, each with this feed-forward block. ``weights`` are from ``parts``."""
    d = h.dense
    inner = [delta_of(weights, h, i) if h.is_recurrent[i] else attention_of(h, i) for i in range(d.layers)]
    model = Layers(tuple(inner), text_rope(gguf, name, d), d.eps, feed_forward)
    attention = tuple(part for part in inner if isinstance(part, Attention))
    states = tuple(state for part in inner if isinstance(part, DeltaNet) for state in part.states)
    more = None
    if h.has_nextn:
        spec = attention_of(h, d.layers)
        more = NextToken(
            forward=lambda ops: next_token(ops, weights, h.nextn, spec, model),
            attention=(spec,),
            trunk=lambda ops: trunk(ops, weights, model, taps_hidden=True),
            width=d.width,
        )
    return Family(
        name, d.vocab_size, d.context_length, attention,
        lambda ops: trunk(ops, weights, model, taps_hidden=False), states, more,
    )  # fmt: skip
