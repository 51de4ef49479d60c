"""Tool calls there and back: what the golden templates write for an assistant's calls is read as those calls."""

import json
import re
from os.path import commonprefix

import pytest

from kinetic.errors import TemplateError
from kinetic.text.template import ChatTemplate
from kinetic.text.tools import Call, read_reply, syntax_of

SYNTAX_OF = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command_r",
    "HuggingFaceTB-SmolLM3-3B": "plain",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen_xml",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen_xml",
    "Qwen3.5-4B": "qwen_xml",
    "SmolLM2-135M-Instruct-gguf": "plain",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek",
    "deepseek-ai-DeepSeek-V3.1": "deepseek",
    "google-gemma-2-2b-it": "plain",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.1": "hermes",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "microsoft-Phi-3.5-mini-instruct": "plain",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "openai-gpt-oss-120b": "harmony",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
}

WRITE_NO_CALLS = {
    *(name for name, syntax in SYNTAX_OF.items() if syntax in ("plain", "lfm2")),
    "ibm-granite-granite-3.3-2B-Instruct",
}
"""Templates that leave an assistant's calls out."""

ARGUMENTS = {
    "city": 'Paris, "Ville" \\ Lumière\n\n  </tool_call',
    "days": 3,
    "half": -0.5,
    "exact": True,
    "nothing": None,
    "options": {"list": [1, [2], {"a": "b"}], "empty": {}, "none": []},
    "number": "12",
}
PROPERTIES = {"number": {"type": "string", "description": "d"}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "It works.",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": []},
        },
    }
    for name in ("get_weather", "add_2")
]
ENDS = ("<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "</s>", "<turn|>", "<|call|>")
ENDS += ("<｜end▁of▁sentence｜>", "<|tool_response>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|return|>")


class Texts:
    control_texts = ()

    def __init__(self, record):
        self._texts = {"bos": record["bos_token"], "eos": record["eos_token"]}

    def text(self, name):
        return self._texts.get(name, "")


@pytest.fixture(scope="module", params=SYNTAX_OF)
def case(request, golden):
    record = json.loads((golden / f"templates/{request.param}.renders.json").read_text("utf-8"))
    source = (golden / f"templates/{request.param}.jinja").read_bytes().decode("utf-8")
    return request.param, ChatTemplate({"default": source}, Texts(record)), record["fixed_time"]


def calls_of(arguments):
    names = ("get_weather", "add_2")
    ids = ("call00001", "call00002")
    return [
        {"id": own, "type": "function", "function": {"name": name, "arguments": given}}
        for own, name, given in zip(ids, names, arguments, strict=False)
    ]


def said(template, clock, message, **options):
    """What the template writes for an assistant's message, and the prompt before it."""
    user = [{"role": "user", "content": "Hi."}]
    options |= {"tools": TOOLS, "clock": clock}
    prompt = template.render(user, **options).text
    whole = template.render([*user, message], add_generation_prompt=False, **options).text
    before = re.sub(r"<[^<>]*$", "", commonprefix([prompt, whole]))  # noqa: RUF071 - no half of a control token
    text = whole[len(before) :].partition("<|END_OF_TURN_TOKEN|>")[0].rstrip()  # one template asks for more behind it
    while text.endswith(ENDS):
        text = text.removesuffix(next(end for end in ENDS if text.endswith(end))).rstrip()
    return before, text


def test_each_template_has_its_syntax(case):
    name, template, _ = case
    assert syntax_of(template.source).name == SYNTAX_OF[name]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("case", [name for name in SYNTAX_OF if name not in WRITE_NO_CALLS], indirect=True)
def test_calls_there_and_back(case, count):
    name, template, clock = case
    arguments = [ARGUMENTS, {}][:count]
    content = None if "Distill" in name else ""
    message = {"role": "assistant", "content": content, "tool_calls": calls_of(arguments)}
    try:
        prompt, text = said(template, clock, message)
    except TemplateError as error:
        assert (count, error.name) == (2, "TEMPLATE_REFUSED"), error  # one call at a time
        return
    reply = read_reply(text, syntax_of(template.source), prompt=prompt, tools=TOOLS)
    found = [Call(call.name, call.arguments) for call in reply.calls]
    if name.startswith("openai"):  # this template writes the first call only
        arguments = arguments[:1]
    assert found == [Call(name, given) for name, given in zip(("get_weather", "add_2"), arguments, strict=False)], text
    assert reply.content == "" and reply.reasoning == ""


def test_content_there_and_back(case):
    _, template, clock = case
    prompt, text = said(template, clock, {"role": "assistant", "content": "It is 21 °C."})
    reply = read_reply(text, syntax_of(template.source), prompt=prompt)
    assert (reply.content, reply.reasoning, reply.calls) == ("It is 21 °C.", "", ()), text


WRITE_REASONING = {
    *("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen-Qwen3-0.6B"),
    *("Qwen3.5-4B", "google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved", "openai-gpt-oss-120b"),
}
"""Templates that write down why the last turn's call was made."""


def test_reasoning_there_and_back(case):
    name, template, clock = case
    content = None if "Distill" in name else ""
    thoughts = {"reasoning_content": "They want\n21.", "thinking": "They want\n21."}
    message = {"role": "assistant", "content": content, **thoughts, "tool_calls": calls_of([{"n": 21}])}
    prompt, text = said(template, clock, message, extra={"enable_thinking": True})
    assert ("They want" in text) == (name in WRITE_REASONING), text
    reply = read_reply(text, syntax_of(template.source), prompt=prompt, tools=TOOLS)
    expected = "They want\n21." if name in WRITE_REASONING else ""
    assert (reply.content, reply.reasoning) == ("", expected), text
    assert [call.arguments for call in reply.calls] == ([] if name in WRITE_NO_CALLS else [{"n": 21}])
