"""Nemotron H (dense): every layer is one of Mamba-2, attention without positions, and squared ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.mlp import ungated_mlp
from kinetic.models.family import Family, refuse
from kinetic.models.nemotron_settings import read_hybrid
from kinetic.models.shapes import check

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "nemotron_h"


def build(gguf: Gguf, weights: Weights) -> Family:
    hybrid = read_hybrid(gguf, NAME)
    if gguf.get(f"{NAME}.expert_count", "int", 0):
        raise refuse("UNSUPPORTED_LAYERS", "this file is a mixture of experts, which this architecture cannot run")
    needed, extra = hybrid.shapes(weights)
    width = hybrid.dense.width
    for i, length in enumerate(hybrid.ffn):
        if length:
            p = f"blk.{i}.ffn_"
            needed |= {f"{p}up.weight": (length, width), f"{p}down.weight": (width, length)}
            extra |= {f"{p}up.bias": (length,), f"{p}down.bias": (width,)}
    check(weights, hybrid.dense, needed, extra)
    return hybrid.family(weights, _feed_forward)


def _feed_forward(ops: Ops, weights: Weights, prefix: str, x: Array) -> Array:
    return ungated_mlp(ops, weights, prefix, x, "relu_sqr")
