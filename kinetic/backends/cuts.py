"""Where a graph can be cut between two layers, and the two forward passes that a cut makes of it.

What stands before a cut is computed first; of each row it hands over the activations that the rest reads, side by
side. Both halves are the same operations on the same numbers as the whole, so no bit can change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kinetic.backends.base import Array, Attention, Forward, Ops, State, Weight
from kinetic.backends.graph import OUTPUT_ROWS, Node

TABLES = frozenset(("embed", "positions", "first_row"))
"""What needs nothing but the batch: either half looks it up for itself."""

IN_LAYER = re.compile(r"blk\.(\d+)\.")


class Cut(NamedTuple):
    """``at``: so many nodes are before it. ``crossing``: those whose rows go over, float32 [T, sum of their widths]."""

    at: int
    crossing: tuple[Node, ...]

    @property
    def width(self) -> int:
        """Numbers of a row that go over."""
        return sum(node.width for node in self.crossing)  # exact: integers


class Cuts(NamedTuple):
    """``layers``: how many a graph has; what follows the last one counts as one more. ``cuts``: the possible ones, by
    the number of layers before them."""

    layers: int
    cuts: Mapping[int, Cut]

    def at_least(self, front: int) -> int:
        """The smallest number of layers, ``front`` or more, that can be in front; 0 and all of them always can."""
        return next((n for n in range(max(front, 0), self.layers) if n == 0 or n in self.cuts), self.layers)

    def layers_before(self, index: int) -> int:
        """How many layers must be in front for the node of this number to be there."""
        return next((n for n, cut in sorted(self.cuts.items()) if cut.at > index), self.layers)


def find_cuts(nodes: Sequence[Node]) -> Cuts:
    """All cuts between layers, and the one before what follows the last. A model with rows given has none."""
    numbers = _layers(nodes)
    known = sorted({number for number in numbers if number is not None})
    found: dict[int, Cut] = {}
    if not any(node.op == "given" for node in nodes):
        places = _Places(nodes)
        for front in range(1, len(known) + 1):
            behind = known[front] if front < len(known) else None
            cut = places.between(numbers, behind)
            if cut is not None:
                found[front] = cut
    return Cuts(len(known) + 1, found)


class _Places:
    """What would go over at each place in a graph, and where it can't be cut."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        at = {node: i for i, node in enumerate(nodes)}
        self._last = [max((at[use] for use in node.uses), default=-1) for node in nodes]
        spans: dict[int | State, list[int]] = {}
        for i, node in enumerate(nodes):
            for kept in _kept([node]):
                spans.setdefault(kept, []).append(i)
        self._spans = [(found[0], found[-1]) for found in spans.values()]
        """Of keys and values of a layer, and of states: the first and the last node that has to do with them."""
        # What is made of the rows that are wanted alone stays behind every cut.
        self._end = next((i for i, node in enumerate(nodes) if node.rows == OUTPUT_ROWS), 0)

    def between(self, numbers: Sequence[int | None], behind: int | None) -> Cut | None:
        """The narrowest cut before layer ``behind`` (None: behind the last layer); of equals the last."""
        before = [i for i, n in enumerate(numbers) if n is not None and (behind is None or n < behind)]
        after = (i for i, n in enumerate(numbers) if n is not None and behind is not None and n >= behind)
        places = range(before[-1] + 1, min(next(after, self._end), self._end) + 1)
        found = [Cut(at, self._crossing(at)) for at in places if not any(a < at <= b for a, b in self._spans)]
        found = [cut for cut in found if cut.crossing]
        return min(found, key=lambda cut: (cut.width, -cut.at), default=None)

    def _crossing(self, at: int) -> tuple[Node, ...]:
        pairs = zip(self._nodes[:at], self._last, strict=False)
        return tuple(node for node, last in pairs if last >= at and node.op not in TABLES)


def _kept(nodes: Iterable[Node]) -> Iterator[int | State]:
    """Layers whose keys and values, and states, are read or written."""
    for node in nodes:
        if node.op == "attend":
            yield node["spec"].layer
        elif state := state_of(node):
            yield state


def state_of(node: Node) -> State | None:
    """The recurrent state of a node, if it has one."""
    found: State | None = node["spec"].state if node.op == "delta" else node.values.get("state")
    return found


