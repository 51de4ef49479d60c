"""Batches that may not be cut: of models whose rows see later ones, or are averaged over a whole sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kinetic.backends.base import Attention
from kinetic.backends.graph import Node
from kinetic.errors import KineticError
from kinetic.types import Batch

MOST_TOGETHER = 64
"""Whole sequences in one batch, at most: each takes a page of keys and values in every layer."""


def needs_whole(layers: Sequence[Attention], nodes: Iterable[Node]) -> bool:
    """Whether a batch must have all of each of its sequences."""
    return not all(spec.causal for spec in layers) or any(node.op == "average" for node in nodes)


def whole_spans(batch: Batch, *, goes_on: bool = False) -> dict[int, tuple[int, int]]:
    """By sequence its first row and how many it has. Raises KineticError where a sequence is not whole: where it has
    gaps or, unless the model ``goes_on`` behind rows of an earlier batch, doesn't begin at position 0."""
    spans: dict[int, tuple[int, int]] = {}
    starts: dict[int, int] = {}
    for t, (sequence, position) in enumerate(zip(batch.sequences, batch.positions, strict=True)):
        first, count = spans.get(sequence, (t, 0))
        start = starts.setdefault(sequence, position if goes_on else 0)
        if t != first + count or position != start + count:
            raise KineticError("a pass of this model needs the whole of each sequence, row by row", name="NOT_WHOLE")
        spans[sequence] = first, count + 1
    return spans
