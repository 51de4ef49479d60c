"""Replies taken apart: every syntax, what is no call, and answers still being written."""

import re

import pytest

from kinetic.text.tools import Call, Reply, read_reply, syntax_of

DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
BEGIN, CALL, SEP, CALL_END, END = DEEPSEEK
FENCED = '```json\n{"city": "Oslo"}\n```'

TEMPLATES = {
    "hermes": "<tool_call> <think> </think>",
    "qwen_xml": "<tool_call> <function= </think>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS] [THINK]",
    "deepseek": BEGIN + "</think>",
    "granite": "<|tool_call|> <think>",
    "command_r": "<|START_ACTION|> <|START_THINKING|>",
    "harmony": "<|channel|>analysis<|message|>",
    "gemma4": "<|tool_call> <|channel>thought",
    "lfm2": "List of tools: [ </think>",
    "plain": "<think>",
}
"""A few words of a template by which each syntax is found."""

WEATHER = Call("weather", {"city": "Oslo"})

CALLS = {
    "hermes": [
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>', WEATHER),
        ('<tool_call>{"arguments":{"a":[1,2.5,-3e2,true,null,"</tool_call>"]},"name":"f.g-h"}</tool_call>',
         Call("f.g-h", {"a": [1, 2.5, -300.0, True, None, "</tool_call>"]})),
    ],
    "qwen_xml": [
        ("<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>", WEATHER),
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>", Call("f", {})),
        ("<tool_call><function=f><parameter=a>\n\n x\ny \n</parameter><parameter=b>[1]</parameter><parameter=c>\nTrue\n"
         "</parameter></function></tool_call>", Call("f", {"a": "\n x\ny ", "b": [1], "c": True})),
    ],
    "llama3": [
        ('{"name": "weather", "parameters": {"city": "Oslo"}}', WEATHER),
        ('\n {"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}', WEATHER),
        ('<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}', WEATHER),
        ('<|python_tag|>weather.call(city="Oslo")', WEATHER),
        (r'<|python_tag|>f.call(a="x\"\n\u00e9", b=[1, {"k": None}], c=-1.5e3)',
         Call("f", {"a": 'x"\né', "b": [1, {"k": None}], "c": -1500.0})),
    ],
    "mistral": [
        ('[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', WEATHER),
        ('[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Oslo"}', Call("weather", {"city": "Oslo"}, "abcdefghi")),
        ('[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}, "id": "abcdefghi"}]',
         Call("weather", {"city": "Oslo"}, "abcdefghi")),
    ],
    "deepseek": [
        (f'{BEGIN}{CALL}weather{SEP}{{"city": "Oslo"}}{CALL_END}{END}', WEATHER),
        (f"{BEGIN}{CALL}function{SEP}weather\n{FENCED}{CALL_END}{END}", WEATHER),
        (f'{BEGIN}{CALL}function{SEP}{{"city": "Oslo"}}{CALL_END}\n{END}', Call("function", {"city": "Oslo"})),
    ],
    "granite": [('<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]', WEATHER)],
    "command_r": [
        ('<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}\n]'
         "<|END_ACTION|>", Call("weather", {"city": "Oslo"}, "0")),
    ],
    "harmony": [
        (' to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>', WEATHER),
        ('<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}', WEATHER),
        ('<|start|>assistant to=weather<|channel|>analysis<|message|>{"city": "Oslo"}<|end|>', WEATHER),
    ],
    "gemma4": [
        ('<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>', WEATHER),
        ('<|tool_call>call:f{a:[1,{b-c:<|"|>}],"\\<|"|>}],d:true,<|"|>e f<|"|>:None}<tool_call|>',
         Call("f", {"a": [1, {"b-c": '}],"\\'}], "d": True, "e f": None})),
    ],
    "lfm2": [
        ('<|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>', WEATHER),
        ("<|tool_call_start|>[ f(a='it\\'s', b = {\"k\": [1, -2.0]}, c=False) ]<|tool_call_end|>",
         Call("f", {"a": "it's", "b": {"k": [1, -2.0]}, "c": False})),
    ],
}  # fmt: skip
"""Syntax -> texts that are one call each."""

