"""Gated DeltaNet on the tape, and a gate of one column: methods of ``plan.Planner``, in a file of their own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kinetic.backends.base import Delta
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.barriers import Buffer
from kinetic.backends.cpu.plan_recurrent import ACTIVATION_CODES, expect_all_rows
from kinetic.backends.graph import Node

if TYPE_CHECKING:
    from kinetic.backends.cpu.plan import Planner


def gated_column(planner: Planner, node: Node) -> None:
    gate, up = (planner._buffers[side] for side in node.inputs)
    out = planner._take_over(node.inputs[1]) or planner._float_buffer(node)
    rows = ("rows", node.rows)
    words = [gate.address, gate.stride, up.address, out.address, out.stride, node.width]
    words.append(ACTIVATION_CODES[node["activation"]])
    planner._emit(tape.GATED_COLUMN, node, words, [(gate, rows), (up, rows)], [(out, rows)])
    planner._finish(node, out)


def delta(planner: Planner, node: Node) -> None:
    """Heads of queries and keys are normed, and both gates computed, row by row; then heads are divided, not rows."""
    expect_all_rows(node)
    spec: Delta = node["spec"]
    q, k, v, gate, beta = node.inputs
    factor = 1 / math.sqrt(spec.width)
    queries, keys = _normed(planner, q, spec, factor), _normed(planner, k, spec, 1.0)
    kept, learned = _gates(planner, gate, beta, spec)
    values = planner._buffers[v]
    out = planner._take_over(v) or planner._float_buffer(node)
    words = [queries.address, keys.address, queries.stride, values.address, out.address, out.stride]
    words += [kept.address, learned.address, kept.stride]
    words += [spec.heads, spec.key_heads, spec.width, planner._states.offset(spec.state)]
    reads = [(buffer, None) for buffer in (queries, keys, kept, learned, values)]
    planner._emit(tape.DELTA, node, words, reads, [(out, None)])
    for source, made in ((q, queries), (k, keys), (gate, kept), (beta, learned)):
        if planner._buffers[source] is not made:
            planner._give_back(made)
    planner._finish(node, out)


def _normed(planner: Planner, node: Node, spec: Delta, factor: float) -> Buffer:
    x = planner._buffers[node]
    out = _in_place(planner, node)
    words = [x.address, out.address, x.stride, spec.key_heads, spec.width]
    words += [planner._constant(spec.eps), planner._constant(factor)]
    rows = ("rows", node.rows)
    planner._emit(tape.L2_NORM, node, words, [(x, rows)], [(out, rows)])
    return out


def _gates(planner: Planner, gate: Node, beta: Node, spec: Delta) -> tuple[Buffer, Buffer]:
    sources = [planner._buffers[node] for node in (gate, beta)]
    kept, learned = (_in_place(planner, node) for node in (gate, beta))
    words = [sources[0].address, sources[1].address, kept.address, learned.address, kept.stride, spec.heads]
    words += [planner._store.vector(weight) for weight in (spec.a, spec.bias)]
    rows = ("rows", gate.rows)
    places = [(buffer, rows) for buffer in sources]
    planner._emit(tape.DECAY, gate, words, places, [(kept, rows), (learned, rows)])
    return kept, learned


def _in_place(planner: Planner, node: Node) -> Buffer:
    """The buffer of ``node``, if only one reads it, else another one that has to be given back."""
    return planner._buffers[node] if planner._pending[node] == 1 else planner._float_buffer(node)
