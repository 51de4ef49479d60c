"""Guesses of a smaller model with the same vocabulary: its likeliest token, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kinetic.backends.base import Program
from kinetic.bits import F32
from kinetic.engine.drafts.source import Branch, Rates
from kinetic.errors import NonFinite
from kinetic.types import Batch

CHUNK = 512
"""Rows of one pass over what the model has not read yet."""

STEPS = 8
"""Guesses at once: longer ones are rarely right to the end, and each of them takes a pass."""

GAPS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Kinds are told apart by how far the second best logit is behind the best."""

ENOUGH = 0.35
"""Nothing is guessed behind a guess of which the whole way is less likely than this."""


def first_rates() -> Rates:
    """Of kinds 0 .. len(GAPS), and of a guess beside another."""
    return Rates([*(0.35 + 0.1 * kind for kind in range(len(GAPS))), 0.97, 0.1])


def guess(
    program: Program,
    row: F32,
    step: Callable[[int], F32],
    rates: Rates,
    longest: int,
    ids: Sequence[int] = (),
) -> tuple[list[int], list[int]]:
    """At most ``longest`` tokens and their kinds: the likeliest by logits ``row`` [V], then by those that ``step``
    gives after each. ``ids`` are the tokens by number of a logit, unless they are the numbers."""
    tokens: list[int] = []
    kinds: list[int] = []
    chance = 1.0
    while True:
        try:
            numbers, values = program.candidates(row, 2, float("inf"))
        except NonFinite:  # a drafter that overflows has nothing to say
            return tokens, kinds
        gap = float(values[0]) - float(values[1]) if len(values) > 1 else GAPS[-1]
        kind = sum(gap >= limit for limit in GAPS)  # exact: a count
        token = ids[numbers[0]] if ids else int(numbers[0])
        tokens.append(token)
        kinds.append(kind)
        chance *= rates.of(kind)
        if len(tokens) >= longest or chance < ENOUGH:
            return tokens, kinds
        row = step(token)


class ModelSource:
    """Keeps a sequence of its own, as far as its tokens are those of the conversation."""

    def __init__(self, program: Program, context: int, clock: Callable[[], float] | None = None) -> None:
        self.rates = first_rates()
        self.spent = 0.0
        self._program, self._context, self._clock = program, context, clock
        self._read: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """Its memory of earlier tokens is cut where the new ones differ, when next asked."""

    def extend(self, token: int) -> None:
        """What is certain is read when next asked."""

    def propose(self, history: Sequence[int], longest: int) -> Iterator[Branch]:
        begun = self._clock() if self._clock else 0.0
        tokens, kinds = self._guess(history, min(longest, STEPS, self._context - len(history) - 1))
        self.spent = self._clock() - begun if self._clock else 0.0
        if tokens:
            yield Branch(tokens, kinds, len(GAPS) + 1)

    def _guess(self, history: Sequence[int], longest: int) -> tuple[list[int], list[int]]:
        if longest < 1:
            return [], []
        row = self._catch_up(history)
        self._program.mark(0)  # for guesses that are wrong
        return guess(self._program, row, lambda token: self._pass([token]), self.rates, longest)

    def _catch_up(self, history: Sequence[int]) -> F32:
        """Logits after ``history``; what was read and is not part of it is forgotten."""
        same = 0
        for known, token in zip(self._read, history[:-1], strict=False):
            if known != token:
                break
            same += 1
        kept = self._program.truncate(0, same)
        del self._read[kept:]
        rest = list(history[kept:])
        for start in range(0, len(rest), CHUNK):
            row = self._pass(rest[start : start + CHUNK])
        return row

    def _pass(self, tokens: Sequence[int]) -> F32:
        count, start = len(tokens), len(self._read)
        batch = Batch(tuple(tokens), tuple(range(start, start + count)), (0,) * count, (count - 1,))
        self._read += tokens
        return self._program.rows(batch)[0]
