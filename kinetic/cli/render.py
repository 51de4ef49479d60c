"""``kinetic render``: the prompt that a chat template makes of a conversation."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from typing import Any

from kinetic.cli.parser import Subcommands
from kinetic.errors import UsageError

HELP = "print the prompt that a chat template makes of a conversation"

EPILOG = """\
No weights are read. A .jinja file has no tokenizer: give its special tokens as --var bos_token='"<s>"'.
Documents, enable_thinking and whatever else a template reads are variables too.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("render", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL|TEMPLATE.jinja", help="a model file or name, or a template by itself")
    parser.add_argument("-m", "--message", type=_message, action="append", default=[], metavar="ROLE:TEXT",
                        help="a message (repeatable)")  # fmt: skip
    parser.add_argument("--messages", metavar="FILE", help="a JSON list of messages (- is stdin)")
    parser.add_argument("--tools", metavar="FILE", help="a JSON list of tools (- is stdin)")
    parser.add_argument("--var", type=_variable, action="append", default=[], metavar="NAME=JSON",
                        help="a variable of the template (repeatable)")  # fmt: skip
    parser.add_argument("--no-generation-prompt", action="store_true", help="do not begin the assistant's answer")
    parser.add_argument("--clock", "--template-time", metavar="TIME",
                        help="clock value for the template, as 2026-03-14T15:09:26 (now)")  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print JSON: the prompt, and the clock value if it was used"
    )
    parser.set_defaults(main=main)


def _message(text: str) -> dict[str, str]:
    role, colon, content = text.partition(":")
    if not colon or not role:
        raise ArgumentTypeError(f"{text!r} is not of the form ROLE:TEXT")
    return {"role": role, "content": content}


def _variable(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=JSON")
    from kinetic.cli.run_options import read_json

    try:
        return name, read_json(value)
    except ValueError:
        hint = "a text needs quotes of its own, as in '\"text\"'"
        raise ArgumentTypeError(f"the value of {name} is not JSON: {hint}") from None


def main(options: Namespace) -> int:
    import sys

    from kinetic.api.render import SUFFIX, render
    from kinetic.store import resolve

    messages = _messages(options)
    rendered = render(
        options.model if options.model.endswith(SUFFIX) else resolve(options.model),
        messages,
        tools=_listed(options.tools, "tools") if options.tools else None,
        variables=dict(options.var),
        add_generation_prompt=not options.no_generation_prompt,
        clock=options.clock or "",
    )
    if options.json:
        import json

        print(json.dumps({"prompt": rendered.text, "clock": rendered.clock_used}))
    else:
        sys.stdout.write(rendered.text)
    return 0


def _messages(options: Namespace) -> list[Any]:
    """From the one place that gives them."""
    if bool(options.message) == (options.messages is not None):
        raise UsageError("give the conversation once: with -m ROLE:TEXT, or with --messages FILE", name="NO_MESSAGES")
    if options.messages == options.tools == "-":
        raise UsageError("standard input holds the messages or the tools, not both", name="STDIN_TWICE")
    from kinetic.cli.run_options import _escaped

    for message in options.message:
        _escaped(message["content"], is_asked=False)  # refuses what is not UTF-8
    return options.message or _listed(options.messages, "messages")


def _listed(file: str, what: str) -> list[Any]:
    """The list in a JSON file. Raises FileProblem or UsageError."""
    from kinetic.cli.run_options import decode, read_bytes, read_json

    source = "standard input" if file == "-" else file
    try:
        found = read_json(decode(read_bytes(file), source))
    except ValueError as error:
        raise UsageError(f"{source} is not JSON: {error}", name="NOT_JSON") from None
    if not isinstance(found, list):
        raise UsageError(f"{source} must be a JSON list of {what}", name=f"BAD_{what.upper()}")
    return found
