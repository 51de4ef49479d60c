"""Operations with something added, for whoever wants to look into a forward pass: no family knows of it.

``Engine(..., watch=Inputs(...))`` builds the model with these instead of the backend's own. What they tap comes
back from ``Engine.taps()`` after each pass; a model built without them has the plan it always had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from kinetic.backends.base import Array, Experts, Ops, Weight
from kinetic.layers.fused import part


class Changed:
    """A backend's operations; a subclass replaces some."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


class LayerInputs:
    """Taps what goes into ``layers``, numbered from 0: that which the norm before their attention reads."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.names = [f"input of layer {number}" for number in layers]
        """Of the taps, in that order."""
        self.seen: set[str] = set()
        """Those that a model has had."""
        self.tap_of = {f"blk.{number}.attn_norm.weight": name for number, name in zip(layers, self.names, strict=True)}

    def __call__(self, ops: Ops) -> Ops:
        return cast(Ops, _LayerTaps(ops, self))


class _LayerTaps(Changed):
    def __init__(self, ops: Ops, inputs: LayerInputs) -> None:
        super().__init__(ops)
        self._inputs = inputs

    def rms_norm(self, x: Array, weight: Weight, eps: float) -> Array:
        if name := self._inputs.tap_of.get(weight.name):
            self._inputs.seen.add(name)
            x = self._ops.tap(x, name)
        return self._ops.rms_norm(x, weight, eps)


class Seen(NamedTuple):
    """Taps of a mixture: its routes, and for each expert what goes into ``down`` of all rows, chosen or not."""

    experts: Experts
    x: str
    routes: str
    hidden: tuple[str, ...]


class Inputs:
    """Taps what goes into the products with weights of which ``wanted(name)`` is true."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self.wanted = wanted
        self.tap_of: dict[str, str] = {}
        """By name of a weight, that of the tap with its inputs. Products that follow on one another share theirs."""
        self.mixtures: dict[str, Seen] = {}
        """By the name of their ``up``."""

    def __call__(self, ops: Ops) -> Ops:
        return cast(Ops, _InputTaps(ops, self))


class _InputTaps(Changed):
    def __init__(self, ops: Ops, inputs: Inputs) -> None:
        super().__init__(ops)
        self._inputs = inputs
        self._last: tuple[Array, str] = (None, "")

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        if self._inputs.wanted(weight.tensor):
            self._inputs.tap_of[weight.tensor] = self._tap(x, weight.tensor)
        return self._ops.linear(x, weight, bias)

    def _tap(self, x: Array, name: str) -> str:
        """The tap of what was seen last if that is this, else a new one."""
        if x is not self._last[0]:
            self._last = self._ops.tap(x, name), name
        return self._last[1]

    def experts(self, x: Array, routes: Array, experts: Experts) -> Array:
        """An operation of the backend hides what is between its products, so it is computed once more, by products of
        all rows with every expert: as much work as a dense model of all their weights."""
        name = experts.up.tensor
        if self._inputs.wanted(name):
            hidden = tuple(_numbered(experts.down, experts.down.shape[0]))
            seen = Seen(experts, self._tap(x, name), f"{name}, routes", hidden)
            self._ops.tap(routes, seen.routes)
            for number, tap in enumerate(hidden):
                self._ops.tap(self._hidden(x, experts, number), tap)
            self._inputs.mixtures[name] = seen
        return self._ops.experts(x, routes, experts)

    def _hidden(self, x: Array, experts: Experts, number: int) -> Array:
        """What goes into ``down`` of one expert."""
        up = self._product(x, experts.up, experts.up_bias, number)
        if experts.gate is None:
            return self._ops.activate(up, experts.activation)
        return self._ops.gated(self._product(x, experts.gate, experts.gate_bias, number), up, experts.activation)

    def _product(self, x: Array, weight: Weight, bias: Weight | None, number: int) -> Array:
        return self._ops.linear(x, _matrix(weight, number), _row(bias, number) if bias else None)


def _numbered(weight: Weight, count: int) -> Iterator[str]:
    return (f"{weight.tensor}, expert {number}" for number in range(count))


def _matrix(weight: Weight, number: int) -> Weight:
    """The matrix [N, K] of one expert, of ``weight`` [X, N, K]."""
    experts, rows, width = weight.shape
    if weight.data.ndim == 3:  # rows of a tensor that holds those of others too
        return weight._replace(name=f"{weight.name}, expert {number}", shape=(rows, width), data=weight.data[number])
    flat = weight._replace(shape=(experts * rows, width))  # exact: integers
    return part(flat, f"{weight.name}, expert {number}", number * rows, rows)


def _row(bias: Weight, number: int) -> Weight:
    """The bias [N] of one expert, of ``bias`` [X, N]."""
    return part(bias, f"{bias.name}, expert {number}", number, 1)._replace(shape=bias.shape[1:])


class Nudged(Changed):
    """Every input of a product moved by a unit in its last place, or two: times 1 + 2^-23, rounded."""

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        return self._ops.linear(self._ops.scale(x, NUDGE), weight, bias)

    def linear_heads(self, x: Array, weight: Weight) -> Array:
        return self._ops.linear_heads(self._ops.scale(x, NUDGE), weight)

    def experts(self, x: Array, routes: Array, experts: Experts) -> Array:
        return self._ops.experts(self._ops.scale(x, NUDGE), routes, experts)


NUDGE = 1 + 1 / (1 << 23)


def nudged(ops: Ops) -> Ops:
    """``watch`` for ``Nudged``."""
    return cast(Ops, Nudged(ops))
