"""The tensors of deepseek2: which must be there, and in what shapes."""

from __future__ import annotations

from kinetic.backends.base import Weights
from kinetic.layers.latent import Latent
from kinetic.models.experts import Mixture, Shapes, feed_forward_shapes
from kinetic.models.family import expect_no_others, expect_shapes, optional
from kinetic.models.settings import Dense


def check_tensors(weights: Weights, d: Dense, s: Latent, query_rank: int, mixture: Mixture, lead: int) -> None:
    """Every tensor must be there, and no other. ``lead`` layers from the first on have no experts."""
    e, key, h = d.width, s.plain + s.rotated, s.heads
    needed: Shapes = {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)}
    extra: Shapes = {"output.weight": (d.vocab_size, e)}
    for i in range(d.layers):
        p = f"blk.{i}."
        needed |= {f"{p}attn_norm.weight": (e,), f"{p}ffn_norm.weight": (e,), f"{p}attn_kv_a_norm.weight": (s.rank,)}
        needed |= {f"{p}attn_kv_a_mqa.weight": (s.rank + s.rotated, e), f"{p}attn_output.weight": (e, h * s.value)}
        if query_rank:
            needed |= {f"{p}attn_q_a.weight": (query_rank, e), f"{p}attn_q_a_norm.weight": (query_rank,)}
            needed[f"{p}attn_q_b.weight"] = (h * key, query_rank)
        else:
            needed[f"{p}attn_q.weight"] = (h * key, e)
        if s.absorbed:
            needed |= {f"{p}attn_k_b.weight": (h, s.rank, s.plain), f"{p}attn_v_b.weight": (h, s.value, s.rank)}
        else:
            needed[f"{p}attn_kv_b.weight"] = (h * (s.plain + s.value), s.rank)
        if i < lead:
            needed |= {f"{p}ffn_{name}.weight": (d.ffn, e) for name in ("gate", "up")}
            needed[f"{p}ffn_down.weight"] = (e, d.ffn)
        else:
            needed |= feed_forward_shapes(p, e, mixture)
            extra[f"{p}exp_probs_b.bias"] = (mixture.count,)
    present = needed | optional(weights, extra)
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))
