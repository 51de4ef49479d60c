"""Gemma 4: literals of its own, strings between <|"|>; reasoning in the channel "thought".

<|channel>thought
They ask for the weather.
<channel|><|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
"""

from __future__ import annotations

import re

from kinetic.text.tools.literals import Literals
from kinetic.text.tools.reply import Call, Incomplete, Syntax, Tools, checked_call
from kinetic.text.tools.values import expect, tool_name

QUOTE = '<|"|>'


def _string(text: str, place: int) -> tuple[str, int]:
    """Up to the next quote: there are no escapes."""
    end = text.find(QUOTE, place)
    if end < 0:
        raise Incomplete
    return text[place:end], end + len(QUOTE)


LITERALS = Literals({QUOTE: _string}, name=re.compile(r"[^\s:,{}\[\]<>]{1,256}"))


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    name, place = tool_name(text, expect(text, place, "call:"))
    arguments, place = LITERALS.members(text, expect(text, place, "{"), ":", "}")
    return [checked_call(name, arguments)], expect(text, place, "<tool_call|>")


SYNTAX = Syntax(
    "gemma4",
    marks=("<|tool_call>",),
    openings={"<|tool_call>": read},
    thinks=(("<|channel>thought", "<channel|>"),),
    thinks_anywhere=True,
    layout=("<|tool_response>",),
)
