"""What followed the same tokens before: in this conversation, and in earlier requests to the same engine.

Chains of places by hashed n-grams, as LZ77 compressors have them. Memory is bounded: of two halves the older one is
forgotten when the newer one is full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kinetic.engine.drafts.source import Branch, Rates

ORDERS = (6, 3, 2)
"""Lengths of the n-grams that are looked up, longest first."""

PLACES, BRANCHES = 24, 4
"""Places of one n-gram that are looked at, and branches that are made of the best."""

LONGEST = 24
"""Matches are told apart up to this length."""

HALF = 1 << 15
"""Tokens of each half; with its chains each takes about 10 MB."""

BREAK = -1
"""Between one request and the next."""

_ONWARD = [min(length, LONGEST) for length in range(LONGEST + 65)]
"""Kinds of guesses one after the other, from a length of a match on."""


class _Half:
    """Tokens, and of each n-gram the last place where it ends, with the places before it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._last: list[dict[tuple[int, ...], int]] = [{} for _ in ORDERS]
        self._before: list[list[int]] = [[] for _ in ORDERS]

    def add(self, token: int) -> None:
        tokens = self.tokens
        place = len(tokens)
        tokens.append(token)
        longest = tuple(tokens[-ORDERS[0] :])
        for level, order in enumerate(ORDERS):
            key, last = longest[-order:], self._last[level]
            self._before[level].append(last.get(key, -1))
            last[key] = place

    def places(self, level: int, key: tuple[int, ...]) -> list[int]:
        """Where the n-gram ends, newest first, its own end aside: PLACES at most."""
        place = self._last[level].get(key, -1)
        if place < 0:
            return []
        before, found = self._before[level], []
        if place == len(before) - 1:
            place = before[place]
        while place >= 0 and len(found) < PLACES:
            found.append(place)
            place = before[place]
        return found

    def match(self, place: int, recent: Sequence[int], length: int) -> int:
        """How many tokens up to ``place`` are those that ``recent`` ends with: ``length`` at least."""
        tokens, most = self.tokens, min(place + 1, len(recent), LONGEST)
        while length < most and tokens[place - length] == recent[-1 - length]:
            length += 1
        return length


def _first_rates() -> list[float]:
    """Of kinds 0 .. LONGEST: the token that followed a match of so many tokens. Then of those beside another guess."""
    return [length / (length + 1.5) for length in range(LONGEST + 1)] + [0.15] * (LONGEST + 1)


class NgramSource:
    """See the module. Kinds are lengths of matches, and beside another guess LONGEST + 1 more."""

    spent = 0.0

    def __init__(self) -> None:
        self.rates = Rates(_first_rates())
        self._new, self._old = _Half(), _Half()
        self._begun = 0
        """Where in the newer half the last request begins."""

    def begin(self, prompt: Sequence[int]) -> None:
        """What goes on with the last request is not another one, or all of it would be known twice."""
        known = self._new.tokens[self._begun :]
        if known and known == list(prompt[: len(known)]):
            prompt = prompt[len(known) :]
        else:
            self.extend(BREAK)
            self._begun = len(self._new.tokens)
        for token in prompt:
            self.extend(token)

    def extend(self, token: int) -> None:
        if len(self._new.tokens) >= HALF:
            self._old, self._new, self._begun = self._new, _Half(), 0
        self._new.add(token)

    def propose(self, history: Sequence[int], longest: int) -> Iterator[Branch]:
        for length, half, place in self._best(history[-LONGEST:]):
            tokens = half.tokens[place + 1 : place + 1 + longest]
            if BREAK in tokens:
                tokens = tokens[: tokens.index(BREAK)]
            yield Branch(tokens, _ONWARD[length : length + len(tokens)], LONGEST + 1 + length)

    def _best(self, recent: Sequence[int]) -> list[tuple[int, _Half, int]]:
        """(length of the match, half, place), longest first, newer before older; each goes on in a way of its own."""
        found: dict[tuple[int, int], int] = {}  # (age, -place): -length
        for level, order in enumerate(ORDERS):
            if len(recent) < order or len(found) >= BRANCHES:
                continue
            key = tuple(recent[-order:])
            for age, half in enumerate((self._new, self._old)):
                for place in half.places(level, key):
                    if (age, -place) not in found:
                        found[age, -place] = -half.match(place, recent, order)
        best: list[tuple[int, _Half, int]] = []
        ways = set()
        for length, age, place in sorted((length, *where) for where, length in found.items()):
            half = self._old if age else self._new
            way = tuple(half.tokens[1 - place : 4 - place])
            if way not in ways:
                ways.add(way)
                best.append((-length, half, -place))
                if len(best) == BRANCHES:
                    break
        return best