NO_CALLS = {
    "hermes": [
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}',
        '<tool_call>{"name": "weather", "arguments": "Oslo"}</tool_call>',
        '<tool_call>{"name": "weather"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "two words", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "more": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 101 + "]" * 101 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 99999 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * 5000 + "}}</tool_call>",
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>',
        "<tool_call></tool_call>",
    ],
    "qwen_xml": [
        "<tool_call><function=f><parameter=a>1</parameter></function>",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        "<tool_call><function=f><parameter=a>1</function></tool_call>",
        "<tool_call><function=>\n</function></tool_call>",
        "<tool_call><function=f>words</function></tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    ],
    "llama3": [
        '{"name": "f", "arguments": {}}',
        '{"name": "f", "parameters": {}',
        'Like this: {"name": "f", "parameters": {}}',
        "<|python_tag|>print(1)",
        "<|python_tag|>f.call(1)",
        '<|python_tag|>f.call(a="x", a="y")',
        '<|python_tag|>f.call(a=os.environ)',
        r'<|python_tag|>f.call(a="\q")',
    ],
    "mistral": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS][1]",
        "[TOOL_CALLS]f{}",
        "[TOOL_CALLS]f[CALL_ID][ARGS]{}",
    ],
    "deepseek": [
        BEGIN,
        f"{BEGIN}{CALL}f{SEP}{{}}",
        f"{BEGIN}f{SEP}{{}}{CALL_END}",
        f"{BEGIN}{CALL}f{{}}{CALL_END}",
        f"{BEGIN}{CALL}function{SEP}f\n{{}}{CALL_END}",
    ],
    "granite": ["<|tool_call|>[]", '<|tool_call|>{"name": "f", "arguments": {}}', "<|tool_call|>["],
    "command_r": ['<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]', "<|START_ACTION|>"],
    "harmony": [" to=functions.f", " to=functions.f words<|message|>{}", " to=functions.f json<|message|>x"],
    "gemma4": [
        "<|tool_call>call:f{a:1}",
        '<|tool_call>call:f{a:"x"}<tool_call|>',
        "<|tool_call>call:f{a:1,a:2}<tool_call|>",
        "<|tool_call>call:f{a:01}<tool_call|>",
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>call:f{a:" + "[" * 9999 + "]" * 9999 + "}<tool_call|>",
    ],
    "lfm2": [
        "<|tool_call_start|>[]<|tool_call_end|>",
        "<|tool_call_start|>[f()]",
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=g())]<|tool_call_end|>",
        "<|tool_call_start|>f()<|tool_call_end|>",
        "<|tool_call_start|>[f(a='x\\ud800')]<|tool_call_end|>",
    ],
}  # fmt: skip
"""Syntax -> texts that only look like a call."""

GOOD = [(name, text, call) for name, cases in CALLS.items() for text, call in cases]
BAD = [(name, text) for name, texts in NO_CALLS.items() for text in texts]


def read(name, text, **options):
    syntax = syntax_of(TEMPLATES[name])
    assert syntax.name == name
    return read_reply(text, syntax, **options)


@pytest.mark.parametrize(("name", "text", "call"), GOOD)
def test_calls(name, text, call):
    assert read(name, text) == Reply("", "", (call,))


@pytest.mark.parametrize(("name", "text", "call"), [case for case in GOOD if case[0] not in ("llama3", "harmony")])
def test_calls_after_content_and_one_another(name, text, call):
    assert read(name, f"I look. \n{text}\n{text}") == Reply("I look.", "", (call, call))
    assert read(name, f"{text}\n\nSo.") == Reply("So.", "", (call,))


@pytest.mark.parametrize(("name", "text"), BAD)
def test_what_is_no_call_is_content(name, text):
    assert read(name, text) == Reply(text, "", ())
    assert read(name, f"Look: {text} ") == Reply(f"Look: {text} ", "", ())


def test_several_calls_in_one_block():
    calls = (WEATHER, Call("f", {}))
    two = '[{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "f", "arguments": {}}]'
    assert read("granite", f"<|tool_call|>{two}").calls == calls
    assert read("mistral", f"[TOOL_CALLS]{two}").calls == calls
    assert read("lfm2", '<|tool_call_start|>[weather(city="Oslo"), f()]<|tool_call_end|>').calls == calls
    text = f'{BEGIN}{CALL}weather{SEP}{{"city": "Oslo"}}{CALL_END}\n{CALL}f{SEP}{{}}{CALL_END}{END}'
    assert read("deepseek", text).calls == calls
    both = '{"name": "weather", "parameters": {"city": "Oslo"}}\n{"name": "f", "parameters": {}}'
    assert read("llama3", both).calls == calls


def test_a_call_within_what_is_none():
    good = CALLS["hermes"][0][0]
    assert read("hermes", f"<tool_call>{good}") == Reply("<tool_call>", "", (WEATHER,))


