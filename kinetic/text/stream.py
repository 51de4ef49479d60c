"""Turning tokens into text while they arrive: whole characters only, and never a stop string.

The final text of an answer is defined once, by ``final_text``: its bytes
decoded as UTF-8, U+FFFD where they are not, cut before the stop string that is
complete first. A stream gives the same text in pieces, whatever the tokens are.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from kinetic.errors import UsageError


class Pieces(Protocol):
    """The part of a tokenizer that a stream needs."""

    def piece(self, token: int, *, special: bool = False) -> bytes: ...


class TextStream:
    """Feed tokens, show what comes back, then show what ``finish`` gives.

    ``stopped`` is the stop string that ended the text, or None. Tokens fed after it are ignored.
    """

    def __init__(self, tokenizer: Pieces, stop: Sequence[str] = ()) -> None:
        check_stops(stop)
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        """Text that may be the beginning of a stop string, so it is not shown yet."""
        self.stopped: str | None = None

    def feed(self, token: int) -> str:
        """Text that is safe to show now."""
        return self._take(self._decoder.decode(self._tokenizer.piece(token)))

    def finish(self) -> str:
        """The rest: what was held back, and U+FFFD for a character that never became whole."""
        shown = self._take(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return shown

    def _take(self, text: str) -> str:
        if self.stopped is not None or not text:
            return ""
        self._held += text
        cut, self.stopped = find_stop(self._held, self._stop)
        if self.stopped is not None:
            shown, self._held = self._held[:cut], ""
            return shown
        safe = len(self._held) - _longest_beginning(self._held, self._stop)
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown


def final_text(tokenizer: Pieces, tokens: Iterable[int], stop: Sequence[str] = ()) -> tuple[str, str | None]:
    """Text of a whole answer and the stop string that cut it, or None."""
    check_stops(stop)
    text = b"".join([tokenizer.piece(token) for token in tokens]).decode("utf-8", "replace")
    cut, stopped = find_stop(text, stop)
    return text[:cut], stopped


def find_stop(text: str, stop: Sequence[str]) -> tuple[int, str | None]:
    """(index to cut at, stop string): the one complete first, of several at once the longest; or (len(text), None).

    "Complete first" and not "starting first", so that the answer does not depend on how the text was cut into tokens.
    """
    found = [(text.find(word) + len(word), -len(word), word) for word in stop if word in text]
    if not found:
        return len(text), None
    end, _, word = min(found)
    return end - len(word), word


def check_stops(stop: Sequence[str]) -> None:
    """Refuse an empty stop string, which every text contains."""
    if any(not word for word in stop):
        raise UsageError("a stop string must not be empty", name="EMPTY_STOP_STRING")


def _longest_beginning(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that some stop string begins with."""
    longest = min(len(text), max(map(len, stop), default=1) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(word.startswith(end) for word in stop):
            return length
    return 0
