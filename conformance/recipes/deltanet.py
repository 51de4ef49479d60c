"""Models of gated DeltaNets, every third layer of which attends."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from conformance.recipes.model import Sizes, Tensor, bias, norm

TAPS = 4
KINDS = {"ssm_conv1d": "F32", "ssm_alpha": "F32", "ssm_beta": "F32"}
"""Of matrices that are too narrow for blocks, or that files keep as they are."""


class Heads(NamedTuple):
    """Of the recurrences: how many, how many keys they share, how wide each is."""

    heads: int
    key_heads: int
    width: int


def keys(h: Heads) -> dict[str, Any]:
    """Metadata under the architecture's name."""
    sizes = {"time_step_rank": h.heads, "group_count": h.key_heads, "state_size": h.width, "conv_kernel": TAPS}
    out: dict[str, Any] = {f"ssm.{name}": size for name, size in sizes.items()}
    out |= {"ssm.inner_size": h.heads * h.width, "full_attention_interval": 3}
    return out | {"rope.dimension_count": 16, "rope.dimension_sections": [3, 3, 2, 0]}


def first_half(number: int, s: Sizes, h: Heads, *, attends: bool) -> list[Tensor]:
    """The tensors of a layer but for those of its feed-forward block."""
    p, e = f"blk.{number}.", s.width
    out = [norm(f"{p}attn_norm", e), norm(f"{p}post_attention_norm", e)]
    if attends:
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        out += [_matrix(f"{p}{name}", *shape) for name, shape in _attention(q, kv, e).items()]
        return out + [norm(f"{p}attn_{name}_norm", s.head_dim) for name in "qk"]
    values, channels = h.heads * h.width, (h.heads + 2 * h.key_heads) * h.width
    shapes = {"attn_qkv": (channels, e), "attn_gate": (values, e), "ssm_conv1d": (channels, TAPS)}
    shapes |= {"ssm_alpha": (h.heads, e), "ssm_beta": (h.heads, e), "ssm_out": (e, values)}
    out += [_matrix(f"{p}{name}", *shape) for name, shape in shapes.items()]
    out += [Tensor(f"{p}ssm_a", (h.heads,), 0.3, -1.0), bias(f"{p}ssm_dt", h.heads)]
    return [*out, norm(f"{p}ssm_norm", h.width)]


def _attention(q: int, kv: int, e: int) -> dict[str, tuple[int, int]]:
    return {"attn_q": (2 * q, e), "attn_k": (kv, e), "attn_v": (kv, e), "attn_output": (e, q)}


def _matrix(name: str, rows: int, columns: int) -> Tensor:
    return Tensor(f"{name}.weight", (rows, columns), 1.5 / math.sqrt(columns))
