"""Rows of logits, one after the other, from passes over what is certain and what is guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinetic.backends.base import Program
from kinetic.bits import F32
from kinetic.engine.drafts import EMPTY, Drafter
from kinetic.engine.drafts.tree import ROOT, Tree
from kinetic.errors import OutOfMemory
from kinetic.types import Batch

MOST_AGAIN = 16
"""Rows of certain tokens that a pass with guesses may have to compute again. Recurrent states go back to a mark after a
wrong guess, and a new mark can't be made before a pass without one: else ever more would be computed again."""


class Passes:
    """The decoding of one completion whose prompt sequence 0 holds. Branches of a tree are sequences -1, -2 ...

    ``drafter`` None guesses nothing. ``clock`` in seconds, if there is one, tells what passes cost. ``choice`` and
    ``best`` are as ``Program.rows`` takes them. ``hidden`` gives the rows [T, width] of the last pass that the drafter
    is to see.
    """

    def __init__(
        self,
        program: Program,
        drafter: Drafter | None,
        there: int,
        choice: tuple[int, float],
        clock: Callable[[], float] | None = None,
        hidden: Callable[[], F32] | None = None,
        best: int = 0,
    ) -> None:
        self._program, self._drafter, self._choice, self._clock = program, drafter, choice, clock
        self._best = best
        self._there = there
        """Positions of sequence 0 that are computed and certain."""
        self._tree, self._at = EMPTY, ROOT
        self._first = 0
        self._look = hidden if drafter and drafter.sees else None
        self._hidden: F32 | None = None
        self._rows: F32 | None = None

    def row(self, history: Sequence[int], longest: int) -> F32:
        """Logits float32 [V] of the last token of ``history``, which has one token more than when last asked. They
        hold until the next call. At most ``longest`` tokens after it are guessed."""
        if self._drafter:
            self._drafter.extend(history[-1])
        child = self._tree.child(self._at, history[-1]) if self._rows is not None else None
        if child is None or self._rows is None:
            self.settle(history)
            self._rows = rows = self._pass(history, longest)
            return rows[0]
        self._at = child
        return self._rows[1 + child]

    def settle(self, history: Sequence[int]) -> None:
        """Of what was computed only that stays which is part of ``history``."""
        if self._rows is None:
            return
        accepted = 0 if self._at == ROOT else self._tree.depths[self._at]
        branch = 0 if self._at == ROOT else self._tree.branches[self._at]
        if branch:
            self._program.take_over(-branch, 0)
        for other in range(1, self._tree.count):
            if other != branch:
                self._program.truncate(-other, 0)
        self._show(history[: self._first + accepted])
        self._there = self._program.truncate(0, self._first + accepted)
        if self._drafter:
            self._drafter.settle(history, self._tree, accepted)
        self._tree, self._at, self._rows = EMPTY, ROOT, None

    def _show(self, certain: Sequence[int]) -> None:
        """What the drafter may see of the pass: rows of tokens that are certain now."""
        if self._drafter is None or self._hidden is None:
            return
        way, row = [], self._at
        while row != ROOT:
            way.append(self._first - self._there + row)
            row = self._tree.parents[row]
        rows = [*range(self._first - self._there), *reversed(way)]
        self._drafter.see(self._there, certain[self._there :], self._hidden[rows])

    def _pass(self, history: Sequence[int], longest: int) -> F32:
        """Rows of the last token of ``history`` and of the guesses; what is no longer computed comes before them."""
        there, end = self._there, len(history)
        drafter = self._drafter if end - there <= MOST_AGAIN else None
        tree = drafter.propose(history, longest) if drafter else EMPTY
        if not self._branched(tree, there):
            tree = EMPTY
        guesses = len(tree.tokens)
        pending = end - there
        more = tuple(-branch for branch in range(1, tree.count))
        batch = Batch(
            tokens=(*history[there:], *tree.tokens),
            positions=(*range(there, end), *(end - 1 + depth for depth in tree.depths)),
            sequences=(*(0,) * pending, *(-branch for branch in tree.branches)),
            outputs=tuple(range(pending - 1, pending + guesses)),
            also=(*(more,) * pending, *(tuple(-b for b in others) for others in tree.also)) if more else (),
        )
        self._tree, self._at, self._first = tree, ROOT, end
        if guesses:
            self._program.mark(0)  # for what may be taken back
        begun = self._clock() if self._clock else 0.0
        try:
            rows = self._program.rows(batch, self._choice, self._best)
        except BaseException:  # broken off: nobody else knows of the branches
            self._forget(tree)
            raise
        if self._clock and self._drafter and pending == 1:
            self._drafter.costs.note(1 + guesses, self._clock() - begun)
        self._hidden = self._look() if self._look else None
        return rows

    def _branched(self, tree: Tree, there: int) -> bool:
        """Whether there is room for the branches of a tree, which then begin behind what is ``there``."""
        try:
            for branch in range(1, tree.count):
                self._program.fork(0, -branch, there)
        except OutOfMemory:  # the answer does without guesses
            self._forget(tree)
            return False
        except BaseException:
            self._forget(tree)
            raise
        return True

    def _forget(self, tree: Tree) -> None:
        for branch in range(1, tree.count):
            self._program.truncate(-branch, 0)
