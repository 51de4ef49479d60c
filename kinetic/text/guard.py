"""Keeping the words of a conversation from turning into control tokens.

A chat template mixes markers such as ``<|im_end|>`` with the words of the
conversation, and the tokenizer cannot tell one from the other afterwards. So,
before rendering, a guard character is put inside every spelling of a control
token that occurs in the conversation, and inside every beginning or end of one
at the edge of a text, where the template or another text could complete it.
The tokenizer finds control tokens while the guards are there and drops them then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from kinetic.text.specials import SpecialTokens

GUARDS = [*range(0xE000, 0xF900), *range(0xF0000, 0xF1000)]
"""Private-use characters: no model means anything by them."""

STRUCTURE = ("role", "type")
"""Keys whose values the template compares with fixed words."""


def free_character(*texts: str) -> str:
    """The first guard character that occurs in none of ``texts``."""
    used = set().union(*texts)
    return next(chr(code) for code in GUARDS if chr(code) not in used)


class Guard:
    """Puts ``character`` inside the spellings of control tokens (sorted, each of two characters at least)."""

    def __init__(self, character: str, spellings: list[str]) -> None:
        self.character = character
        self._control = SpecialTokens((text, 0) for text in spellings)
        self.spellings = spellings
        self._backwards = sorted(text[::-1] for text in spellings)
        self._longest = max(map(len, spellings), default=0)

    def without(self, spared: Sequence[str]) -> Guard:
        """A guard that lets these spellings pass."""
        return Guard(self.character, [text for text in self.spellings if text not in spared]) if spared else self

    def protect(self, value: Any, key: str = "") -> Any:
        """A copy of JSON-like ``value`` with every text guarded; keys are guarded only if they spell a token whole."""
        if isinstance(value, str):
            return self._inside(value) if key in STRUCTURE else self._edges(self._inside(value))
        if isinstance(value, dict):
            return {self._inside(str(name)): self.protect(item, str(name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def _inside(self, text: str) -> str:
        """A guard after the first character of every whole spelling."""
        while places := [start + 1 for start, _, _ in self._control.find(text)]:
            edges = [0, *places, len(text)]
            text = self.character.join(text[first:last] for first, last in pairwise(edges))
        return text

    def _edges(self, text: str) -> str:
        """A guard inside a spelling that begins at the end of ``text`` or ends at its start, white space aside."""
        body = text.rstrip()
        length = self._overlap(body[-self._longest :], self.spellings)
        if length:
            place = len(body) - length + 1
            text = text[:place] + self.character + text[place:]
        head = len(text) - len(text.lstrip())
        length = self._overlap(text[head : head + self._longest][::-1], self._backwards)
        if length:
            place = head + length - 1
            text = text[:place] + self.character + text[place:]
        return text

    @staticmethod
    def _overlap(text: str, spellings: list[str]) -> int:
        """Length of the longest end of ``text`` that some spelling starts with."""
        for length in range(len(text), 0, -1):
            end = text[-length:]
            place = bisect_left(spellings, end)
            if place < len(spellings) and spellings[place].startswith(end):
                return length
        return 0


def texts_of(value: Any) -> Iterable[str]:
    """Every text in a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from map(str, value)
        for item in value.values():
            yield from texts_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)
