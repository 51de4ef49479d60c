r"""Regular expressions in tensor names: the part of ECMAScript's that has one meaning, in bounded work.

    anyOf    = sequence *("|" sequence)
    sequence = *(("^" / "$" / "\b" / "\B" / "(?!" anyOf ")") / (atom [times]))
    times    = ("*" / "+" / "?" / "{" N "}" / "{" N ",}" / "{" N "," N "}") ["?"]
    atom     = "." / "(" anyOf ")" / "(?:" anyOf ")" / "[" ["^"] 1*(char / char "-" char / class) "]" / class / char
    class    = "\d" / "\D" / "\w" / "\W" / "\s" / "\S"
    char     = any ASCII character that has no other use, or "\" and one of "tnrfv" or one that is no letter or digit

(?= ) is missing, since what is read is NAME=TYPE up to the first =.
A name is searched as bytes. What is asked is only whether a pattern occurs: so each part takes the set of places where
it may begin, and gives the set of those where it may end. Nothing is tried twice, and no pattern takes forever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from kinetic.errors import LimitExceeded, UsageError

MOST_STEPS: Final = 20_000
"""Parts of a pattern that are looked for in one name, repetitions counted."""
DEEPEST: Final = 20
"""Groups in groups."""

_TIMES: Final = re.compile(r"(?:[*+?]|\{([0-9]{1,4})(?:(,)([0-9]{0,4}))?\})\??")
_DIGITS: Final = frozenset(b"0123456789")
_WORD: Final = _DIGITS | frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE: Final = frozenset(b" \t\n\v\f\r")
_ALL: Final = frozenset(range(256))
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE, "D": _ALL - _DIGITS, "W": _ALL - _WORD, "S": _ALL - _SPACE}
_CONTROLS: Final = dict(zip("tnrfv", "\t\n\r\f\v", strict=True))


class _Name:
    """A name that is searched. Places are bits: bit i is before byte i."""

    def __init__(self, name: str) -> None:
        self.bytes = name.encode("utf-8", "surrogateescape")
        self.end = 1 << len(self.bytes)
        self.steps = 0
        is_word = [False, *(byte in _WORD for byte in self.bytes), False]
        self.edges = sum(1 << i for i in range(len(self.bytes) + 1) if is_word[i] != is_word[i + 1])

    def holding(self, values: frozenset[int]) -> int:
        """Places before one of these bytes."""
        return sum(1 << i for i, byte in enumerate(self.bytes) if byte in values)

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise LimitExceeded("", name="PATTERN_WORK")


Part = Callable[[_Name, int], int]
"""Places where it may begin -> where it may end then."""


class Pattern:
    """``search(name)`` says whether it occurs. Raises UsageError for what is not in the grammar above."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._part = _Parser(text).whole()

    def search(self, name: str) -> bool:
        """Raises LimitExceeded."""
        searched = _Name(name)
        try:
            return self._part(searched, 2 * searched.end - 1) != 0
        except LimitExceeded as error:
            problem = f"the pattern {self.text!r} takes more than {MOST_STEPS} steps in the tensor name {name!r}"
            raise LimitExceeded(f"{problem}: write it with fewer repetitions", name=error.name) from None


# -- parts


def _one_of(values: frozenset[int]) -> Part:
    def part(name: _Name, at: int) -> int:
        name.step()
        return (at & name.holding(values)) << 1

    return part


def _sequence(parts: list[Part]) -> Part:
    def part(name: _Name, at: int) -> int:
        name.step()
        for one in parts:
            at = one(name, at)
        return at

    return part


def _any_of(parts: list[Part]) -> Part:
    def part(name: _Name, at: int) -> int:
        found = 0
        for one in parts:
            found |= one(name, at)
        return found

    return part


def _repeated(one: Part, least: int, most: int | None) -> Part:
    def part(name: _Name, at: int) -> int:
        for _ in range(least):
            name.step()
            at = one(name, at)
        found, new, left = at, at, most - least if most is not None else -1
        while new and left:
            name.step()
            new = one(name, new) & ~found
            found, left = found | new, left - 1
        return found

    return part


def _not_ahead(one: Part) -> Part:
    """Takes nothing; each place is looked at by itself."""

    def part(name: _Name, at: int) -> int:
        return sum(1 << i for i in range(at.bit_length()) if at >> i & 1 and not one(name, 1 << i))

    return part


_ASSERTIONS: Final[dict[str, Part]] = {
    "^": lambda _, at: at & 1,
    "$": lambda name, at: at & name.end,
    r"\b": lambda name, at: at & name.edges,
    r"\B": lambda name, at: at & ~name.edges,
}


