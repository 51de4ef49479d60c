"""A sequence of a program together with its tokens, so that it can go back to any position: for every kind of model.

Where keys and values are all there is, going back is free. Recurrent states go back to a mark, and the tokens behind
it are computed again. Both give the bits of a sequence that never went on. Keys and values are kept once, and at most
``backends.states.MOST_MARKS`` copies of the states; a mark costs a copy of them, going back one more and the tokens
from the mark to the position wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kinetic.bits import F32
from kinetic.errors import UsageError
from kinetic.types import Batch

if TYPE_CHECKING:
    from kinetic.backends.base import Program, Snapshot

ROWS = 512
"""Rows of one pass. Any number gives the same bits."""


class Saved(NamedTuple):
    """A sequence to be taken up again, by any program of the same model and the same engine id."""

    tokens: tuple[int, ...]
    snapshot: Snapshot


class TokenSequence:
    """Sequence ``number`` of ``program``, empty at first. Nobody else may run or change it meanwhile."""

    def __init__(self, program: Program, number: int = 0) -> None:
        self._program, self._number = program, number
        self._tokens: list[int] = []
        program.truncate(number, 0)

    @property
    def tokens(self) -> tuple[int, ...]:
        """What is computed, position by position."""
        return tuple(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def feed(self, tokens: Sequence[int], outputs: Sequence[int] = ()) -> F32:
        """Computes ``tokens``, one at least, behind what is there: logits float32 [len(outputs), V] of those rows."""
        found = []
        for start in range(0, len(tokens), ROWS):
            piece = tuple(tokens[start : start + ROWS])
            first = len(self._tokens)
            wanted = tuple(row - start for row in outputs if start <= row < start + len(piece))
            positions = tuple(range(first, first + len(piece)))
            found.append(self._program.run(Batch(piece, positions, (self._number,) * len(piece), wanted)))
            self._tokens += piece
        return np.concatenate(found)

    def mark(self) -> None:
        """Makes going back to here cheap. Worth it before tokens that may be taken back, and at the end of a prompt."""
        self._program.mark(self._number)

    def roll_back(self, length: int) -> None:
        """Makes the sequence what it was when it had ``length`` tokens. Raises UsageError if it never had so many."""
        if not 0 <= length <= len(self._tokens):
            raise UsageError(f"a sequence of {len(self._tokens)} tokens can't go back to {length}", name="BAD_LENGTH")
        again = self._tokens[:length]
        kept = self._keep(length)
        if kept < length:
            self.feed(again[kept:])

    def resume(self, tokens: Sequence[int]) -> int:
        """Keeps what ``tokens`` begins with, as far as it is there or can be had back without computing anything.

        Returns how many positions that is: the caller feeds the others. A row that is kept gives no logits, so ask
        for all tokens but the last.
        """
        common = 0
        while common < min(len(tokens), len(self._tokens)) and tokens[common] == self._tokens[common]:
            common += 1
        return self._keep(common)

    def save(self) -> Saved:
        """A copy of everything, for a later ``restore``: float16 keys and values, float32 states."""
        return Saved(self.tokens, self._program.snapshot(self._number))

    def restore(self, saved: Saved) -> None:
        """Makes the sequence what it was when it was saved, and marks it there.

        Raises KineticError if the snapshot is of another model's shapes; whether it is of this very model is for
        the caller to know.
        """
        self._program.restore(self._number, saved.snapshot)
        self._tokens = list(saved.tokens)

    def _keep(self, length: int) -> int:
        kept = self._program.truncate(self._number, length)
        del self._tokens[kept:]
        return kept
