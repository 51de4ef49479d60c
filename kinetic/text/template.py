"""Chat templates: a conversation becomes the text its model was trained on.

Rendered through jinja2 with the settings of the transformers library, which
template authors test against, inside a metered sandbox (sandbox.py), and with
the conversation's own words kept from turning into control tokens (guard.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kinetic.errors import KineticError, LimitExceeded, TemplateError, UsageError
from kinetic.text.clock import Clock
from kinetic.text.guard import Guard, free_character, texts_of

if TYPE_CHECKING:
    from jinja2 import Template

MAX_TEMPLATE = 256 * 1024
"""Characters; the largest known template has some 20,000."""
MAX_DEPTH = 150
"""Levels of nesting in the syntax tree; real templates reach about 20."""

SPECIAL_NAMES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
Message = Mapping[str, Any]


class SpecialTexts(Protocol):
    """The part of a tokenizer that a template needs."""

    @property
    def control_texts(self) -> list[str]: ...

    def text(self, name: str) -> str: ...


@dataclass(frozen=True)
class Rendered:
    """``text`` is what the template gives; ``text_with_guard`` and ``guard`` are for ``Tokenizer.encode``.

    ``clock_used``: the clock value if the template looked at it, else None.
    """

    text: str
    text_with_guard: str
    guard: str
    clock_used: str | None


@dataclass(frozen=True)
class _Conversation:
    """Everything a template may read that comes from the caller."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    extra: dict[str, Any]

    def texts(self) -> Iterable[str]:
        return texts_of([self.messages, self.tools, self.extra])

    def guarded(self, guard: Guard, assistants: Guard) -> _Conversation:
        """With every text guarded, those of the assistant by a guard of their own."""
        guards = [assistants if message.get("role") == "assistant" else guard for message in self.messages]
        messages = [own.protect(message) for own, message in zip(guards, self.messages, strict=True)]
        return replace(self, messages=messages, tools=guard.protect(self.tools), extra=guard.protect(self.extra))

    def assistants_texts(self) -> Iterable[str]:
        return texts_of([message for message in self.messages if message.get("role") == "assistant"])


class ChatTemplate:
    """One model's template, compiled when first used. Safe to share between threads.

    ``sources``: name -> jinja source; "default" is always there, "tool_use" serves requests with tools.
    """

    def __init__(self, sources: Mapping[str, str], tokenizer: SpecialTexts) -> None:
        for name, source in sources.items():
            if len(source) > MAX_TEMPLATE:
                raise TemplateError(f"chat template {name!r} is longer than 256 KiB", name="TEMPLATE_TOO_LARGE")
        self._sources = dict(sources)
        self._tokenizer = tokenizer
        self._compiled: dict[str, Template] = {}

    @property
    def source(self) -> str:
        """The default template as it is in the file."""
        return self._sources["default"]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        clock: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """Turn OpenAI-style ``messages`` into text.

        ``clock``: ISO 8601 time that ``strftime_now`` formats. ``extra``: more variables, such as enable_thinking.
        Raises TemplateError (TEMPLATE_REFUSED when the template itself objects, with its words), LimitExceeded, and
        UsageError for a bad ``clock`` or messages that are none.
        """
        if not all(isinstance(message, Mapping) for message in messages):
            raise UsageError("every message must be an object with a role", name="BAD_MESSAGES")
        name = "tool_use" if tools and "tool_use" in self._sources else "default"
        rendering = _Rendering(self._template(name), self._tokenizer, add_generation_prompt, clock)
        conversation = _Conversation(
            [_with_arguments(message, _as_object) for message in messages],
            None if tools is None else list(tools),
            dict(extra or {}),
        )
        conversation, text = _understood(rendering, conversation)
        guard = self._guard(name, text, conversation)
        if guard is None:
            return Rendered(text, text, "", rendering.clock_used)
        guarded = _guarded_text(rendering, conversation, guard, text)
        return Rendered(guarded.replace(guard.character, ""), guarded, guard.character, rendering.clock_used)

    def _template(self, name: str) -> Template:
        if name not in self._compiled:
            self._compiled[name] = compile_template(self._sources[name])
        return self._compiled[name]

    def _guard(self, name: str, text: str, conversation: _Conversation) -> Guard | None:
        """A guard, or None where the conversation holds nothing that could become a control token."""
        spellings = self._tokenizer.control_texts
        if not spellings:
            return None
        guard = Guard(free_character(self._sources[name], text, *conversation.texts()), spellings)
        used = any(guard.character in said for said in conversation.guarded(guard, guard).texts())
        return guard if used else None


