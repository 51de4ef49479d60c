"""Gated feed-forward blocks, and mixtures of them."""

from __future__ import annotations

from kinetic.backends.base import Array, Experts, Ops, Routing, Weights
from kinetic.layers.attention import project


def gated_mlp(ops: Ops, weights: Weights, prefix: str, x: Array, activation: str, part: str = "") -> Array:
    """``down(act(gate(x)) * up(x))``, x [T, E] -> [T, E]. ``part`` is how names of tensors end, such as '_shexp'."""
    gate = project(ops, weights, f"{prefix}ffn_gate{part}", x)
    up = project(ops, weights, f"{prefix}ffn_up{part}", x)
    return project(ops, weights, f"{prefix}ffn_down{part}", ops.gated(gate, up, activation))


def ungated_mlp(ops: Ops, weights: Weights, prefix: str, x: Array, activation: str, part: str = "") -> Array:
    """``down(act(up(x)))``, x [T, E] -> [T, E]. ``part`` as in ``gated_mlp``."""
    up = project(ops, weights, f"{prefix}ffn_up{part}", x)
    return project(ops, weights, f"{prefix}ffn_down{part}", ops.activate(up, activation))


def mixture_mlp(ops: Ops, weights: Weights, prefix: str, x: Array, routing: Routing, activation: str) -> Array:
    """The weighted sum of what the experts that ``ffn_gate_inp`` chooses make of x [T, E]: [T, E].

    Biases are used where the file has them: of the router, of the choice, and of the experts. So is the gate.
    """
    logits = project(ops, weights, f"{prefix}ffn_gate_inp", x)
    routes = ops.route(logits, routing, weights.get(f"{prefix}exp_probs_b.bias"))
    return ops.experts(x, routes, experts_of(weights, prefix, activation))


def experts_of(weights: Weights, prefix: str, activation: str) -> Experts:
    """The experts of the layer ``prefix``, with their biases where the file has them."""
    sides = [f"{prefix}ffn_{name}_exps" for name in ("gate", "up", "down")]
    gate, up, down = weights.get(f"{sides[0]}.weight"), *(weights[f"{side}.weight"] for side in sides[1:])
    biases = [weights.get(f"{side}.bias") for side in sides]
    return Experts(gate, up, down, activation, *biases)
