"""Which nodes of a graph are done as part of another, in one instruction."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.backends.base import BLOCK
from kinetic.backends.cpu.functions import IN_TILES
from kinetic.backends.graph import Node
from kinetic.formats import by_type


def fused(nodes: Sequence[Node]) -> set[Node]:
    """Nodes that get no instruction of their own."""
    out: set[Node] = set()
    for node in nodes:
        if node.op == "add" and fuses_into_add(node.inputs[1]):
            out.add(node.inputs[1])
        elif node.op == "gated" and fuses_gate(node):
            out.update(node.inputs)
        elif node.op == "rope" and fuses_into_rope(node.inputs[0]):
            out.add(node.inputs[0])
    return out


def quantised(node: Node) -> bool:
    """Whether a product's weight is."""
    weight = node["weight"]
    return by_type(weight.ggml_type, weight.name).QUANTISED


def only_quantised(node: Node) -> bool:
    """Every reader is a product with a quantised weight, so only the records are needed."""
    whole = node.op != "norm" or node["weight"].shape[0] == node.width
    return whole and bool(node.uses) and all(use.op == "linear" and quantised(use) for use in node.uses)


def fuses_into_add(node: Node) -> bool:
    """What is computed only to be added, in the same instruction."""
    if len(node.uses) != 1 or node.op not in ("linear", "norm"):
        return False
    return node.op == "linear" or node["weight"].shape[0] == node.width


def fuses_gate(node: Node) -> bool:
    """Two products with quantised weights, and the records of what the gate makes of them."""
    gate, up = node.inputs
    sides = (gate, up)
    return (
        node["activation"] in IN_TILES
        and gate.width == up.width
        and node.width % BLOCK == 0
        and only_quantised(node)
        and all(s.op == "linear" and len(s.uses) == 1 and s["bias"] is None and quantised(s) for s in sides)
        and gate.inputs[0] is up.inputs[0]
    )


def fuses_into_rope(node: Node) -> bool:
    """The norm of heads right before they are rotated."""
    return (
        node.op == "norm"
        and len(node.uses) == 1
        and node["weight"].shape == (node.uses[0]["head_dim"],)
        and (len(node.inputs[0].uses) == 1)
    )
