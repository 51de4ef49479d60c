"""Taps what every operation of a forward pass gives, in the order of the pass: what a trace is made of.

An operation that is tapped is no longer fused with its neighbours. That changes no bit of what it gives, by the rule
that a fused instruction has the bits of those it stands for; a trace tells whether it was so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from kinetic.backends.base import Array, Ops, Weight
from kinetic.bits import F32
from kinetic.layers.watched import Changed

OPS = frozenset(name for name in vars(Ops) if not name.startswith("_")) - {"tap"}
"""The operations that give an activation."""

IN_LAYER = re.compile(r"blk\.(\d+)\.")

NO_LAYER = -1
"""What stands before the first layer or behind the last one."""


class Tapped(NamedTuple):
    """One operation: its name, that of its first weight ("" without one), and the layer of the last weight so far."""

    op: str
    weight: str
    layer: int


class Trace:
    """``watch`` of an engine: taps every operation. A model is built, or run, anew with each call."""

    def __init__(self) -> None:
        self.tapped: list[Tapped] = []

    def __call__(self, ops: Ops) -> Ops:
        self.tapped = []
        return cast(Ops, _Traced(ops, self.tapped))

    def rows(self, taps: Mapping[str, F32]) -> Iterator[tuple[Tapped, F32]]:
        """Each operation of the last pass with what it gave, float32 [rows, width]."""
        return ((tapped, taps[_name(number)]) for number, tapped in enumerate(self.tapped))


def _name(number: int) -> str:
    return f"op {number}"


class _Traced(Changed):
    def __init__(self, ops: Ops, tapped: list[Tapped]) -> None:
        super().__init__(ops)
        self._tapped = tapped

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return self._traced(name, found) if name in OPS else found

    def _traced(self, name: str, compute: Callable[..., Array]) -> Callable[..., Array]:
        def traced(*inputs: Any, **settings: Any) -> Array:
            weights = [weight.name for value in (*inputs, *settings.values()) for weight in _weights(value)]
            layer = self._tapped[-1].layer if self._tapped else NO_LAYER
            if weights:
                found = IN_LAYER.match(weights[0])
                layer = int(found[1]) if found else NO_LAYER
            self._tapped.append(Tapped(name, weights[0] if weights else "", layer))
            return self._ops.tap(compute(*inputs, **settings), _name(len(self._tapped) - 1))

        return traced


def _weights(value: object) -> Iterator[Weight]:
    """Those in an argument, which may be one or a tuple with some."""
    if isinstance(value, Weight):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _weights(part)