def _understood(rendering: _Rendering, conversation: _Conversation) -> tuple[_Conversation, str]:
    """The conversation as the template takes it, and its text.

    A few templates (of DeepSeek R1) put the arguments of tool calls into a text without ``tojson``.
    They fail on objects, and get the JSON text that the OpenAI interface sends.
    """
    try:
        return conversation, rendering.run(conversation)
    except TemplateError as problem:
        as_text = [_with_arguments(message, _as_text) for message in conversation.messages]
        if problem.name != "TEMPLATE_FAILED" or as_text == conversation.messages:
            raise
        other = replace(conversation, messages=as_text)
        with contextlib.suppress(TemplateError):
            return other, rendering.run(other)
        raise


def _guarded_text(rendering: _Rendering, conversation: _Conversation, guard: Guard, clean: str) -> str:
    """Render with guards so that, without them, the text is ``clean``.

    Some templates look for a control token's spelling in the assistant's own
    earlier words, to cut its reasoning out. If that is why the texts differ,
    that spelling is left alone there, all of them if need be. Whatever difference
    remains comes from a spelling typed by somebody else, which must not steer the template.
    """
    said = "\n".join(conversation.assistants_texts())
    looked_for = [[spelling] for spelling in guard.spellings if spelling in said]
    for spared in ([], *looked_for, guard.spellings):
        text = rendering.run(conversation.guarded(guard, guard.without(spared)))
        text = text.replace(f"\\u{ord(guard.character):04x}", guard.character)
        if text.replace(guard.character, "") == clean:
            return text
    return text


class _Rendering:
    """Renders conversations with one template and one set of options, and notes whether it reads the clock."""

    def __init__(self, template: Template, tokenizer: SpecialTexts, prompt: bool, clock: str | None) -> None:
        self._template = template
        self._clock = None if clock is None else Clock.parse(clock)
        self._clock_text = clock
        self._options: dict[str, Any] = {"add_generation_prompt": prompt, "strftime_now": self._strftime_now}
        self._options |= {f"{name}_token": tokenizer.text(name) for name in SPECIAL_NAMES}
        self.clock_used: str | None = None

    def run(self, conversation: _Conversation) -> str:
        from kinetic.text.budget import Budget, budget

        variables = {**self._options, **conversation.extra, "messages": conversation.messages}
        if conversation.tools is not None:  # templates written for several programs ask "is defined"
            variables["tools"] = conversation.tools
        token = budget.set(Budget(len(conversation.messages), sum(map(len, conversation.texts()))))
        try:
            return "".join(self._template.root_render_func(self._template.new_context(variables)))
        except KineticError:
            raise
        except Exception as problem:
            raise _explained(problem) from problem
        finally:
            budget.reset(token)

    def _strftime_now(self, pattern: str) -> str:
        if self._clock is None:
            raise TemplateError(
                "the chat template asks for the time: give one (--template-time 2026-03-14T15:09:26Z)",
                name="TEMPLATE_NEEDS_CLOCK",
            )
        self.clock_used = self._clock_text
        return self._clock.format(pattern)


