"""Heads cut up, joined, and multiplied each by its matrix: methods of ``plan.Planner``, in a file of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import BLOCK
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.functions import RECORD
from kinetic.backends.cpu.memory import address
from kinetic.backends.cpu.tiles import MANY, ONE
from kinetic.backends.graph import Node
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic.backends.cpu.barriers import Buffer, Partition
    from kinetic.backends.cpu.plan import Planner


def cut(planner: Planner, node: Node) -> None:
    source = node.inputs[0]
    out, heads = planner._float_buffer(node), node["heads"]
    _piece(planner, node, source, out, source.width // heads, 0, node["first"], node["count"])
    planner._finish(node, out)


def join(planner: Planner, node: Node) -> None:
    x, y = node.inputs
    out, heads = planner._float_buffer(node), node["heads"]
    width, other = x.width // heads, y.width if node["shared"] else y.width // heads
    _piece(planner, node, x, out, width, 0, 0, width)
    _piece(planner, node, y, out, 0 if node["shared"] else other, width, 0, other)
    planner._finish(node, out)


def _piece(
    planner: Planner, node: Node, source: Node, out: Buffer, step: int, place: int, first: int, count: int
) -> None:
    """``count`` elements from ``first`` on of each head of ``source``, ``step`` wide, to ``place`` in that of ``node``.

    ``step`` 0: all heads take the same.
    """
    x, heads = planner._buffers[source], node["heads"]
    words = [x.address + 4 * first, x.stride, 4 * step, out.address + 4 * place, out.stride]
    words += [4 * (node.width // heads), heads, count]
    read: Partition = ("heads", heads, step, node.rows) if step else None
    made: Partition = ("heads", heads, node.width // heads, node.rows)
    planner._emit(tape.PIECE, node, words, [(x, read)], [(out, made)])


def linear_heads(planner: Planner, node: Node) -> None:
    source, weight = node.inputs[0], node["weight"]
    packed, heads = planner._store.packed(weight), weight.shape[0]
    quantised = packed.fmt.QUANTISED
    if heads * packed.groups > tape.MOST_UNITS:
        message = f"tensor '{weight.name}' has more parts than the CPU backend can count"
        raise KineticError(message, name="TOO_LARGE")
    x = planner._records_of(source) if quantised else planner._columns_of(source)
    out = planner._float_buffer(node)
    size = packed.width // BLOCK if quantised else packed.width
    row_bytes = size * (RECORD if quantised else 4)
    words = [planner._kernels.tile(packed.fmt, kind) for kind in (ONE, MANY)]
    words += [address(packed.data), packed.group_bytes, packed.groups, heads, size, x.address, row_bytes]
    words += [out.address, out.stride, packed.rows, heads * row_bytes * (source in planner._own)]
    planner._emit(tape.MATMUL_HEADS, node, words, [(x, planner._read_whole(source))], [(out, None)])
    planner._finish(node, out)
