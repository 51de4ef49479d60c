"""Llama 3.1 to 3.3: a bare JSON object that the answer begins with, or the call of a built-in tool.

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>brave_search.call(query="weather in Paris")

Code behind <|python_tag|> that is no such call stays content.
"""

from __future__ import annotations

from kinetic.text.tools.literals import PYTHON
from kinetic.text.tools.reply import Call, Malformed, Syntax, Tools, checked_call, json_call
from kinetic.text.tools.values import json_object, skip_space, up_to


def read_object(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    item, end = json_object(text, place - len("{"))
    return [json_call(item, "name", "parameters")], end


def read_tagged(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    place = skip_space(text, place)
    if text.startswith("{", place):
        return read_object(text, place + len("{"), tools)
    name, place = up_to(text, place, "(", most=256)
    if not name.endswith(".call"):
        raise Malformed
    arguments, end = PYTHON.members(text, place, "=", ")")
    return [checked_call(name.removesuffix(".call"), arguments)], end


SYNTAX = Syntax("llama3", marks=("<|python_tag|>",), openings={"<|python_tag|>": read_tagged}, heads={"{": read_object})