def compile_template(source: str) -> Template:
    """Parse, check and compile a template. Raises TemplateError; nothing of it runs."""
    from jinja2 import Template

    from kinetic.text.budget import Budget, budget
    from kinetic.text.sandbox import Environment

    environment = Environment()
    environment.add_filter("tojson", to_json)
    environment.globals["raise_exception"] = _raise_exception
    token = budget.set(Budget())
    try:
        tree = environment.parse(source)
        _check_tree(tree)
        code = environment.compile(environment.metered(tree))
        return Template.from_code(environment, code, environment.make_globals(None))
    except KineticError:
        raise
    except (RecursionError, MemoryError) as problem:
        raise TemplateError("the chat template nests too deep", name="TEMPLATE_TOO_DEEP") from problem
    except Exception as problem:
        raise _explained(problem) from problem
    finally:
        budget.reset(token)


class _Refused(Exception):
    """``raise_exception`` was called by a template."""


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The ``tojson`` filter as template authors know it: JSON as Python writes it, no HTML escapes, keys in order."""
    width = indent if isinstance(indent, int) else len(indent or "")
    if max(width, *map(len, separators or ("",))) > 100:
        raise LimitExceeded("the chat template indents JSON too far", name="TEMPLATE_SIZE")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _explained(problem: Exception) -> KineticError:
    """Turn whatever a template provoked into one of our errors."""
    from jinja2.exceptions import SecurityError, TemplateSyntaxError

    if isinstance(problem, _Refused):
        return TemplateError(f"the chat template refuses this conversation: {problem}", name="TEMPLATE_REFUSED")
    if isinstance(problem, RecursionError):
        return LimitExceeded("the chat template calls itself too often", name="TEMPLATE_RECURSION")
    if isinstance(problem, MemoryError | OverflowError):
        return LimitExceeded(f"the chat template asks for too much: {problem}", name="TEMPLATE_SIZE")
    if isinstance(problem, SecurityError):
        return TemplateError(f"the chat template is not safe to run: {problem}", name="TEMPLATE_UNSAFE")
    if isinstance(problem, TemplateSyntaxError):
        where = f"{problem.message} (line {problem.lineno})"
        return TemplateError(f"the chat template has a syntax error: {where}", name="TEMPLATE_SYNTAX")
    if isinstance(problem, SyntaxError):
        return TemplateError(f"the chat template cannot be compiled: {problem.msg}", name="TEMPLATE_SYNTAX")
    reason = f"{type(problem).__name__}: {problem}"
    return TemplateError(f"the chat template failed on this conversation: {reason}", name="TEMPLATE_FAILED")


def _check_tree(tree: Any) -> None:
    """Refuse templates that reach for other files or nest too deep."""
    from jinja2 import nodes

    pending = [(tree, 0)]
    while pending:
        node, depth = pending.pop()
        if isinstance(node, nodes.Include | nodes.Import | nodes.FromImport | nodes.Extends):
            raise TemplateError("the chat template includes another template", name="TEMPLATE_INCLUDES")
        if depth > MAX_DEPTH:
            raise TemplateError(f"the chat template nests deeper than {MAX_DEPTH} levels", name="TEMPLATE_TOO_DEEP")
        pending += [(child, depth + 1) for child in node.iter_child_nodes()]


def _with_arguments(message: Message, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of ``message`` with the arguments of its tool calls changed."""
    copy = {**message}
    if isinstance(copy.get("tool_calls"), list):
        copy["tool_calls"] = [_changed_call(call, change) for call in copy["tool_calls"]]
    return copy


def _changed_call(call: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(call, Mapping):
        return call
    call = {**call}
    if isinstance(call.get("function"), Mapping):
        call["function"] = _changed_call(call["function"], change)
    if "arguments" in call:
        call["arguments"] = change(call["arguments"])
    return call


def _as_object(arguments: Any) -> Any:
    """The OpenAI interface sends arguments as JSON text, templates expect what it says. Other text stays."""
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(arguments)
    return arguments


def _as_text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
