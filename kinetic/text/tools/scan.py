"""Going through a reply from left to right: text, reasoning, calls.

White space beside a block (reasoning, calls, layout) is layout too; pieces of
content with blocks between them are joined by a newline. An opening with no
call behind it is content like any other text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kinetic.text.tools.reply import Call, Incomplete, Malformed, Reader, Reply, Syntax, Tools

_BLANK = re.compile(r"\s*")


class Scan:
    """One reading of one text. ``finished``: nothing follows, so what is incomplete is text."""

    def __init__(self, text: str, syntax: Syntax, tools: Tools, finished: bool) -> None:
        self._text, self._syntax, self._tools, self._finished = text, syntax, tools, finished
        self._closings = dict(syntax.thinks)
        self._marks = sorted({*syntax.openings, *self._closings, *syntax.layout}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._marks)) or "(?!)")
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[Call] = []

    def reply(self, prompt: str) -> Reply:
        begin = 0
        for opening, closing in self._closings.items():
            if begin == 0 and prompt.rstrip().endswith(opening):
                begin = self._reason(0, closing)
        self._walk(begin)
        return Reply("\n".join(self._content), "\n".join(self._reasoning), tuple(self._calls))

    def _walk(self, begin: int) -> None:
        """``begin``: where the piece of text in hand begins; ``place``: up to where no block begins in it."""
        place = begin
        while True:
            start, mark, reader = self._next(begin, place)
            if not mark:
                return self._keep(begin, start, before_block=not self._finished)
            try:
                begin = place = self._block(begin, start, mark, reader)
            except Incomplete:
                return self._keep(begin, start, before_block=True)
            except Malformed:
                place = start + len(mark)

    def _next(self, begin: int, place: int) -> tuple[int, str, Reader | None]:
        """The next opening: where it starts, itself, and what reads the calls behind it, if it begins any.

        "" if there is none, with the end of the text, or of what is certain while the text goes on.
        """
        if (head := self._head(begin, place)) is not None:
            return head
        found = self._pattern.search(self._text, place)
        start = found.start() if found else len(self._text)
        certain = start if self._finished else _without_beginning(self._text, place, self._marks)
        if found is None or certain < start or (certain == start and not self._finished):
            return min(certain, start), "", None
        return start, found[0], self._syntax.openings.get(found[0])

    def _head(self, begin: int, place: int) -> tuple[int, str, Reader | None] | None:
        """As ``_next``, of what calls begin with where nothing but white space and blocks stands before."""
        text = self._text
        blank = _BLANK.match(text, begin) if self._syntax.heads and not self._content else None
        first = blank.end() if blank else -1
        if place > first:
            return None
        for head, reader in self._syntax.heads.items():
            for start in (begin, first):
                if text.startswith(head, start):
                    return start, head, reader
                if not self._finished and head.startswith(text[start:]):
                    return begin, "", None
        return None

    def _block(self, begin: int, start: int, mark: str, reader: Reader | None) -> int:
        """Take in what an opening begins, and the text before it. The place behind it.

        Raises Malformed if it begins nothing, and Incomplete if that can't be told.
        """
        end = start + len(mark)
        if reader is not None:
            try:
                calls, end = reader(self._text, end, self._tools)
            except Incomplete:
                raise (Malformed if self._finished else Incomplete) from None
            self._calls += calls
        elif mark in self._closings:
            if not self._syntax.thinks_anywhere and (self._content or self._text[begin:start].strip()):
                raise Malformed
            end = self._reason(end, self._closings[mark])
        self._keep(begin, start, before_block=True)
        return end

    def _reason(self, start: int, closing: str) -> int:
        """Take in reasoning from ``start`` to its closing, or to the end. The place behind it."""
        text = self._text
        end = text.find(closing, start)
        behind = end + len(closing)
        if end < 0:
            behind = len(text)
            end = behind if self._finished else _without_beginning(text, start, [closing])
        if reasoning := text[start:end].strip():
            self._reasoning.append(reasoning)
        return behind

    def _keep(self, begin: int, end: int, before_block: bool) -> None:
        """A piece of content, without the white space beside blocks."""
        piece = self._text[begin:end]
        piece = piece.lstrip() if begin > 0 else piece
        piece = piece.rstrip() if before_block else piece
        if piece:
            self._content.append(piece)


def _without_beginning(text: str, begin: int, marks: Iterable[str]) -> int:
    """Where ``text[begin:]`` ends if it must not end in a proper beginning of a mark."""
    marks = list(marks)
    longest = max(map(len, marks), default=1) - 1
    for end in range(max(begin, len(text) - longest), len(text)):
        rest = text[end:]
        if any(mark.startswith(rest) and mark != rest for mark in marks):
            return end
    return len(text)
