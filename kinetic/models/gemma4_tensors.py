"""The tensors of Gemma 4: those that the layers of a file need, and gate and up of its experts apart."""

from __future__ import annotations

from kinetic.backends.base import Weights
from kinetic.layers.fused import split_experts
from kinetic.models.family import expect_no_others, expect_shapes, optional
from kinetic.models.gemma4_settings import Layer, Settings
from kinetic.models.shapes import Shapes


def check(weights: Weights, s: Settings) -> None:
    """Every tensor that the layers need must be there, and no other."""
    e, extra = s.width, s.per_layer_width
    needed: Shapes = {"token_embd.weight": (s.vocab_size, e), "output_norm.weight": (e,)}
    allowed: Shapes = {"output.weight": (s.vocab_size, e)}
    for layer in s.layers:
        if not layer.spec.window:
            needed["rope_freqs.weight"] = (layer.spec.head_dim // 2,)
    if extra:
        wide = extra * len(s.layers)
        needed |= {"per_layer_token_embd.weight": (s.vocab_size, wide), "per_layer_model_proj.weight": (wide, e)}
        needed["per_layer_proj_norm.weight"] = (extra,)
    for i, layer in enumerate(s.layers):
        inner, more = _layer_shapes(weights, f"blk.{i}.", layer, s)
        needed |= {f"blk.{i}.{name}": shape for name, shape in inner.items()}
        allowed |= {f"blk.{i}.{name}": shape for name, shape in more.items()}
    present = needed | optional(weights, allowed)
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))


def _layer_shapes(weights: Weights, p: str, layer: Layer, s: Settings) -> tuple[Shapes, Shapes]:
    """Those that must be there, and those that may be. Keys and values that a layer shares are in its file, unread."""
    spec, e = layer.spec, s.width
    q, kv, head = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.head_dim
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    needed: Shapes = {"attn_q_norm.weight": (head,)}
    needed |= {f"{name}.weight": (e,) for name in norms}
    needed |= {"attn_q.weight": (q, e), "attn_output.weight": (e, q), "ffn_down.weight": (e, layer.ffn)}
    needed |= {f"ffn_{name}.weight": (layer.ffn, e) for name in ("gate", "up")}
    keys: Shapes = {"attn_k.weight": (kv, e), "attn_k_norm.weight": (head,)}
    allowed: Shapes = {"attn_v.weight": (kv, e), "layer_output_scale.weight": (1,)}
    needed, allowed = (needed | keys, allowed) if layer.stores else (needed, allowed | keys)
    if s.per_layer_width:
        needed |= {"inp_gate.weight": (s.per_layer_width, e), "proj.weight": (e, s.per_layer_width)}
        needed["post_norm.weight"] = (e,)
    if layer.routing is not None:
        needed |= {f"{name}.weight": (e,) for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")}
        needed |= {"ffn_gate_inp.weight": (s.experts, e), "ffn_gate_inp.scale": (e,)}
        needed["ffn_down_exps.weight"] = (s.experts, e, s.expert_ffn)
        parts = ("gate_up",) if f"{p}ffn_gate_up_exps.weight" in weights else ("gate", "up")
        needed |= {f"ffn_{name}_exps.weight": (s.experts, s.expert_ffn * (2 // len(parts)), e) for name in parts}
        allowed["ffn_down_exps.scale"] = (s.experts,)
    return needed, allowed


def with_gate_and_up_apart(weights: Weights, s: Settings) -> Weights:
    """All weights, with two tensors for gate and up of the experts where the file has one."""
    out = dict(weights)
    for i in range(len(s.layers)):
        name = f"blk.{i}.ffn_gate_up_exps.weight"
        if name in weights:
            parts = [f"blk.{i}.ffn_{part}_exps.weight" for part in ("gate", "up")]
            out |= split_experts(weights, name, dict.fromkeys(parts, s.expert_ffn))
    return out