# -- from text


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def whole(self) -> Part:
        if not self.text.isascii():
            raise self.bad("it has characters that are not ASCII")
        part = self.any_of()
        if self.at < len(self.text):
            raise self.bad("a ) without its (")
        return part

    def bad(self, problem: str) -> UsageError:
        said = f"{self.text!r} is no regular expression that is taken here (character {self.at + 1})"
        return UsageError(f"{said}: {problem}", name="BAD_PATTERN")

    def skip(self, word: str) -> bool:
        """Whether it stands here; then what follows is next."""
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        return True

    def any_of(self) -> Part:
        parts = [self.sequence()]
        while self.skip("|"):
            parts.append(self.sequence())
        return _any_of(parts)

    def sequence(self) -> Part:
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            found = next((part for word, part in _ASSERTIONS.items() if self.skip(word)), None)
            if found is None:
                found = _not_ahead(self.group()) if self.skip("(?!") else self.repeated(self.atom())
            parts.append(found)
        return _sequence(parts)

    def group(self) -> Part:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.bad(f"more than {DEEPEST} groups in each other")
        part = self.any_of()
        if not self.skip(")"):
            raise self.bad("a ( without its )")
        self.depth -= 1
        return part

    def repeated(self, part: Part) -> Part:
        found = _TIMES.match(self.text, self.at)
        if found is None:
            return part
        self.at = found.end()
        if _TIMES.match(self.text, self.at):
            raise self.bad("a repetition of a repetition: put the first into ( )")
        if found[1] is None:
            return _repeated(part, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[found[0][0]])
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if most is not None and most < least:
            raise self.bad("more repetitions at least than at most")
        return _repeated(part, least, most)

    def atom(self) -> Part:
        if self.skip("(?:"):
            return self.group()
        if self.skip("(?"):
            raise self.bad("after (? may stand : or !")
        if self.skip("("):
            return self.group()
        if self.skip("["):
            return _one_of(self.bracket())
        if self.skip("."):
            return _one_of(_ALL - frozenset(b"\n\r"))
        if self.text[self.at] in "*+?{":
            raise self.bad(f"{self.text[self.at]} stands where there is nothing to repeat, or needs a \\ before it")
        return _one_of(self.value())

    def value(self) -> frozenset[int]:
        """A character, or a class of them."""
        if not self.skip("\\"):
            self.at += 1
            return frozenset(self.text[self.at - 1].encode())
        character = self.text[self.at : self.at + 1]
        if character in _CLASSES:
            self.at += 1
            return _CLASSES[character]
        if not character or (character.isalnum() and character not in _CONTROLS):
            raise self.bad(f"\\{character} has no meaning here")
        self.at += 1
        return frozenset(_CONTROLS.get(character, character).encode())

    def bracket(self) -> frozenset[int]:
        """After the [."""
        is_negated, begin = self.skip("^"), self.at
        found: frozenset[int] = frozenset()
        while not self.skip("]"):
            if self.at == len(self.text):
                self.at = begin
                raise self.bad("a [ without its ]")
            found |= self.item(self.at == begin)
        if self.at == begin + 1:
            raise self.bad("programs differ on what [] and [^] are: write \\] for a ] in it")
        return _ALL - found if is_negated else found

    def item(self, is_first: bool) -> frozenset[int]:
        """One value, or a range of them."""
        if self.text[self.at] == "[":
            raise self.bad("programs differ on a [ inside [ ], as of [:digit:]: write 0-9, or \\[ for the character")
        if self.text[self.at] == "-" and not is_first and self.text[self.at + 1 : self.at + 2] != "]":
            raise self.bad("programs differ on a - inside [ ]: write \\-, or put it first or last")
        low = self.value()
        if self.text[self.at : self.at + 1] != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.at += 1
        if self.text[self.at] in "[-":
            raise self.bad(f"programs differ on a {self.text[self.at]} that ends a range inside [ ]")
        return self.range(low, self.value())

    def range(self, low: frozenset[int], high: frozenset[int]) -> frozenset[int]:
        if len(low) != 1 or len(high) != 1 or min(low) > min(high):
            raise self.bad("a range goes from one character to one that is not before it")
        return frozenset(range(min(low), min(high) + 1))


def first(patterns: Iterable[tuple[Pattern, str]], name: str) -> str:
    """What goes with the first pattern that occurs in a name; "" if none does."""
    return next((found for pattern, found in patterns if pattern.search(name)), "")
