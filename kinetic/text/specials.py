"""Finding whole tokens in raw text before ordinary tokenisation starts.

User-defined tokens always match, control and unknown tokens only where the
caller asks for it (llama.cpp's ``parse_special``). At one place the longest
text wins, places are taken from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

ASCII_SPACE = " \t\n\v\f\r"
"""What C's isspace accepts; ``strip_left`` and ``strip_right`` remove these beside a token."""


class SpecialTokens:
    """A set of token texts to look for.

    ``strip_left`` / ``strip_right`` are ids that swallow the white space before / after them.
    """

    def __init__(
        self,
        entries: Iterable[tuple[str, int]],
        strip_left: frozenset[int] = frozenset(),
        strip_right: frozenset[int] = frozenset(),
    ) -> None:
        self._ids = {text: token for text, token in entries if text}
        self._strip_left = strip_left
        self._strip_right = strip_right
        self._lengths = _lengths_by_head(self._ids)
        self._heads = re.compile(_heads_pattern(self._ids)) if self._ids else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, id) of every match, left to right, without overlaps."""
        if self._heads is None:
            return
        position = 0
        while match := self._heads.search(text, position):
            start = match.start()
            position = start + 1
            for length in self._lengths[text[start]]:
                token = self._ids.get(text[start : start + length])
                if token is not None:
                    position = start + length
                    yield start, position, token
                    break

    def split(self, text: str) -> list[str | int]:
        """Cut ``text`` into runs of ordinary text (never empty) and token ids."""
        parts: list[str | int] = []
        done = 0
        for start, end, token in self.find(text):
            run = text[done:start]
            run = run.rstrip(ASCII_SPACE) if token in self._strip_left else run
            parts += [run, token] if run else [token]
            done = end
            while token in self._strip_right and done < len(text) and text[done] in ASCII_SPACE:
                done += 1
        if done < len(text):
            parts.append(text[done:])
        return parts


def _lengths_by_head(texts: Iterable[str]) -> dict[str, list[int]]:
    """First character -> lengths of the texts that start with it, longest first."""
    lengths: dict[str, set[int]] = {}
    for text in texts:
        lengths.setdefault(text[0], set()).add(len(text))
    return {head: sorted(found, reverse=True) for head, found in lengths.items()}


def _heads_pattern(texts: Iterable[str]) -> str:
    """A cheap pattern for places where a match may start: the first two characters of some text."""
    seconds: dict[str, set[str]] = {}
    for text in texts:
        seconds.setdefault(text[0], set()).add(text[1:2])
    alone = sorted(head for head, following in seconds.items() if "" in following)
    pairs = sorted(head for head, following in seconds.items() if "" not in following)
    branches = [f"{re.escape(head)}{_one_of(sorted(seconds[head]))}" for head in pairs]
    return "|".join(([_one_of(alone)] if alone else []) + branches)


def _one_of(characters: list[str]) -> str:
    return "[" + "".join(map(re.escape, characters)) + "]"
