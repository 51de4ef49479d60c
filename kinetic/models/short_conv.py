"""Transformers in which some layers have a short convolution instead of attention: their settings and tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Rope, State, Weight, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.fused import split
from kinetic.layers.short_conv import gated_short_conv
from kinetic.models.family import refuse
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import Dense, attending, read_dense
from kinetic.models.shapes import Shapes

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

MAX_TAPS = 64
LAST_NORM = "token_embd_norm.weight"
"""What files of these families call 'output_norm.weight'."""


@dataclass(frozen=True)
class Convolved:
    """``layers`` has for each layer what it keeps: keys and values, or the state of a convolution of ``taps`` taps."""

    dense: Dense
    taps: int
    rope: Rope
    layers: tuple[Attention | State, ...]

    @property
    def attention(self) -> tuple[Attention, ...]:
        return tuple(spec for spec in self.layers if isinstance(spec, Attention))

    @property
    def states(self) -> tuple[State, ...]:
        return tuple(spec for spec in self.layers if isinstance(spec, State))


def read_convolved(gguf: Gguf, architecture: str) -> Convolved:
    """The settings under ``architecture.*``."""
    dense = read_dense(gguf, architecture, gaps=True)
    key = f"{architecture}.shortconv.l_cache"
    taps: int = gguf.get(key, "int")
    if not 2 <= taps <= MAX_TAPS:
        raise refuse("BAD_SETTING", f"'{key}' is {taps}; it must lie between 2 and {MAX_TAPS}")
    if gguf.get(f"{architecture}.attention.sliding_window", "int", 0):
        raise refuse("UNSUPPORTED_ATTENTION", f"sliding windows of {architecture} are not supported by this build")
    if not gguf.get(f"{architecture}.attention.causal", "bool", True):
        raise refuse("UNSUPPORTED_ATTENTION", f"{architecture} that looks ahead is not supported by this build")
    layers = tuple(
        spec if attends else State(spec.layer, "short_conv", (taps - 1, dense.width))
        for spec, attends in zip(dense.attention(), attending(gguf, architecture, dense), strict=True)
    )
    return Convolved(dense, taps, read_rope(gguf, architecture, dense, interleaved=False), layers)


def stored_shapes(c: Convolved) -> Shapes:
    """The tensors of a model, apart from its feed-forward blocks, as files have them."""
    d, e, q, kv = c.dense, c.dense.width, c.dense.heads * c.dense.head_dim, c.dense.kv_heads * c.dense.head_dim
    out: Shapes = {"token_embd.weight": (d.vocab_size, e), LAST_NORM: (e,)}
    for i, spec in enumerate(c.layers):
        p = f"blk.{i}."
        out |= {f"{p}attn_norm.weight": (e,), f"{p}ffn_norm.weight": (e,)}
        if isinstance(spec, Attention):
            out |= {f"{p}attn_q.weight": (q, e), f"{p}attn_k.weight": (kv, e), f"{p}attn_v.weight": (kv, e)}
            out |= {f"{p}attn_{name}_norm.weight": (d.head_dim,) for name in "qk"}
            out[f"{p}attn_output.weight"] = (e, q)
        else:
            out |= {f"{p}shortconv.in_proj.weight": (3 * e, e), f"{p}shortconv.out_proj.weight": (e, e)}
            out[f"{p}shortconv.conv.weight"] = (e, c.taps)
    return out


def parts(weights: Weights, c: Convolved) -> dict[str, Weight]:
    """All weights under the names that layers know them by; of 'in_proj' its thirds 'b', 'c' and 'u'."""
    out = dict(weights)
    out["output_norm.weight"] = weights[LAST_NORM]
    for state in c.states:
        p = f"blk.{state.layer}.shortconv."
        out |= split(weights, f"{p}in_proj.weight", {f"{p}{name}.weight": c.dense.width for name in "bcu"})
    return out


def mix_tokens(ops: Ops, weights: Weights, c: Convolved, x: Array, layer: int) -> Array:
    """The half of a layer that looks at other tokens, added to x [T, E]."""
    p, spec = f"blk.{layer}.", c.layers[layer]
    normed = ops.rms_norm(x, weights[f"{p}attn_norm.weight"], c.dense.eps)
    if isinstance(spec, Attention):
        return ops.add(x, grouped_query(ops, weights, p, normed, spec, c.rope, norm_eps=c.dense.eps))
    return ops.add(x, gated_short_conv(ops, weights, f"{p}shortconv.", normed, spec))
