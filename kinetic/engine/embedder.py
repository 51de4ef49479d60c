"""Vectors of token sequences: one model on one device, with one way of pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kinetic import models
from kinetic.backends import open_backend
from kinetic.backends.control_word import default_rounding
from kinetic.backends.reference.functions import softmax
from kinetic.backends.whole import MOST_TOGETHER
from kinetic.bits import F32
from kinetic.engine.engine import EngineIdentity
from kinetic.errors import ContextOverflow, NonFinite, UnsupportedModel, UsageError
from kinetic.layers.pooled import pooled, rows_before_the_head
from kinetic.types import Batch, PackCache

if TYPE_CHECKING:
    from kinetic.backends.base import Forward, Weights
    from kinetic.gguf import Gguf
    from kinetic.models.family import Family

ROWS = 512
"""Rows of one pass over several sequences. A longer sequence has a pass to itself; no bit depends on that."""


class EmbeddingEngine:
    """Not thread-safe. ``pooling`` is one of ``models.pooling.POOLINGS``, "" what the file says.

    With the pooling "rank" vectors are scores, ``labels`` their names.
    Raises UnsupportedModel where the model has no such pooling.
    """

    def __init__(
        self,
        gguf: Gguf,
        weights: Weights,
        *,
        pooling: str = "",
        backend: str = "cpu",
        gpu_layers: int | None = None,
        threads: int = 0,
        progress: Callable[[str], None] | None = None,
        packs: PackCache | None = None,
    ) -> None:
        family = models.build(gguf, weights)
        self.pooling, self.labels = pooling or family.embedding.pooling, family.embedding.labels
        self._row = family.embedding.rank_pooling if self.pooling == "rank" else self.pooling
        self._softmax = self.pooling == "rank" and family.embedding.softmax
        self.context, self.vocab_size = family.context_length, family.vocab_size
        device = open_backend(backend, threads=threads, gpu_layers=gpu_layers, context=self.context)
        forward = _forward(family, self.pooling, self._row)
        self._program = device.load(forward, family.attention, progress, packs, family.states)
        self.identity = EngineIdentity(device.engine_id, device.device_class, device.device_name, device.threads)

    def vectors(self, sequences: Sequence[Sequence[int]]) -> Iterator[F32]:
        """Of each sequence in turn float32 [1, width], or [tokens, width] without pooling.

        Raises UsageError and ContextOverflow before anything is computed, and NonFinite.
        """
        for number, tokens in enumerate(sequences):
            self._check(number, tokens)
        for group in _groups(sequences):
            yield from self._pass(group)

    def close(self) -> None:
        self._program.close()

    def _check(self, number: int, tokens: Sequence[int]) -> None:
        if not tokens:
            raise UsageError(f"text {number + 1} is empty: it must have at least one token", name="EMPTY_TEXT")
        bad = [token for token in tokens if not 0 <= token < self.vocab_size]
        if bad:
            raise UsageError(f"token {bad[0]} is not in the vocabulary of {self.vocab_size}", name="BAD_TOKEN")
        if len(tokens) > self.context:
            raise ContextOverflow(
                f"text {number + 1} has {len(tokens)} tokens, and this model takes {self.context} at most: shorten it",
                name="TEXT_TOO_LONG",
            )

    def _pass(self, group: Sequence[Sequence[int]]) -> Iterator[F32]:
        tokens = tuple(token for sequence in group for token in sequence)
        positions = tuple(i for sequence in group for i in range(len(sequence)))
        numbers = tuple(number for number, sequence in enumerate(group) for _ in sequence)
        outputs, counts = self._outputs([len(sequence) for sequence in group])
        rows = self._program.run(Batch(tokens, positions, numbers, outputs))
        for number in range(len(group)):
            self._program.truncate(number, 0)
        if not np.isfinite(rows).all():
            raise NonFinite("the model produced a number that is not finite", name="NON_FINITE")
        if self._softmax:
            with default_rounding():
                rows = softmax(rows)
        start = 0
        for count in counts:
            yield rows[start : start + count]
            start += count

    def _outputs(self, lengths: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
        """The rows that are wanted, and how many of them each sequence has."""
        ends = np.cumsum(lengths).tolist()  # exact: integers
        if self._row == "none":
            return tuple(range(ends[-1])), list(lengths)
        first = [end - length for end, length in zip(ends, lengths, strict=True)]
        return tuple(first if self._row == "cls" else (end - 1 for end in ends)), [1] * len(lengths)


def _forward(family: Family, pooling: str, row: str) -> Forward:
    embedding = family.embedding
    rows = family.forward if embedding.only else rows_before_the_head(family.forward)
    if pooling != "rank":
        return pooled(rows, row, embedding.project)
    if embedding.rank is None:
        raise UnsupportedModel("this model has no rank head, so it can't score documents", name="NO_RANK_HEAD")
    return pooled(rows, row, embedding.rank)


def _groups(sequences: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Whole sequences, in order, as many together as fit into a pass, ``MOST_TOGETHER`` at most."""
    group: list[Sequence[int]] = []
    size = 0
    for tokens in sequences:
        if group and (size + len(tokens) > ROWS or len(group) == MOST_TOGETHER):
            yield group
            group, size = [], 0
        group.append(tokens)
        size += len(tokens)
    if group:
        yield group