def _layers(nodes: Sequence[Node]) -> list[int | None]:
    """The layer of each node: that of its weight, by name, or where no weight has such a name, of its keys or state."""
    named = [next(_numbers(weights_of(node)), None) for node in nodes]
    if any(number is not None for number in named):
        return named
    return [_kept_layer(node) for node in nodes]


def _numbers(weights: Iterable[Weight]) -> Iterator[int]:
    return (int(found[1]) for weight in weights if (found := IN_LAYER.match(weight.tensor)))


def weights_of(value: object) -> Iterator[Weight]:
    """Those of a node, or in a value, which may be one or a tuple with some."""
    if isinstance(value, Weight):
        yield value
    elif isinstance(value, Node):
        yield from weights_of(tuple(value.values.values()))
    elif isinstance(value, tuple):
        for part in value:
            yield from weights_of(part)


def _kept_layer(node: Node) -> int | None:
    if node.op == "attend":
        return int(node["spec"].layer) if len(node.inputs) > 1 else None
    state = state_of(node)
    return state.layer if state else None


# ---- the two halves


class Half(NamedTuple):
    """A forward pass of its own, with the layers that have keys and the states that it needs."""

    forward: Forward
    layers: tuple[Attention, ...]
    states: tuple[State, ...]


def kept_behind(
    nodes: Sequence[Node], cut: Cut, layers: Sequence[Attention], states: Sequence[State]
) -> tuple[tuple[Attention, ...], tuple[State, ...]]:
    """Those of ``layers`` and ``states`` that the nodes behind a cut have to do with."""
    kept = {*_kept(nodes[cut.at :])}
    return tuple(spec for spec in layers if spec.layer in kept), tuple(state for state in states if state in kept)


def halves(nodes: Sequence[Node], cut: Cut, layers: Sequence[Attention], states: Sequence[State]) -> tuple[Half, Half]:
    """What is before ``cut`` and what is behind it. The first one gives what goes over for the rows that are wanted of
    it, float32 [rows, width]; the second takes that beside the tokens (``Ops.given``)."""
    front, back = nodes[: cut.at], nodes[cut.at :]
    ours = kept_behind(nodes, cut, layers, states)
    theirs = tuple(s for s in layers if s not in ours[0]), tuple(s for s in states if s not in ours[1])
    width = cut.width

    def before(ops: Ops) -> Array:
        needed = _needed(front, cut.crossing)
        known = replay(ops, needed, {})
        first, *others = cut.crossing
        row = known[first]
        for node in others:
            row = ops.join(row, known[node], 1)
        # The result of a pass is its last operation.
        return row if others or first is _last(needed) else ops.cut(row, 1, 0, width)

    def behind(ops: Ops) -> Array:
        row = ops.given(width)
        known: dict[Node, Array] = {}
        start = 0
        for node in cut.crossing:
            known[node] = row if node.width == width else ops.cut(row, 1, start, node.width)
            start += node.width
        read = {source for node in back for source in node.inputs}
        replay(ops, [node for node in front if node in read and node.op in TABLES], known)
        return replay(ops, back, known)[_last(back)]

    return Half(before, *theirs), Half(behind, *ours)


def _last(nodes: Sequence[Node]) -> Node:
    return next(node for node in reversed(nodes) if node.op != "tap")


def _needed(nodes: Sequence[Node], wanted: Iterable[Node]) -> list[Node]:
    """Without those that nothing wanted is made of. What is tapped, and what keeps something, is wanted too."""
    needed = {*wanted}
    for node in reversed(nodes):
        if node in needed or node.op == "tap" or [*_kept([node])]:
            needed |= {node, *node.inputs}
    return [node for node in nodes if node in needed]


def replay(ops: Ops, nodes: Iterable[Node], known: dict[Node, Array]) -> dict[Node, Array]:
    """Asks ``ops`` for what these nodes were asked for. ``known`` is what there is already, and is added to."""
    for node in nodes:
        inputs = [known[source] for source in node.inputs]
        if node.op == "attend" and len(inputs) == 1:
            inputs += [None, None]
        values = {"width": node.width} if node.op == "given" else node.values
        known[node] = getattr(ops, "rms_norm" if node.op == "norm" else node.op)(*inputs, **values)
    return known
