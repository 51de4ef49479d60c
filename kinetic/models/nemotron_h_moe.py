"""Nemotron H with experts: feed-forward layers are mixtures of squared ReLU, beside a block for every row."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Routing, Weights
from kinetic.layers.mlp import mixture_mlp, ungated_mlp
from kinetic.models.experts import expert_width, read_mixture
from kinetic.models.family import Family, refuse
from kinetic.models.nemotron_settings import read_hybrid
from kinetic.models.shapes import Shapes, check

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "nemotron_h_moe"


def build(gguf: Gguf, weights: Weights) -> Family:
    hybrid = read_hybrid(gguf, NAME)
    mixture = read_mixture(gguf, NAME, expert_width(gguf, NAME, hybrid.dense), shared=True)
    if not mixture.shared:
        raise refuse("BAD_SETTING", f"'{NAME}.expert_shared_feed_forward_length' is 0 or left out; it must be positive")
    for key, most in (("moe_latent_size", 0), ("expert_group_count", 1)):
        if (value := gguf.get(f"{NAME}.{key}", "int", 0)) > most:
            raise refuse("UNSUPPORTED_LAYERS", f"'{NAME}.{key}' is {value}; this build can run only models without")
    e = hybrid.dense.width
    x, f, s = mixture.count, mixture.ffn, mixture.shared
    inner: Shapes = {"ffn_gate_inp.weight": (x, e), "exp_probs_b.bias": (x,)}
    inner |= {"ffn_up_exps.weight": (x, f, e), "ffn_down_exps.weight": (x, e, f)}
    inner |= {"ffn_up_shexp.weight": (s, e), "ffn_down_shexp.weight": (e, s)}
    needed, extra = hybrid.shapes(weights)
    for i, length in enumerate(hybrid.ffn):
        if length:
            needed |= {f"blk.{i}.{name}": shape for name, shape in inner.items()}
    check(weights, hybrid.dense, needed, extra)
    return hybrid.family(weights, partial(_feed_forward, _routing(gguf, mixture.routing.used)))


def _feed_forward(routing: Routing, ops: Ops, weights: Weights, prefix: str, x: Array) -> Array:
    y = mixture_mlp(ops, weights, prefix, x, routing, "relu_sqr")
    return ops.add(y, ungated_mlp(ops, weights, prefix, x, "relu_sqr", "_shexp"))


def _routing(gguf: Gguf, used: int) -> Routing:
    """Weights are sigmoids, divided by their sum where the file says so, and scaled; a scale of 0 changes nothing."""
    key = f"{NAME}.expert_weights_scale"
    scale: float = gguf.get(key, "float", 0.0)
    if not (math.isfinite(scale) and scale >= 0):
        raise refuse("BAD_SETTING", f"'{key}' is {scale}; it must be a positive number")
    return Routing(used, "sigmoid", gguf.get(f"{NAME}.expert_weights_norm", "bool", False), scale or 1.0)
