"""Conditions under which a question is asked again, and the comparison with the answer it gets alone.

An engine that is compared is an ``Engine``: it gives the tokens of answers, greedy, for each condition that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

Tokens = list[int]

ALONE = "alone"
"""The condition that others are compared with."""

CONDITIONS = {
    "again": "alone once more",
    "neighbour": "with 1 neighbour",
    "neighbours": "with 3 neighbours",
    "prefix": "with a cached prefix",
    "chunks": "prompt in pieces of 16",
    "thread": "1 thread instead of 2",
    "attention": "flash attention off",
    "isa": "other instruction set",
}

GROUPS = {"neighbour": 2, "neighbours": 4}
"""Questions asked at the same time."""

PIECE, THREADS, SLOTS = 16, 2, 4
"""Rows of a pass under "chunks"; threads of all conditions but "thread"; answers that an engine works on at once."""

News = Callable[[str], None]
Told = Callable[[int], None]
"""Told of answers as they come."""


class Question(NamedTuple):
    """What is asked: token ids, and those of a related question that is asked first under "prefix"."""

    prompt: Tokens
    related: Tokens


class Engine(Protocol):
    name: str

    def conditions(self) -> Mapping[str, str]:
        """Those that the engine has besides ``ALONE``, in order, and its settings under each, in words."""

    def ask(self, condition: str, questions: Sequence[Question], count: int, told: Told) -> list[Tokens]:
        """The answers, ``count`` tokens each. Raises KineticError."""


class Row(NamedTuple):
    """One condition on one engine."""

    condition: str
    settings: str
    answers: int
    first: dict[int, int]
    """Of each answer that changed, by its number: the first token that is another, both counted from 0."""


def measure(engine: Engine, questions: Sequence[Question], count: int, told: Told, news: News) -> list[Row]:
    """All conditions of an engine, against the answers that it gives alone."""
    news(f"{engine.name}: {ALONE}")
    alone = engine.ask(ALONE, questions, count, told)
    rows = []
    for condition, settings in engine.conditions().items():
        news(f"{engine.name}: {CONDITIONS[condition]}")
        found = engine.ask(condition, questions, count, told)
        pairs = enumerate(zip(alone, found, strict=True))
        first = {number: first_difference(one, other) for number, (one, other) in pairs if one != other}
        rows.append(Row(condition, settings, len(found), first))
    return rows


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first place where two answers that differ do; the shorter one's end is such a place."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def grouped(questions: Sequence[Question], size: int) -> list[Sequence[Question]]:
    """Groups of ``size`` to be asked at once; what is left over is made up with the first ones, whose answers
    in that group are then not counted."""
    short = -len(questions) % size
    padded = [*questions, *(questions[i % len(questions)] for i in range(short))]
    return [padded[i : i + size] for i in range(0, len(padded), size)]
