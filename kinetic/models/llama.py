"""Llama 2 and 3, Mistral, SmolLM2 and others that name their architecture 'llama'; with experts, Mixtral."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Attention, Ops, Weights
from kinetic.layers.attention import grouped_query
from kinetic.layers.head import logits
from kinetic.layers.mlp import gated_mlp, mixture_mlp
from kinetic.models.experts import Mixture, feed_forward_shapes, read_mixture
from kinetic.models.family import Family, expect_no_others, expect_shapes, optional, refuse, rope_divisors
from kinetic.models.layer_sizes import Sizes, read_sizes
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import Dense, read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "llama", varied=True)
    sizes = read_sizes(gguf, "llama", dense)
    mixture = read_mixture(gguf, "llama", dense.ffn) if gguf.get("llama.expert_count", "int", 0) else None
    if mixture is not None and len({size.ffn for size in sizes}) > 1:
        raise refuse("UNSUPPORTED_LAYERS", "experts of different sizes in different layers are not supported")
    _check(weights, dense, sizes, mixture)
    rope = read_rope(gguf, "llama", dense, interleaved=True, divisors=rope_divisors(weights))
    layers = tuple(Attention(i, n.heads, n.kv_heads, dense.head_dim, dense.scale) for i, n in enumerate(sizes))

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            prefix = f"blk.{i}."
            normed = ops.rms_norm(x, weights[f"{prefix}attn_norm.weight"], dense.eps)
            x = ops.add(x, grouped_query(ops, weights, prefix, normed, spec, rope))
            normed = ops.rms_norm(x, weights[f"{prefix}ffn_norm.weight"], dense.eps)
            if mixture is None:
                x = ops.add(x, gated_mlp(ops, weights, prefix, normed, "silu"))
            else:
                x = ops.add(x, mixture_mlp(ops, weights, prefix, normed, mixture.routing, "silu"))
        return logits(ops, weights, x, dense.eps)

    return Family("llama", dense.vocab_size, dense.context_length, layers, forward)


def _check(weights: Weights, d: Dense, sizes: tuple[Sizes, ...], mixture: Mixture | None) -> None:
    e = d.width
    needed: dict[str, tuple[int, ...]] = {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)}
    extra: dict[str, tuple[int, ...]] = {"output.weight": (d.vocab_size, e), "rope_freqs.weight": (d.rope_width // 2,)}
    for i, size in enumerate(sizes):
        p, q, kv, f = f"blk.{i}.", size.heads * d.head_dim, size.kv_heads * d.head_dim, size.ffn
        needed |= {f"{p}attn_norm.weight": (e,), f"{p}ffn_norm.weight": (e,)}
        needed |= {f"{p}attn_q.weight": (q, e), f"{p}attn_k.weight": (kv, e), f"{p}attn_v.weight": (kv, e)}
        needed |= {f"{p}attn_output.weight": (e, q)}
        extra |= {f"{p}attn_q.bias": (q,), f"{p}attn_k.bias": (kv,), f"{p}attn_v.bias": (kv,)}
        extra |= {f"{p}attn_output.bias": (e,)}
        if mixture is not None:
            needed |= feed_forward_shapes(p, e, mixture)
            continue
        needed |= {f"{p}ffn_gate.weight": (f, e), f"{p}ffn_up.weight": (f, e), f"{p}ffn_down.weight": (e, f)}
        extra |= {f"{p}ffn_gate.bias": (f,), f"{p}ffn_up.bias": (f,), f"{p}ffn_down.bias": (e,)}
    present = needed | optional(weights, extra)
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
