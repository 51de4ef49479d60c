"""How much memory a graph takes on a device, before anything of it is there: an estimate that is rather too large."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from kinetic.backends.base import CHUNK, Attention, State, Weight
from kinetic.backends.cuts import TABLES, weights_of
from kinetic.backends.gpu.weights import matrix_bytes
from kinetic.backends.graph import Node, matrices
from kinetic.backends.whole import MOST_TOGETHER, needs_whole

ROWS = 256
"""Rows of a pass, as ``program.CAPACITY``."""

PARTIALS = 64 << 20
"""What attention takes for parts of its sums, as ``attention.PARTIAL_BYTES``."""

SHARE = 0.95
"""Of free memory that is filled: the rest is for what is not counted."""


def needed(nodes: Sequence[Node], layers: Sequence[Attention], states: Sequence[State], context: int) -> int:
    """Bytes of weights, of keys and values of ``context`` positions, of states, and of a pass."""
    rows = max(ROWS, context) if needs_whole(layers, nodes) else ROWS
    if needs_whole(layers, nodes):
        context = max(context, MOST_TOGETHER * CHUNK)
    return weight_bytes(nodes) + cache_bytes(layers, context) + pass_bytes(nodes, rows) + _state_bytes(states)


def weight_bytes(nodes: Sequence[Node]) -> int:
    """Matrices as they lie on a device, everything else as float32; rows of tables are looked up in the file."""
    products = {weight.name: matrix_bytes(weight, several=len(weight.shape) == 3) for weight in matrices(nodes)}
    others = [weight for node in nodes if node.op not in TABLES for weight in weights_of(node)]
    rest = {weight.name: _float_bytes(weight) for weight in others if weight.name not in products}
    return sum(products.values()) + sum(rest.values())  # exact: integers


def _float_bytes(weight: Weight) -> int:
    return 4 * math.prod(weight.shape)  # exact: integers


def cache_bytes(layers: Sequence[Attention], context: int) -> int:
    """Keys and values; pages are taken twice as many at a time."""
    pages = 4
    while pages * CHUNK < context:
        pages *= 2
    widths = [spec.kv_heads * (spec.head_dim + spec.value_width) for spec in layers]
    # While one layer's grow, they are there twice.
    return 2 * pages * CHUNK * (sum(widths) + max(widths, default=0))  # exact: integers


def pass_bytes(nodes: Sequence[Node], rows: int) -> int:
    """Activations of a pass, of which those of one width take turns (``slots``), and what operations take beside."""
    here = {*nodes}
    last = {source: i for i, node in enumerate(nodes) for source in node.inputs if source in here}
    ended: dict[int, list[int]] = {}
    for source, i in last.items():
        ended.setdefault(i, []).append(source.width)
    alive: Counter[int] = Counter()
    most: Counter[int] = Counter()
    aside = 0
    for i, node in enumerate(nodes):
        if node.op != "tap":
            alive[node.width] += 1
        most |= alive  # the larger of both
        alive.subtract(ended.get(i, ()))
        aside = max(aside, 2 * sum(source.width for source in node.inputs))  # exact: integers
        if node.op == "experts":
            up, down = node["experts"][1:3]
            aside = max(aside, node.inputs[1].width // 2 * (4 * up.shape[1] + 2 * down.shape[1]))
    return 4 * rows * (sum(width * count for width, count in most.items()) + aside) + PARTIALS  # exact: integers


def _state_bytes(states: Sequence[State]) -> int:
    """Room is made for 2, then 4 sequences, and while it grows both are there."""
    return 6 * sum(4 * state.size for state in states)  # exact: integers
