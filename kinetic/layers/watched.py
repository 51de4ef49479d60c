"""Operations with something added, for whoever wants to look into a forward pass: no family knows of it.

``Engine(..., watch=Inputs(...))`` builds the model with these instead of the backend's own. What they tap comes
back from ``Engine.taps()`` after each pass; a model built without them has the plan it always had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from kinetic.backends.base import Array, Experts, Ops, Weight


class _Changed:
    """A backend's operations; a subclass replaces some."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


class Inputs:
    """Taps what goes into the products with weights of which ``wanted(name)`` is true."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self.wanted = wanted
        self.tap_of: dict[str, str] = {}
        """By name of a weight, that of the tap with its inputs. Products that follow on one another share theirs."""

    def __call__(self, ops: Ops) -> Ops:
        return cast(Ops, _InputTaps(ops, self))


class _InputTaps(_Changed):
    def __init__(self, ops: Ops, inputs: Inputs) -> None:
        super().__init__(ops)
        self._inputs = inputs
        self._last: tuple[Array, str] = (None, "")

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        if self._inputs.wanted(weight.tensor):
            if x is not self._last[0]:
                self._last = self._ops.tap(x, weight.tensor), weight.tensor
            self._inputs.tap_of[weight.tensor] = self._last[1]
        return self._ops.linear(x, weight, bias)


class Nudged(_Changed):
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
