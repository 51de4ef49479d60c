"""Hermes, Qwen 2.5 and 3, QwQ, Granite 4: a JSON object between tags.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from __future__ import annotations

from kinetic.text.tools.reply import Call, Syntax, Tools, json_call
from kinetic.text.tools.values import expect_behind_space, json_object


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    item, place = json_object(text, place)
    end = expect_behind_space(text, place, "</tool_call>")
    return [json_call(item, "name", "arguments")], end


SYNTAX = Syntax("hermes", marks=("<tool_call>",), openings={"<tool_call>": read})
