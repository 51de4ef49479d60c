"""Joining neighbours until no pair may be joined: the loop under both byte-pair and SentencePiece tokenizers.

``merge`` takes any symbols and any order of joining. ``RankedMerges`` does the same for words of ordinary length and
merges that are written out, where scanning a few ranks is quicker than keeping a heap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from operator import add
from typing import Final, Protocol

Priority = Callable[[str, str], float | None]
"""Rank of joining two neighbours, lowest first; None where they may not be joined."""


def merge(symbols: list[str], priority: Priority) -> list[str]:
    """Join the pair of lowest rank, the leftmost of equals, until none is left.

    ``symbols`` is consumed. O(n log n) in its length.
    """
    count = len(symbols)
    following = list(range(1, count + 1))
    previous = list(range(-1, count - 1))
    heap: list[tuple[float, int, int, int]] = []
    for left in range(count - 1):
        rank = priority(symbols[left], symbols[left + 1])
        if rank is not None:
            heap.append((rank, left, left + 1, len(symbols[left]) + len(symbols[left + 1])))
    heapify(heap)

    while heap:
        _, left, right, length = heappop(heap)
        # An entry is stale when either side was joined to something else meanwhile.
        if not symbols[left] or len(symbols[left]) + len(symbols[right]) != length:
            continue
        symbols[left] += symbols[right]
        symbols[right] = ""
        after = following[left] = following[right]
        if after < count:
            previous[after] = left
        for first, second in ((previous[left], left), (left, after)):
            if first >= 0 and second < count:
                rank = priority(symbols[first], symbols[second])
                if rank is not None:
                    heappush(heap, (rank, first, second, len(symbols[first]) + len(symbols[second])))
    return [symbol for symbol in symbols if symbol]


NEVER: Final = 1 << 62
"""Above every rank: these two may not be joined."""


class Ranks(Protocol):
    """Merge as written, "left right" -> rank; a dictionary is one."""

    def get(self, merge: str, default: int, /) -> int: ...


class RankedMerges:
    """Merges written "left right" with their ranks, applied to words. Safe to share between threads."""

    SCANNED = 48
    """Characters. The time of scanning grows with the square of the length; longer words go through the heap."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._first = _FirstRanks(ranks).__getitem__

    def apply(self, word: str) -> list[str]:
        """The symbols that are left of a word, whose characters are those it starts from."""
        if len(word) > self.SCANNED:
            return merge(list(word), self._priority)
        rank, symbols = self._ranks.get, list(word)
        ranks = list(map(self._first, map(add, word, word[1:])))  # ranks[i] is that of symbols i and i + 1
        while ranks and (lowest := min(ranks)) != NEVER:
            place = ranks.index(lowest)
            del ranks[place]
            joined = symbols[place] = symbols[place] + symbols.pop(place + 1)
            if place:
                ranks[place - 1] = rank(f"{symbols[place - 1]} {joined}", NEVER)
            if place < len(ranks):
                ranks[place] = rank(f"{joined} {symbols[place + 1]}", NEVER)
        return symbols

    def _priority(self, left: str, right: str) -> int | None:
        rank = self._ranks.get(f"{left} {right}", NEVER)
        return None if rank == NEVER else rank


class _FirstRanks(dict[str, int]):
    """Two characters -> rank of joining them. There are few such pairs, so all are soon known."""

    PAIRS = 1 << 16
    """All pairs of byte characters. Where words are raw text there can be more; then this starts anew."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __missing__(self, pair: str) -> int:
        if len(self) >= self.PAIRS:
            self.clear()
        rank = self[pair] = self._ranks.get(f"{pair[0]} {pair[1]}", NEVER)
        return rank


class WordMemory:
    """Tokens of words, worked out once. Natural text repeats its words, so this is where the speed comes from."""

    WORDS = 1 << 17
    LONGEST = 64
    """Longer words hardly ever repeat. Some 30 MB at most; when it is full the memory starts anew."""

    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        self._encode_word = encode_word
        self._known: dict[str, list[int]] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Tokens of all words, one after the other."""
        known = self._known
        ids: list[int] = []
        for word in words:
            found = known.get(word)
            if found is None:
                found = self._encode_word(word)
                self._keep(word, found)
            ids += found
        return ids

    def _keep(self, word: str, ids: list[int]) -> None:
        if len(self._known) >= self.WORDS:
            self._known.clear()
        if len(word) <= self.LONGEST:
            self._known[word] = ids
