"""Mistral: a JSON list (Nemo), or a name and a JSON object for each call (Small 3.2, Devstral).

[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call00001"}]
[TOOL_CALLS]get_weather[CALL_ID]call00001[ARGS]{"city": "Paris"}
"""

from __future__ import annotations

import re

from kinetic.text.tools.reply import Call, Syntax, Tools, checked_call, json_call
from kinetic.text.tools.values import expect, json_object, json_objects, skip_space, token, tool_name

_ID = re.compile(r"[A-Za-z0-9]{1,64}")


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    place = skip_space(text, place)
    if text.startswith("[", place):
        items, end = json_objects(text, place)
        return [json_call(item, "name", "arguments") for item in items], end
    name, place = tool_name(text, place)
    call_id = ""
    if text.startswith("[CALL_ID]", place):
        call_id, place = token(_ID, text, place + len("[CALL_ID]"))
        place = expect(text, place, "[ARGS]")
    else:
        place = expect(text, place, "[ARGS]", "[CALL_ID]")
    arguments, end = json_object(text, place)
    return [checked_call(name, arguments, call_id)], end


SYNTAX = Syntax(
    "mistral",
    marks=("[TOOL_CALLS]",),
    openings={"[TOOL_CALLS]": read},
    thinks=(("[THINK]", "[/THINK]"), ("<think>", "</think>")),
)
