"""Qwen 3.5 with experts: the layers of Qwen 3.5, each with a mixture and a block that every row passes, with a gate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.attention import project
from kinetic.layers.mlp import gated_mlp, mixture_mlp
from kinetic.models.delta_family import family
from kinetic.models.delta_settings import read_hybrid
from kinetic.models.delta_tensors import Shapes, check
from kinetic.models.experts import expert_width, feed_forward_shapes, read_mixture
from kinetic.models.family import Family
from kinetic.models.settings import read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "qwen35moe"
GATE, SHARED = "ffn_gate_inp_shexp", ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")


def build(gguf: Gguf, weights: Weights) -> Family:
    whole = read_dense(gguf, NAME, ffn=gguf.get(f"{NAME}.expert_feed_forward_length", "int", 0))
    hybrid = read_hybrid(gguf, NAME, whole)
    dense = hybrid.dense
    mixture = read_mixture(gguf, NAME, expert_width(gguf, NAME, dense), shared=True)
    mixture = replace(mixture, shared=mixture.shared or dense.ffn)

    def shapes(prefix: str) -> Shapes:
        return feed_forward_shapes(prefix, dense.width, mixture) | {f"{prefix}{GATE}.weight": (dense.width,)}

    parts = check(weights, hybrid, shapes, SHARED)
    for i in range(dense.layers + hybrid.has_nextn):
        name = f"blk.{i}.{GATE}.weight"
        parts[name] = parts[name]._replace(shape=(1, dense.width))

    def feed_forward(ops: Ops, prefix: str, x: Array) -> Array:
        """The mixture, and what the block for every row makes, times the sigmoid of one number."""
        mixed = mixture_mlp(ops, parts, prefix, x, mixture.routing, "silu")
        gate = project(ops, parts, f"{prefix}{GATE}", x)
        return ops.add(mixed, ops.gated(gate, gated_mlp(ops, parts, prefix, x, "silu", "_shexp"), "sigmoid"))

    return family(gguf, NAME, hybrid, parts, feed_forward)
