"""Attention, and what is done to rows one by one, on the tape: methods of ``plan.Planner``, in a file of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Attention
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.barriers import ALL_MODES
from kinetic.backends.cpu.core_limits import attention_units
from kinetic.backends.graph import Node
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic.backends.cpu.plan import Planner

NO_WINDOW = 1 << 40
"""More keys than any sequence has."""


def attend(planner: Planner, node: Node) -> None:
    """Keys and values are stored first, if the node has any of its own."""
    spec: Attention = node["spec"]
    expect_room(planner._capacity * attention_units(spec), f"attention with {spec.heads} heads")
    q, *stored = (planner._buffers[side] for side in node.inputs)
    pages = planner._pages
    keys, values = pages.keys[spec.layer], pages.values[spec.layer]
    sinks = planner._store.vector(node["sinks"]) if node["sinks"] is not None else 0
    shape = [spec.kv_heads, spec.head_dim, spec.value_width, keys, values]
    if stored:
        k, v = stored
        # Memory may have been that of heads of another width: then these are not the bytes a thread had.
        of_k, of_v = (("heads", spec.kv_heads, width, node.rows) for width in (spec.head_dim, spec.value_width))
        words = [k.address, v.address, k.stride, *shape, v.stride]
        planner._emit(tape.STORE, node, words, [(k, of_k), (v, of_v)], [(planner._cache, of_k)])
    out = planner._float_buffer(node)
    slot = planner._slot(planner._groups, spec.heads // spec.kv_heads, 2)
    words = [q.address, q.stride, spec.heads, *shape]
    words += [planner._constant(spec.scale, spec.softcap), _window(spec), out.address, out.stride, slot, sinks]
    cache, parts = (planner._cache, None), (planner._parts, None)
    planner._emit(tape.ATTEND, node, words, [(q, None), cache], [(out, None), parts])
    split = [mode for mode in ALL_MODES if mode & tape.SPLIT]
    planner._emit(tape.ATTEND_MERGE, node, words, [parts, cache], [(out, None)], split)
    planner._finish(node, out)


def _window(spec: Attention) -> int:
    """As ``core_attention.attend`` takes it."""
    if spec.causal:
        return spec.window
    return -1 - (spec.window // 2 if spec.window else NO_WINDOW)


def softcap(planner: Planner, node: Node) -> None:
    x, rows = planner._buffers[node.inputs[0]], ("rows", node.rows)
    out = planner._take_over(node.inputs[0]) or planner._float_buffer(node)
    words = [x.address, out.address, x.stride, node.width, planner._constant(node["cap"])]
    planner._emit(tape.SOFTCAP, node, words, [(x, rows)], [(out, rows)])
    planner._finish(node, out)


def expect_room(units: int, what: str) -> None:
    """Raises KineticError if ``units`` are more than one instruction can divide."""
    if units > tape.MOST_UNITS:
        raise KineticError(f"{what} has more to divide among threads than the CPU backend can count", name="TOO_LARGE")
