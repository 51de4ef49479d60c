"""What recipes of families with layers of Mamba-2 share."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from conformance.recipes.model import Sizes, Tensor, bias, layer, norm, settings


class Mixer(NamedTuple):
    """Heads, width of one, groups of heads, and elements of state for each element of a head."""

    heads: int
    width: int
    groups: int
    size: int


TAPS = 4
FLOATS = {"ssm_conv1d": "F32"}


def keys(architecture: str, m: Mixer) -> dict[str, Any]:
    """Metadata of a mixer."""
    values = {"conv_kernel": TAPS, "inner_size": m.heads * m.width, "state_size": m.size}
    values |= {"time_step_rank": m.heads, "group_count": m.groups}
    return {f"{architecture}.ssm.{key}": value for key, value in values.items()}


def mixer(number: int, m: Mixer, e: int, *, normed: bool = True) -> list[Tensor]:
    """The tensors of a mixer in a model of width ``e``. Rates of decay are around -1, and never positive."""
    p, inner = f"blk.{number}.ssm_", m.heads * m.width
    channels = inner + 2 * m.groups * m.size
    out = [Tensor(f"{p}in.weight", (inner + channels + m.heads, e), 1.5 / math.sqrt(e))]
    out += [Tensor(f"{p}conv1d.weight", (channels, TAPS), 0.5), bias(f"{p}conv1d", channels), bias(f"{p}dt", m.heads)]
    out += [Tensor(f"{p}a", (m.heads, 1), 0.15, -1.0), Tensor(f"{p}d", (m.heads, 1), 0.2, 1.0)]
    if normed and m.groups == 1:
        out.append(norm(f"{p}norm", inner))
    elif normed:
        out.append(Tensor(f"{p}norm.weight", (m.groups, inner // m.groups), 0.2, 1.0))
    return [*out, Tensor(f"{p}out.weight", (e, inner), 1.5 / math.sqrt(inner))]


def one_mixer(number: int, kind: str, s: Sizes, m: Mixer) -> list[Tensor]:
    """The norm of a layer and what follows it: 'm' Mamba-2, 'a' attention, nothing else."""
    inner = [t for t in layer(number, s, ("attn_norm",)) if ".attn_" in t.name]
    if kind == "a":
        return inner
    return inner[:1] + (mixer(number, m, s.width) if kind == "m" else [])


def varied_settings(architecture: str, kinds: str, s: Sizes, m: Mixer) -> dict[str, Any]:
    """Metadata of a model whose layers are each of one kind: 'm', 'a', or 'f' for feed-forward."""
    own = {"attention.head_count_kv": [s.kv_heads if kind == "a" else 0 for kind in kinds]}
    own["feed_forward_length"] = [s.ffn if kind == "f" else 0 for kind in kinds]
    metadata = settings(architecture, s) | keys(architecture, m)
    return metadata | {f"{architecture}.{key}": value for key, value in own.items()}
