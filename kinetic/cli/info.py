"""``kinetic info``: what is in a model file, what it needs, and whether this build can run it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from kinetic.cli.parser import Subcommands

HELP = "show what is in a model file and what this build can run of it"


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("info", help=HELP, description=HELP.capitalize() + ".")
    parser.add_argument("file", metavar="FILE", help="a .gguf file, or a name from `kinetic models`")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-c", "--ctx-size", type=int, default=0, metavar="N", help="memory at this context size")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.loader import describe
    from kinetic.store import resolve

    facts = describe(resolve(options.file), options.ctx_size)
    if options.json:
        import json

        print(json.dumps(facts, ensure_ascii=False))
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        for number, line in enumerate(_lines(name, value)):
            print(f"{'' if number else name.replace('_', ' '):{width}}  {line}")
    return 0


def _lines(name: str, value: Any) -> list[str]:
    """One value as lines of text; a list has one line per item."""
    if isinstance(value, (list, tuple)) and value:
        return [_word(name, item) for item in value]
    return [_word(name, value)]


def _word(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_word(key, item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_word(name, item) for item in value)
    if isinstance(value, int):
        is_bytes = name.endswith(("size", "bytes", "memory"))
        return f"{value:,} bytes ({value / 1e6:,.1f} MB)" if is_bytes else f"{value:,}"
    return "-" if value in ("", None) else str(value)
