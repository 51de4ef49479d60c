"""What an assistant said, taken apart: its content, its reasoning, and the tools it calls.

One file a syntax. Which one a model speaks is found by its chat template: ``syntax_of(template.source)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic.text.tools import (
    command_r,
    deepseek,
    gemma4,
    granite,
    harmony,
    hermes,
    lfm2,
    llama3,
    mistral,
    qwen_xml,
)
from kinetic.text.tools.reply import Call, Reply, Syntax
from kinetic.text.tools.scan import Scan

__all__ = ["Call", "Reply", "Syntax", "read_reply", "syntax_of"]

SYNTAXES = (
    harmony.SYNTAX,
    gemma4.SYNTAX,
    command_r.SYNTAX,
    deepseek.SYNTAX,
    mistral.SYNTAX,
    qwen_xml.SYNTAX,
    granite.SYNTAX,
    hermes.SYNTAX,
    lfm2.SYNTAX,
    llama3.SYNTAX,
)
"""In the order they are tried: a template that names <function= inside <tool_call> speaks the first of the two."""

PLAIN = Syntax("plain", marks=())
"""No calls; reasoning, if the template has it."""


def syntax_of(source: str) -> Syntax:
    """The syntax that a chat template is written for, with the reasoning tags that it mentions."""
    known = (syntax for syntax in SYNTAXES if any(mark in source for mark in syntax.marks))
    found = next(known, PLAIN)
    return replace(found, thinks=tuple(pair for pair in found.thinks if any(tag in source for tag in pair)))


def read_reply(
    text: str,
    syntax: Syntax,
    *,
    prompt: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
    finished: bool = True,
) -> Reply:
    """Take ``text`` apart: what a model said, control tokens spelled out, without the token that ended its turn.

    ``prompt``: what it was said after; some templates begin the reasoning there. ``tools``: as given to the
    template; a syntax without types of its own looks them up there. What is not exactly a call is content.

    ``finished=False`` is for an answer still being written. It gives what is certain: for longer and longer
    beginnings of a text, each part of the reply only grows, up to the reply to the whole.
    """
    return Scan(text, syntax, tools, finished).reply(prompt)
