"""Chat templates that other engines stumbled over (CASES C1 to C11)."""

import pytest

from kinetic.errors import TemplateError
from kinetic.text.template import ChatTemplate

NOW = "2026-03-14T15:09:26Z"


class Texts:
    control_texts = ()

    def text(self, name):
        return {"bos": "<s>"}.get(name, "")


PUBLIC_CASES = {
    "C1": ("{% for m in messages %}{% if m.role == 'user' %}{{ loop.index }}{%- break %}{% endif %}{% endfor %}", "2"),
    "C2": ("{{ (messages[2].content.split('</think>')|first).rstrip('\n').split('<think>\n')[-1] }}", "hm"),
    "C4": ("{%- set tools = none %}{%- if tools is none and tools == None and not tools %}none{%- endif %}", "none"),
    "C5": ("{{ strftime_now('%H:%M:%S') }} {{ strftime_now('%B %d, %Y') }}", "15:09:26 March 14, 2026"),
    "C6": ("{% for k, v in messages[2].tool_calls[0].function.arguments|items %}{{ k }}={{ v }};{% endfor %}",
           "b=1;a=x;"),
    "C7": ("{{ messages[1]|tojson(ensure_ascii=False) }}", '{"role": "user", "content": "a/b — <é>\'&"}'),
    "C9": ("{{- bos_token }}\n{#- This is the system. #}\n{%- for m in messages[:1] %}\n    {{- m.role }}\n"
           "    {% if true %}\n!\n    {% endif %}\n{%- endfor %}\n", "<s>system\n!\n"),
}  # fmt: skip
"""Reports against other engines: template, and its text for the conversation below."""


@pytest.mark.parametrize("case", PUBLIC_CASES)
def test_public_cases(case):
    call = {"type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": "x"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a/b — <é>'&"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\nYes", "tool_calls": [call]},
    ]
    source, expected = PUBLIC_CASES[case]
    rendered = ChatTemplate({"default": source}, Texts()).render(messages, clock=NOW)
    assert rendered.text == expected
    assert (rendered.clock_used == NOW) == (case == "C5")


def test_a_late_system_message_is_refused_in_the_templates_words():
    """C11: agents send one."""
    refusal = "{{ raise_exception('System message must be at the beginning.') }}"
    source = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}" + refusal + "{% endif %}{% endfor %}"
    )
    template = ChatTemplate({"default": source}, Texts())
    messages = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be brief."}]
    assert template.render(messages[::-1]).text == ""
    with pytest.raises(TemplateError, match=r"System message must be at the beginning\.$") as caught:
        template.render(messages)
    assert (caught.value.http_status, caught.value.name) == (400, "TEMPLATE_REFUSED")
