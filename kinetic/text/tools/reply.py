"""The parts of a reply, and what a syntax of tool calls is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

NAME = re.compile(r"[\w.:/-]{1,256}", re.ASCII)
"""A tool's name: the OpenAI interface's letters, and those that namespaces are made with."""

MAX_DEPTH = 100
"""Levels of nesting in arguments; one fixed number, so that no call depends on how deep Python's stack is."""


class Malformed(Exception):
    """The text is no call, whatever follows it."""


class Incomplete(Exception):
    """The text ends too early to tell."""


@dataclass(frozen=True)
class Call:
    """``arguments`` is a JSON object; ``id`` is "" in syntaxes that have none."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True)
class Reply:
    """``content`` and ``reasoning`` are "" where there is none."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


Tools: TypeAlias = Sequence[Mapping[str, Any]]
Reader: TypeAlias = Callable[[str, int, Tools], tuple[list[Call], int]]
"""(text, place behind an opening, tools) -> (calls, place behind them). Raises Malformed or Incomplete."""


@dataclass(frozen=True)
class Syntax:
    """How the models of some templates write calls and reasoning.

    ``marks``: a template that has one of these is written for it. ``openings``: what calls begin with, and
    ``heads``: what they may begin with where no content stands before. ``thinks``: opening and closing of
    reasoning; it stands before all content unless it ``thinks_anywhere``. ``layout``: what is no content.
    """

    name: str
    marks: tuple[str, ...]
    openings: Mapping[str, Reader] = field(default_factory=dict)
    heads: Mapping[str, Reader] = field(default_factory=dict)
    thinks: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    thinks_anywhere: bool = False
    layout: tuple[str, ...] = ()


def checked_call(name: object, arguments: object, call_id: object = "") -> Call:
    """A call that can be handed on. Raises Malformed."""
    if not (isinstance(name, str) and NAME.fullmatch(name) and isinstance(arguments, dict)):
        raise Malformed
    if not isinstance(call_id, str) or _depth(arguments) > MAX_DEPTH:
        raise Malformed
    try:  # half a surrogate pair would be refused by whoever writes it down
        json.dumps([arguments, call_id], ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Malformed from None
    return Call(name, arguments, call_id)


def json_call(item: Mapping[str, Any], name: str, arguments: str, call_id: str = "id") -> Call:
    """A call from an object with these keys, the last one optional, and no others but a type."""
    if not {name, arguments} <= set(item) <= {name, arguments, call_id, "type"}:
        raise Malformed
    return checked_call(item[name], item[arguments], item.get(call_id, ""))


def _depth(value: Any) -> int:
    """Levels of nesting, found without nesting."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [below for item in level for below in (item.values() if isinstance(item, dict) else item)]
    return depth
