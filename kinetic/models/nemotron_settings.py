"""What both families of Nemotron H share: one norm and one mixer in every layer, of one of three kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Weight, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mamba import Mixer, mixed
from kinetic.models.attention_settings import attention_scale
from kinetic.models.family import Family, refuse
from kinetic.models.mamba_settings import Mamba, read_mamba
from kinetic.models.settings import Dense, per_layer, read_dense
from kinetic.models.shapes import Shapes

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

FeedForward = Callable[[Ops, Weights, str, Array], Array]
"""A feed-forward block: operations, weights, 'blk.N.', normed x."""


@dataclass(frozen=True)
class Hybrid:
    """Layer i has ``key_heads[i]`` key/value heads if it is attention, and a feed-forward block of ``ffn[i]`` elements
    if it is one; where both are 0 it is Mamba-2."""

    architecture: str
    dense: Dense
    mamba: Mamba
    scale: float
    key_heads: list[int]
    ffn: list[int]

    def attention(self) -> dict[int, Attention]:
        """The layers of attention, by number."""
        specs = self.dense.attention(self.scale)
        return {i: replace(specs[i], kv_heads=count) for i, count in enumerate(self.key_heads) if count}

    def mixers(self, weights: Weights) -> dict[int, Mixer]:
        """The layers of Mamba-2, by number."""
        kinds = enumerate(zip(self.key_heads, self.ffn, strict=True))
        return {i: self.mamba.mixer(weights, i) for i, (heads, ffn) in kinds if not heads and not ffn}

    def shapes(self, weights: Weights) -> tuple[Shapes, Shapes]:
        """Tensors that must be there, and those that may be, apart from feed-forward blocks."""
        d = self.dense
        e, q = d.width, d.heads * d.head_dim
        needed: Shapes = {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)}
        extra: Shapes = {}
        for i, count in enumerate(self.key_heads):
            p, kv = f"blk.{i}.", count * d.head_dim
            needed[f"{p}attn_norm.weight"] = (e,)
            if count:
                lengths = {"attn_q": (q, e), "attn_k": (kv, e), "attn_v": (kv, e), "attn_output": (e, q)}
                needed |= {f"{p}{name}.weight": shape for name, shape in lengths.items()}
                extra |= {f"{p}{name}.bias": shape[:1] for name, shape in lengths.items()}
            elif not self.ffn[i]:
                own, optional = self.mamba.shapes(weights, i, e)
                needed |= own
                extra |= optional
        return needed, extra

    def family(self, weights: Weights, feed_forward: FeedForward) -> Family:
        d = self.dense
        attention, mixers = self.attention(), self.mixers(weights)
        parts: dict[str, Weight] = dict(weights)
        for i in mixers:
            parts |= self.mamba.parts(weights, i)

        def forward(ops: Ops) -> Array:
            x = ops.embed(parts["token_embd.weight"])
            for i in range(d.layers):
                p = f"blk.{i}."
                normed = ops.rms_norm(x, parts[f"{p}attn_norm.weight"], d.eps)
                if i in attention:
                    y = grouped_query(ops, parts, p, normed, attention[i], None)
                elif i in mixers:
                    y = mixed(ops, parts, p, normed, mixers[i], d.eps)
                else:
                    y = feed_forward(ops, parts, p, normed)
                x = ops.add(x, y)
            return logits(ops, parts, x, d.eps)

        states = tuple(state for mixer in mixers.values() for state in (mixer.conv, mixer.memory))
        layers = tuple(attention.values())
        return Family(self.architecture, d.vocab_size, d.context_length, layers, forward, states)


def read_hybrid(gguf: Gguf, architecture: str) -> Hybrid:
    """The settings under ``architecture.*``."""
    d = read_dense(gguf, architecture, gaps=True)
    key_heads = per_layer(gguf, f"{architecture}.attention.head_count_kv", d.layers, d.heads)
    ffn = per_layer(gguf, f"{architecture}.feed_forward_length", d.layers, 0)
    for i, (heads, length) in enumerate(zip(key_heads, ffn, strict=True)):
        if heads and length:
            raise refuse(
                "UNSUPPORTED_LAYERS", f"layer {i} has key/value heads and a feed-forward length: it can be one"
            )
        if heads and d.heads % heads:
            raise refuse("BAD_HEAD_COUNT", f"{d.heads} query heads cannot share {heads} key/value heads")
    if gguf.get(f"{architecture}.nextn_predict_layers", "int", 0):
        raise refuse("UNSUPPORTED_LAYERS", "layers that predict further tokens are not supported by this build")
    return Hybrid(
        architecture, d, read_mamba(gguf, architecture), attention_scale(gguf, architecture, d), key_heads, ffn
    )
