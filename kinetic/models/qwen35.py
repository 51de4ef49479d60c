"""Qwen 3.5 (dense): three gated DeltaNets to one gated attention, and a layer that predicts one token more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.mlp import gated_mlp
from kinetic.models.delta_family import family
from kinetic.models.delta_settings import read_hybrid
from kinetic.models.delta_tensors import Shapes, check
from kinetic.models.family import Family
from kinetic.models.settings import read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def build(gguf: Gguf, weights: Weights) -> Family:
    hybrid = read_hybrid(gguf, "qwen35", read_dense(gguf, "qwen35"))
    e, f = hybrid.dense.width, hybrid.dense.ffn

    def shapes(prefix: str) -> Shapes:
        out: Shapes = {f"{prefix}ffn_{name}.weight": (f, e) for name in ("gate", "up")}
        return out | {f"{prefix}ffn_down.weight": (e, f)}

    parts = check(weights, hybrid, shapes, ("ffn_gate", "ffn_up", "ffn_down"))

    def feed_forward(ops: Ops, prefix: str, x: Array) -> Array:
        return gated_mlp(ops, parts, prefix, x, "silu")

    return family(gguf, "qwen35", hybrid, parts, feed_forward)
