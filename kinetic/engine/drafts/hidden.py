"""Guesses from what the model itself has seen: by its own layer for one token more, or by a drafter made for it.

The model's hidden rows of what is certain are shown to such a source, after every pass. It reads them in large batches
while nothing is asked, and the rest when asked to guess. Of what it has read for earlier prompts it goes on behind the
longest beginning, as the model does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kinetic.bits import F32
from kinetic.engine.drafts.model import CHUNK, GAPS, STEPS, first_rates, guess
from kinetic.engine.drafts.source import Branch
from kinetic.engine.warm.blocks import common
from kinetic.layers.deltanet import HIDDEN
from kinetic.types import Batch

if TYPE_CHECKING:
    from kinetic.backends.base import Program
    from kinetic.engine.warm import Warm
    from kinetic.models.family import HiddenDrafter


GAP = 8
"""Rows that the model computes again at most so that nothing is missing behind what both have. It is one in all but
odd cases; where the model can't go back, nothing but zeros was seen there."""


class HiddenSource:
    """A sequence of its own over what was seen without a gap, from any position on. Guesses are tokens one after the
    other, each from what the source itself makes of the one before."""

    def __init__(
        self,
        program: Program,
        encoder: Program | None,
        drafter: HiddenDrafter,
        clock: Callable[[], float] | None = None,
        warm: Warm | None = None,
    ) -> None:
        self.rates = first_rates()
        self.spent = 0.0
        self._program, self._encoder, self._drafter, self._clock = program, encoder, drafter, clock
        self._warm = warm
        self._tokens: list[int] = []
        self._waiting: list[F32] = []
        """Rows to be given that were not read yet."""
        self._width = 0
        """Of rows that are waiting, once there were any."""
        self._begun: list[int] = []
        """The prompt."""
        self._restart(0)

    def begin(self, prompt: Sequence[int]) -> None:
        self._begun = list(prompt)
        if self._warm is None:
            self._restart(0)
            return
        if self._base or self._program.truncate(0, self._done) < self._done:
            self._restart(0)
        rows = self._of_rows(self._tokens)
        is_same = self._done <= len(rows) and common(self._tokens, self._begun) == len(self._tokens)
        while not is_same and self._fits() and (count := self._readable(len(self._tokens))) > 0:
            self._read(self._tokens, min(count, CHUNK))  # so that all of it can be set aside
        self._program.truncate(0, min(self._done, len(rows)))
        self._warm.settle(rows)
        done = self._warm.begin([*self._of_rows(self._begun), 0])
        if is_same and done == self._done:
            return
        self._restart_behind(done)

    def _restart_behind(self, done: int) -> None:
        """So many rows are there, of the prompt, and what was seen behind them is not known."""
        if done == 0:
            self._restart(0)
            return
        self._base, self._done = 0, done
        self._tokens = self._begun[: done - self._drafter.begins_empty]
        self._waiting = []

    def _of_rows(self, tokens: Sequence[int]) -> Sequence[int]:
        """What a row depends on: the tokens up to this one."""
        return tokens if self._drafter.begins_empty else tokens[1:]

    @property
    def wanted(self) -> int:
        """The first position whose hidden row is not known."""
        return self._base + len(self._tokens)

    def extend(self, token: int) -> None:
        """What is certain is shown when it was computed."""

    def see(self, first: int, tokens: Sequence[int], hidden: F32) -> None:
        """The model's hidden rows [n, width] of the certain ``tokens`` at positions from ``first`` on. Known ones may
        come again, since they may have been computed again."""
        end = self.wanted
        if first > end and self._can_miss(end, first):
            self._tokens += self._begun[end:first]
            self._waiting.append(np.zeros((first - end, self._drafter.width), np.float32))
            end = first
        elif first > end:
            self._restart(first)
            end = first
        if end - first >= len(tokens):
            return
        self._tokens += tokens[end - first :]
        self._waiting.append(self._encoded(hidden[end - first :]))
        self._width = self._waiting[-1].shape[1]
        while self._fits() and (count := self._readable(len(self._tokens))) >= CHUNK:
            self._read(self._tokens, min(count, CHUNK))

    def _can_miss(self, end: int, first: int) -> bool:
        """Whether it can do without the hidden rows of these positions of the prompt."""
        return self._done > 0 and self._base == 0 and first - end <= GAP and first <= len(self._begun)

    def propose(self, history: Sequence[int], longest: int) -> Iterator[Branch]:
        begun = self._clock() if self._clock else 0.0
        tokens, kinds = self._guess(history[-1], longest) if self._is_level(history) else ([], [])
        self.spent = self._clock() - begun if self._clock else 0.0
        if tokens:
            yield Branch(tokens, kinds, len(GAPS) + 1)

    def _is_level(self, history: Sequence[int]) -> bool:
        """Whether all was seen but the last token, and there is room for guesses."""
        return self._base + len(self._tokens) == len(history) - 1 and bool(self._tokens) and self._fits()

    def _restart(self, first: int) -> None:
        self._base = first
        self._tokens, self._waiting = [], []
        if self._drafter.begins_empty:
            self._waiting.append(np.zeros((1, self._drafter.width), np.float32))
        self._done = 0
        """Rows that the program holds and that are certain."""
        self._program.truncate(0, 0)

    def _encoded(self, hidden: F32) -> F32:
        if self._encoder is None:
            return hidden
        rows = tuple(range(len(hidden)))
        made = self._encoder.run(Batch((0,) * len(rows), rows, (0,) * len(rows), rows), hidden)
        self._encoder.truncate(0, 0)
        return made

    def _fits(self) -> bool:
        return len(self._tokens) + 1 + max(STEPS, self._drafter.block) < self._drafter.context_length

    # ---- rows, and what is made of them

    def _readable(self, tokens: int) -> int:
        """Rows that can be read of the ``tokens`` there are."""
        waiting = sum(map(len, self._waiting))  # exact: integers
        return min(waiting, tokens - (not self._drafter.begins_empty) - self._done)

    def _read(self, tokens: Sequence[int], count: int) -> F32:
        """Logits [1, V] of the last of ``count`` more rows."""
        first = self._done + (not self._drafter.begins_empty)
        return self._pass(tokens[first : first + count], self._take(count))

    def _take(self, count: int) -> F32:
        """What the next ``count`` rows are given."""
        rows = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        self._waiting = [rows[count:]] if len(rows) > count else []
        self._done += count
        return rows[:count]

    def _pass(self, tokens: Sequence[int], given: F32) -> F32:
        """Rows at the end of the program's sequence."""
        count, start = len(tokens), self._program.length(0)
        positions = tuple(range(start, start + count))
        return self._program.run(Batch(tuple(tokens), positions, (0,) * count, (count - 1,)), given)

    def _guess(self, last: int, longest: int) -> tuple[list[int], list[int]]:
        self._program.truncate(0, self._done)
        tokens = [*self._tokens, last]
        while (count := self._readable(len(tokens))) > 0:
            row = self._read(tokens, min(count, CHUNK))
        return guess(self._program, row[0], self._step, self.rates, min(longest, STEPS), self._drafter.ids)

    def _step(self, token: int) -> F32:
        return self._pass([token], self._program.taps()[HIDDEN][-1:])[0]


