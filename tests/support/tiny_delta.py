"""Small models of gated DeltaNets, for ``tiny_recurrent``: what makes their settings and their tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.support import tiny_models as tiny
from tests.support.blocks import normals

SMALL = {"ssm_conv1d": "F32", "ssm_alpha": "F32", "ssm_beta": "F32"}
"""Matrices that are too narrow for blocks, or that files keep as they are."""


def qwen35(s: tiny.Shape) -> tuple[dict[str, Any], tiny.Tensors]:
    """Two recurrent layers, one that attends, and one that predicts one token more; heads of three groups of 16."""
    tensors: tiny.Tensors = [("output_norm.weight", (s.width,), 0.2)]
    for number in range(4):
        p = f"blk.{number}."
        tensors += _hybrid_layer(p, s, 4, 2, 48) if number < 2 else _gated_attention(p, s)
        tensors += [row for row in tiny._layer(p, s, ()) if ".ffn_" in row[0]]
    e, p = s.width, "blk.3.nextn."
    tensors += [(f"{p}{name}.weight", (e,), 0.2) for name in ("enorm", "hnorm", "shared_head_norm")]
    tensors += [(f"{p}eh_proj.weight", (e, 2 * e), 1.5 / math.sqrt(2 * e))]
    return _hybrid_keys(4, 2, 48) | {"block_count": 4, "nextn_predict_layers": 1}, tensors


def qwen35moe(s: tiny.Shape) -> tuple[dict[str, Any], tiny.Tensors]:
    """Experts, and a block with a gate for every row; three heads of one group that share one key."""
    tensors: tiny.Tensors = [("output_norm.weight", (s.width,), 0.2)]
    for number in range(3):
        p = f"blk.{number}."
        tensors += _hybrid_layer(p, s, 3, 1, 16) if number < 2 else _gated_attention(p, s)
        tensors += [*tiny._experts(p, s, 6, 32), (f"{p}ffn_gate_inp_shexp.weight", (s.width,), 0.3)]
    keys = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": s.ffn}
    keys |= {"expert_shared_feed_forward_length": 32, "block_count": 3}
    return _hybrid_keys(3, 1, 16) | keys, tensors


def _hybrid_keys(heads: int, key_heads: int, width: int) -> dict[str, Any]:
    ssm = {"time_step_rank": heads, "group_count": key_heads, "state_size": width, "inner_size": heads * width}
    keys = {f"ssm.{name}": value for name, value in (ssm | {"conv_kernel": 4}).items()}
    return keys | {"full_attention_interval": 3, "rope.dimension_count": 16, "rope.dimension_sections": [3, 3, 2, 0]}


def _hybrid_layer(p: str, s: tiny.Shape, heads: int, key_heads: int, width: int) -> tiny.Tensors:
    e, values, channels = s.width, heads * width, (heads + 2 * key_heads) * width
    shapes = {"attn_qkv": (channels, e), "attn_gate": (values, e), "ssm_out": (e, values), "ssm_conv1d": (channels, 4)}
    shapes |= {"ssm_alpha": (heads, e), "ssm_beta": (heads, e)}
    out: tiny.Tensors = [(f"{p}{name}.weight", shape, 1.5 / math.sqrt(shape[1])) for name, shape in shapes.items()]
    s.replace = {**s.replace, f"{p}ssm_a": np.linspace(-0.1, -1.5, heads)}
    out += [(f"{p}ssm_a", (heads,), 0), (f"{p}ssm_dt.bias", (heads,), 1.0), (f"{p}ssm_norm.weight", (width,), 0.2)]
    return out + _two_norms(p, s)


def _gated_attention(p: str, s: tiny.Shape) -> tiny.Tensors:
    out = [row for row in tiny._layer(p, s, ()) if ".attn_" in row[0] and ".attn_q." not in row[0]]
    out += [(f"{p}attn_q.weight", (2 * s.heads * s.head_dim, s.width), 1.5 / math.sqrt(s.width))]
    return out + [(f"{p}attn_{name}_norm.weight", (s.head_dim,), 0.2) for name in "qk"] + _two_norms(p, s)


def _two_norms(p: str, s: tiny.Shape) -> tiny.Tensors:
    """The second is before the feed-forward block, whatever its name says."""
    name = f"{p}post_attention_norm.weight"
    s.replace = {**s.replace, name: 1 + 0.2 * normals(len(s.replace), s.width)}
    return [(f"{p}attn_norm.weight", (s.width,), 0.2), (name, (s.width,), 0.2)]
