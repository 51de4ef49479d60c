"""Tensors of dense transformers that are named as llama's are: which must be there, and in what shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kinetic.backends.base import Weights
from kinetic.models.family import expect_no_others, expect_shapes, optional
from kinetic.models.settings import Dense

Shapes = dict[str, tuple[int, ...]]


def blocks(d: Dense, norms: Iterable[str]) -> Shapes:
    """The embedding table, the last norm, and of every layer its ``norms`` [E] and seven matrices."""
    e, f, q, kv = d.width, d.ffn, d.heads * d.head_dim, d.kv_heads * d.head_dim
    inner: Shapes = {f"{name}.weight": (e,) for name in norms}
    inner |= {"attn_q.weight": (q, e), "attn_k.weight": (kv, e), "attn_v.weight": (kv, e), "attn_output.weight": (e, q)}
    inner |= {"ffn_gate.weight": (f, e), "ffn_up.weight": (f, e), "ffn_down.weight": (e, f)}
    return {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)} | in_layers(d, inner)


def head_norms(d: Dense) -> Shapes:
    """Weights of the norms of each query and key head [D], in every layer."""
    return in_layers(d, {"attn_q_norm.weight": (d.head_dim,), "attn_k_norm.weight": (d.head_dim,)})


def row_norms(d: Dense) -> Shapes:
    """Weights of the norms of whole rows of queries [H * D] and keys [G * D], in every layer."""
    widths = {"attn_q_norm.weight": (d.heads * d.head_dim,), "attn_k_norm.weight": (d.kv_heads * d.head_dim,)}
    return in_layers(d, widths)


def biases(d: Dense, names: Iterable[str]) -> Shapes:
    """Biases of these matrices, such as 'attn_q', in every layer."""
    q, kv = d.heads * d.head_dim, d.kv_heads * d.head_dim
    lengths = {"attn_q": q, "attn_k": kv, "attn_v": kv, "ffn_gate": d.ffn, "ffn_up": d.ffn}
    return in_layers(d, {f"{name}.bias": (lengths.get(name, d.width),) for name in names})


def in_layers(d: Dense, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """``shapes`` in every layer."""
    return {f"blk.{i}.{name}": shape for i in range(d.layers) for name, shape in shapes.items()}


def check(weights: Weights, d: Dense, needed: Shapes, extra: Shapes | None = None) -> None:
    """All of ``needed`` must be there, the output matrix and ``extra`` may be, and nothing else."""
    allowed = {"output.weight": (d.vocab_size, d.width)} | (extra or {})
    present = needed | optional(weights, allowed)
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
