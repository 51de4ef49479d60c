"""Qwen3-Coder, Qwen 3.5, Nemotron 3: a tag for the function and one for each parameter, values as they stand.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

A value has no quotes, so its type comes from the tool's schema: a string where that allows nothing else, or where
the value is no JSON. Without a schema anything that reads as JSON is what it says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kinetic.text.tools.literals import WORDS
from kinetic.text.tools.reply import Call, Incomplete, Malformed, Syntax, Tools, checked_call
from kinetic.text.tools.values import expect, plain_json, skip_space, token, tool_name

_KEY = re.compile(r"[^<>\s]{1,256}")


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    place = expect(text, skip_space(text, place), "<function=")
    name, place = tool_name(text, place)
    place = expect(text, place, ">")
    schema = _schema(name, tools)
    arguments: dict[str, Any] = {}
    while not text.startswith("</function>", place := skip_space(text, place)):
        place = expect(text, place, "<parameter=", "</function>")
        key, place = token(_KEY, text, place)
        if key in arguments:
            raise Malformed
        value, place = _raw_value(text, expect(text, place, ">"))
        arguments[key] = _typed(value, schema.get(key))
    place = skip_space(text, place + len("</function>"))
    return [checked_call(name, arguments)], expect(text, place, "</tool_call>")


def _raw_value(text: str, place: int) -> tuple[str, int]:
    """Up to the closing tag, without the newline that the template puts on either side."""
    end = text.find("</parameter>", place)
    if end < 0:
        raise Incomplete
    return text[place:end].removeprefix("\n").removesuffix("\n"), end + len("</parameter>")


def _schema(name: str, tools: Tools) -> Mapping[str, Any]:
    """Parameter -> JSON Schema, empty where the tool isn't known."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return properties if isinstance(properties, Mapping) else {}
    return {}


def _typed(value: str, schema: object) -> Any:
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    if kinds in ("string", ["string"]):
        return value
    if value.strip() in WORDS:  # templates write Python's words
        return WORDS[value.strip()]
    try:
        return plain_json(value)
    except ValueError:
        return value


SYNTAX = Syntax("qwen_xml", marks=("<function=",), openings={"<tool_call>": read})
