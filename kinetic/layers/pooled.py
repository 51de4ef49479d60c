"""One vector out of the rows of a text, and the rows that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from kinetic.backends.base import Array, Forward, Ops, Weight

HEADS = ("output.weight", "token_embd.weight")
"""Names of what rows are multiplied with to give logits."""

Head = Callable[[Ops, Array], Array]
"""What is done to pooled vectors [n, E]: [n, width]."""


def rows_before_the_head(forward: Forward) -> Forward:
    """Of a pass that gives logits, all rows [T, E] as they are before the product with the vocabulary."""

    def rows(ops: Ops) -> Array:
        try:
            forward(cast(Ops, _UpToTheHead(ops)))
        except _Reached as reached:
            return reached.rows
        raise AssertionError("a forward pass ends with a product with the vocabulary")

    return rows


def pooled(rows: Forward, pooling: str, head: Head | None) -> Forward:
    """Vectors [len(outputs), width] out of ``rows`` [T, E]: the mean for 'mean', else the rows that are wanted."""

    def forward(ops: Ops) -> Array:
        x = rows(ops)
        x = ops.average(x) if pooling == "mean" else ops.outputs(x)
        return head(ops, x) if head else x

    return forward


class _Reached(Exception):
    def __init__(self, rows: Array) -> None:
        super().__init__("the rows before the head")
        self.rows = rows


class _UpToTheHead:
    """A backend's operations, for all rows, until the head is reached."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def outputs(self, x: Array) -> Array:
        return x

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        if weight.name in HEADS:
            raise _Reached(x)
        return self._ops.linear(x, weight, bias)