class BlockSource(HiddenSource):
    """All guesses at once: a block behind what was seen, filled up with masks."""

    def _restart(self, first: int) -> None:
        super()._restart(first)
        self._waiting = []

    def _of_rows(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens

    def _can_miss(self, end: int, first: int) -> bool:
        return False

    def _readable(self, tokens: int) -> int:
        return min(sum(map(len, self._waiting)), tokens - self._done)  # exact: integers

    def _read(self, tokens: Sequence[int], count: int) -> F32:
        return self._rows(tokens[self._done : self._done + count], (), self._take(count))

    def _rows(self, seen: Sequence[int], block: Sequence[int], hidden: F32) -> F32:
        """Logits of the rows of ``block``, which comes behind rows of what was seen."""
        count, start, total = len(seen), self._program.length(0), len(seen) + len(block)
        given = np.zeros((total, self._drafter.width), np.float32)
        given[:count, : hidden.shape[1]] = hidden
        given[count:, hidden.shape[1] :] = 1
        positions, outputs = tuple(range(start, start + total)), tuple(range(count, total))
        return self._program.run(Batch((*seen, *block), positions, (0,) * total, outputs), given)

    def _guess(self, last: int, longest: int) -> tuple[list[int], list[int]]:
        self._program.truncate(0, self._done)
        if not self._width:  # nothing was seen yet
            return [], []
        while self._readable(len(self._tokens)) > CHUNK:
            self._read(self._tokens, CHUNK)
        first = self._done
        count = self._readable(len(self._tokens))
        hidden = self._take(count) if count else np.zeros((0, self._width), np.float32)
        block = [last] + [self._drafter.mask] * (self._drafter.block - 1)
        logits = self._rows(self._tokens[first:], block, hidden)[1 : 1 + longest]
        later = iter(logits[1:])
        return guess(self._program, logits[0], lambda token: next(later), self.rates, len(logits))
