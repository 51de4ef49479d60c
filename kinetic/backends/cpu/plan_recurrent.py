"""Recurrences on the tape, and what goes with them: methods of ``plan.Planner``, in a file of their own.

A recurrence divides its channels or heads, not its rows, among threads: so it reads and writes whole buffers. Its
state is touched by no other instruction, and passes wait for one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Scan, Weight
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.layout import GROUP
from kinetic.backends.cpu.memory import address, allocate, round_up
from kinetic.backends.graph import ALL_ROWS, Node
from kinetic.errors import KineticError
from kinetic.formats import by_type

if TYPE_CHECKING:
    from kinetic.backends.cpu.plan import Planner

ACTIVATION_CODES = {"silu": 0, "gelu": 1, "sigmoid": 2, "relu_sqr": 3}
NO_ACTIVATION = -1


def mul(planner: Planner, node: Node) -> None:
    bx, by = (planner._buffers[source] for source in node.inputs)
    out = planner._take_over(node.inputs[0]) or planner._float_buffer(node)
    rows = ("rows", node.rows)
    words = [bx.address, by.address, out.address, out.stride, node.width]
    planner._emit(tape.MUL, node, words, [(bx, rows), (by, rows)], [(out, rows)])
    planner._finish(node, out)


def activate(planner: Planner, node: Node) -> None:
    x = planner._buffers[node.inputs[0]]
    out = planner._take_over(node.inputs[0]) or planner._float_buffer(node)
    rows = ("rows", node.rows)
    words = [x.address, out.address, out.stride, node.width, ACTIVATION_CODES[node["activation"]]]
    planner._emit(tape.ACTIVATE, node, words, [(x, rows)], [(out, rows)])
    planner._finish(node, out)


def short_conv(planner: Planner, node: Node) -> None:
    expect_all_rows(node)
    x, out = planner._buffers[node.inputs[0]], planner._float_buffer(node)
    taps = planner._constants[node] = columns_of(node["weight"])
    bias = planner._store.vector(node["bias"]) if node["bias"] is not None else 0
    count = node["weight"].shape[1]
    words = [x.address, out.address, x.stride, out.stride, node.width, count, address(taps), taps.nbytes // count]
    words += [bias, planner._states.offset(node["state"]), ACTIVATION_CODES.get(node["activation"], NO_ACTIVATION)]
    planner._emit(tape.SHORT_CONV, node, words, [(x, None)], [(out, None)])
    planner._finish(node, out)


def scan(planner: Planner, node: Node) -> None:
    expect_all_rows(node)
    spec: Scan = node["spec"]
    x, dt = (planner._buffers[source] for source in node.inputs)
    out = planner._float_buffer(node)
    words = [x.address, x.stride, dt.address, dt.stride, out.address, out.stride]
    words += [spec.heads, spec.head_dim, spec.heads // spec.groups, spec.size]
    words += [planner._store.vector(weight) for weight in (spec.a, spec.d, spec.dt_bias)]
    words.append(planner._states.offset(node["state"]))
    planner._emit(tape.SCAN, node, words, [(x, None), (dt, None)], [(out, None)])
    planner._finish(node, out)


def expect_all_rows(node: Node) -> None:
    """A state moves on by every row, wanted or not."""
    if node.rows != ALL_ROWS:
        raise KineticError(f"{node.op} was asked for after the choice of output rows: its state would miss the others")


def columns_of(weight: Weight) -> NDArray[np.uint8]:
    """A small matrix [N, K] as float32 [K] [N, padded with zeros to whole lines], 64-byte aligned."""
    values = by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(weight.shape)
    rows, columns = weight.shape
    memory = allocate(4 * columns * round_up(rows, GROUP))
    memory.view(np.float32).reshape(columns, -1)[:, :rows] = values.T
    return memory
