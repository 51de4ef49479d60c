"""Gated feed-forward blocks, and mixtures of them."""

from __future__ import annotations

from kinetic.backends.base import Array, Experts, Ops, Routing, Weights
from kinetic.layers.attention import project


def gated_mlp(ops: Ops, weights: Weights, prefix: str, x: Array, activation: str, part: str = "") -> Array:
    """``down(act(gate(x)) * up(x))``, x [T, E] -> [T, E]. ``part`` is how names of tensors end, such as '_shexp'."""
    gate = project(ops, weights, f"{prefix}ffn_gate{part}", x)
    up = project(ops, weights, f"{prefix}ffn_up{part}", x)
    return project(ops, weights, f"{prefix}ffn_down{part}", ops.gated(gate, up, activation))


def mixture_mlp(ops: Ops, weights: Weights, prefix: str, x: Array, routing: Routing, activation: str) -> Array:
    """The weighted sum of what the experts that ``ffn_gate_inp`` chooses make of x [T, E]: [T, E].

    Biases are used where the file has them: of the router, of the choice, and of the experts.
    """
    sides = [f"{prefix}ffn_{name}_exps" for name in ("gate", "up", "down")]
    gate, up, down = (weights[f"{side}.weight"] for side in sides)
    biases = [weights.get(f"{side}.bias") for side in sides]
    logits = project(ops, weights, f"{prefix}ffn_gate_inp", x)
    routes = ops.route(logits, routing, weights.get(f"{prefix}exp_probs_b.bias"))
    return ops.experts(x, routes, Experts(gate, up, down, activation, *biases))
