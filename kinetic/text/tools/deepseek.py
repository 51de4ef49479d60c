"""DeepSeek: R1 and its distillates with a type and a JSON code block, V3.1 with bare JSON.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

and get_weather<｜tool▁sep｜>{"city": "Paris"} between the same marks. The last mark may be missing: of a single call,
a template of R1 leaves it out.
"""

from __future__ import annotations

from kinetic.text.tools.reply import Call, Syntax, Tools, checked_call
from kinetic.text.tools.values import expect, expect_behind_space, json_object, skip_space, tool_name

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def read_first(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    return read(text, expect_behind_space(text, place, CALL_BEGIN), tools)


def read(text: str, place: int, tools: Tools) -> tuple[list[Call], int]:
    name, place = tool_name(text, place)
    place = skip_space(text, expect(text, place, SEPARATOR))
    if name == "function" and not text.startswith("{", place):
        name, place = tool_name(text, place)
        arguments, place = json_object(text, expect_behind_space(text, place, "```json"))
        place = expect_behind_space(text, place, "```")
    else:
        arguments, place = json_object(text, place)
    return [checked_call(name, arguments)], expect_behind_space(text, place, CALL_END)


SYNTAX = Syntax("deepseek", marks=(BEGIN,), openings={BEGIN: read_first, CALL_BEGIN: read}, layout=(END,))
