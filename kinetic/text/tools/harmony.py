"""gpt-oss: messages with a channel each. Analysis is reasoning, a recipient makes a call, all else is content.

    <|channel|>analysis<|message|>They ask for the weather.<|end|><|start|>assistant
    <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
    <|channel|>final<|message|>It is sunny.<|return|>

without the newlines. The recipient may stand before the channel: assistant to=functions.get_weather<|channel|>...
"""

from __future__ import annotations

import re

from kinetic.text.tools.reply import Call, Malformed, Syntax, Tools, checked_call
from kinetic.text.tools.values import json_object, up_to

_HEADER = re.compile(r"([\w.:/-]+)(?:<\|channel\|>(?:commentary|analysis))? ?(?:<\|constrain\|>)?(?:json)?")


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    header, place = up_to(text, place, "<|message|>", most=300)
    found = _HEADER.fullmatch(header)
    if not found:
        raise Malformed
    arguments, end = json_object(text, place)
    return [checked_call(found[1].removeprefix("functions."), arguments)], end


_BEFORE = ("<|start|>assistant", "<|channel|>commentary", "<|channel|>analysis")

SYNTAX = Syntax(
    "harmony",
    marks=("<|channel|>",),
    openings={f"{before} to=": read for before in _BEFORE},
    heads={" to=": read},
    thinks=(("<|channel|>analysis<|message|>", "<|end|>"),),
    thinks_anywhere=True,
    layout=(
        "<|start|>assistant",
        "<|channel|>commentary<|message|>",
        "<|channel|>final<|message|>",
        *("<|end|>", "<|return|>", "<|call|>"),
    ),
)
