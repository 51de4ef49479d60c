"""LFM2 and LFM2.5: a list of calls as Python writes them.

<|tool_call_start|>[get_weather(city="Paris", days=3)]<|tool_call_end|>
"""

from __future__ import annotations

from kinetic.text.tools.literals import PYTHON
from kinetic.text.tools.reply import Call, Syntax, Tools, checked_call
from kinetic.text.tools.values import expect, skip_space, tool_name


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    place = skip_space(text, expect(text, skip_space(text, place), "["))
    calls: list[Call] = []
    while not calls or not text.startswith("]", place):
        place = skip_space(text, expect(text, place, ",", "]")) if calls else place
        name, place = tool_name(text, place)
        arguments, place = PYTHON.members(text, expect(text, place, "("), "=", ")")
        calls.append(checked_call(name, arguments))
        place = skip_space(text, place)
    return calls, expect(text, skip_space(text, place + len("]")), "<|tool_call_end|>")


SYNTAX = Syntax("lfm2", marks=("List of tools: ",), openings={"<|tool_call_start|>": read})
