"""Command R7B: thinking, actions and the response between control tokens, actions as a JSON list.

<|START_THINKING|>I look it up.<|END_THINKING|><|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
]<|END_ACTION|>
<|START_RESPONSE|>It is sunny.<|END_RESPONSE|>
"""

from __future__ import annotations

from kinetic.text.tools.reply import Call, Syntax, Tools, json_call
from kinetic.text.tools.values import expect_behind_space, json_objects


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    items, place = json_objects(text, place)
    calls = [json_call(item, "tool_name", "parameters", "tool_call_id") for item in items]
    return calls, expect_behind_space(text, place, "<|END_ACTION|>")


SYNTAX = Syntax(
    "command_r",
    marks=("<|START_ACTION|>",),
    openings={"<|START_ACTION|>": read},
    thinks=(("<|START_THINKING|>", "<|END_THINKING|>"),),
    thinks_anywhere=True,
    layout=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