@pytest.mark.parametrize(
    ("name", "text", "content", "reasoning"),
    [
        ("plain", "Hello! \n", "Hello! \n", ""),
        ("plain", "\n Hello", "\n Hello", ""),
        ("plain", "<think>\nhm\n</think>\n\nYes.\n", "Yes.\n", "hm"),
        ("plain", "<think></think>Yes.", "Yes.", ""),
        ("plain", "<think>hm", "", "hm"),
        ("plain", "Write <think>x</think>.", "Write <think>x</think>.", ""),
        ("llama3", "<think>x</think>y", "<think>x</think>y", ""),
        ("mistral", "[THINK]hm[/THINK]Yes.", "Yes.", "hm"),
        ("granite", "<think>hm</think><response>Yes.</response>", "Yes.", "hm"),
        ("command_r", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Yes.", "hm"),
        ("gemma4", "<|channel>thought\nhm\n<channel|>Yes.", "Yes.", "hm"),
        ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
         "<|return|>", "Yes.", "hm"),
        ("harmony", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>hm",
         "I look.", "hm"),
    ],
)  # fmt: skip
def test_reasoning(name, text, content, reasoning):
    assert read(name, text) == Reply(content, reasoning, ())


def test_reasoning_that_the_prompt_began():
    prompt = "<|im_start|>assistant\n<think>\n"
    assert read("plain", "hm\n</think>\n\nYes.", prompt=prompt) == Reply("Yes.", "hm", ())
    assert read("plain", "hm", prompt=prompt) == Reply("", "hm", ())
    assert read("plain", "hm", prompt=prompt + "\n</think>\n\n") == Reply("hm", "", ())
    call = CALLS["hermes"][0][0]
    assert read("hermes", f"use {call}</think>{call}", prompt=prompt) == Reply("", f"use {call}", (WEATHER,))


def test_types_come_from_the_tools():
    kinds = {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": ["string", "null"]}, "d": {}, "e": 1}
    function = {"name": "f", "parameters": {"properties": kinds}}
    values = {"a": "12", "b": "12", "c": "null", "d": "[1]", "e": "x", "g": '"q"'}
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    text = f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"
    expected = {"a": "12", "b": 12, "c": None, "d": [1], "e": "x", "g": "q"}
    for tool in (function, {"type": "function", "function": function}):
        assert read("qwen_xml", text, tools=[tool]).calls == (Call("f", expected),)
    for odd in ({}, {"function": 1}, {"name": "f", "parameters": []}, {"name": "f", "parameters": {"properties": 1}}):
        assert read("qwen_xml", text, tools=[odd]).calls == (Call("f", {**expected, "a": 12}),)


ROUND = [("", ""), ("I look. \n", " So.")]
HERMES = [text for text, _ in CALLS["hermes"]]
STREAMED = [
    *((name, f"{before}{text}{after}") for name, text, _ in GOOD for before, after in ROUND),
    *((name, f"{text}\n<think>hm</think> {text}x") for name, text in BAD if len(text) < 300),
    ("hermes", f"<think>\nhm <tool_call> \n</think>\n\nI <b> <tool {HERMES[0]}\n\n{HERMES[1]} <tool_"),
    ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
     "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
     '{"a": "<|call|>"}<|call|>'),
    ("gemma4", "<|channel>thought\nhm\n<channel|>a<|channel>thought\nhm<channel|>" + CALLS["gemma4"][1][0] + "b"),
    ("llama3", ' {"name": "f", "parameters": {"a": 1.5e3, "b": -12, "c": "\\u00e9\\n"}} to'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), STREAMED)
def test_what_was_told_stays(name, text):
    """Beginnings of a text: content, reasoning and calls of each continue those of the one before."""
    whole = read(name, text)
    before = Reply("", "", ())
    for end in range(len(text) + 1):
        now = read(name, text[:end], finished=False)
        assert now.content.startswith(before.content) and now.reasoning.startswith(before.reasoning), end
        assert now.calls[: len(before.calls)] == before.calls, end
        before = now
    assert whole.content.startswith(before.content) and whole.reasoning.startswith(before.reasoning)
    assert whole.calls[: len(before.calls)] == before.calls


def test_certain_text_is_not_held_back():
    assert read("hermes", "Hello there", finished=False).content == "Hello there"
    assert read("hermes", "Hello <tool", finished=False).content == "Hello"
    assert read("hermes", "Hello <b>", finished=False).content == "Hello <b>"
    assert read("plain", "<think>hm </thi", finished=False).reasoning == "hm"
    call = CALLS["hermes"][0][0]
    assert read("hermes", f"{call}\n<tool_call>", finished=False).calls == (WEATHER,)


def test_every_syntax_has_cases():
    from kinetic.text.tools import SYNTAXES

    assert {syntax.name for syntax in SYNTAXES} == set(CALLS) == set(NO_CALLS)


def test_long_texts_take_no_time():
    """A reply is read once for every token of it, and by its length only."""
    for name, template in TEMPLATES.items():
        for mark in re.findall(r"\S+", template):
            assert read(name, mark * 5000).calls == ()
