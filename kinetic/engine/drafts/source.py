"""What a source of drafts has to offer, and how often it was right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Rates:
    """How often guesses of each kind were right. A kind is whatever the source tells its guesses apart by."""

    WEIGHT = 48
    """The last so many guesses of a kind count for most of its rate."""

    def __init__(self, first: Sequence[float]) -> None:
        """``first``: what each kind is thought to be worth before anything is known, for as much as four guesses."""
        self._rates = list(first)
        self._counts = [4] * len(first)

    def of(self, kind: int) -> float:
        return self._rates[kind]

    def note(self, kind: int, is_right: bool) -> None:
        self._counts[kind] = min(self._counts[kind] + 1, self.WEIGHT)
        self._rates[kind] += (is_right - self._rates[kind]) / self._counts[kind]


class Branch(NamedTuple):
    """Tokens that may come next, one after the other. ``kinds[i]`` is the kind of guess that token i is, given that
    those before it are right; ``fork`` is its kind where another branch guesses another token."""

    tokens: Sequence[int]
    kinds: Sequence[int]
    fork: int


class Source(Protocol):
    """Guesses by a rule of its own. Nothing that it does can change an answer."""

    rates: Rates

    def begin(self, prompt: Sequence[int]) -> None:
        """A new completion."""

    def extend(self, token: int) -> None:
        """One more token of it is certain."""

    def propose(self, history: Sequence[int], longest: int) -> Iterable[Branch]:
        """Branches of at most ``longest`` tokens that may follow ``history``, the likeliest first."""

    @property
    def spent(self) -> float:
        """Seconds that the last proposal took on the device; 0 if it needs none."""
