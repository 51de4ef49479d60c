"""Granite 3: a JSON list; reasoning and response between tags.

<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]
<think>They greet me.</think><response>Hello!</response>
"""

from __future__ import annotations

from kinetic.text.tools.reply import Call, Syntax, Tools, json_call
from kinetic.text.tools.values import json_objects


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    items, end = json_objects(text, place)
    return [json_call(item, "name", "arguments") for item in items], end


SYNTAX = Syntax(
    "granite", marks=("<|tool_call|>",), openings={"<|tool_call|>": read}, layout=("<response>", "</response>")
)
