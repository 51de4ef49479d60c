"""``kinetic receipt``: commands about receipts that run no model (but one: a verification summary rests on a rerun)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from kinetic.cli import receipt_convert, receipt_diff, receipt_export, receipt_open, receipt_show, receipt_sign
from kinetic.cli.parser import Parser, Subcommands

HELP = "show, sign, convert, export, compare or open receipts"


class Group(Parser):
    """A command that has commands of its own, each a parser with the same manners."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        self.members: Subcommands = self.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def refuse_glued(self, words: Sequence[str]) -> None:
        """Says nothing: each command knows its own flags."""

    def parse_intermixed_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Namespace:  # type: ignore[override]
        words = list(args or ())
        member = self.members.choices.get(words[0]) if words else None
        if member is None:
            if not words:
                self.error(f"a command is missing: {', '.join(self.members.choices)}")
            return self.parse_args(words)  # --help, or a word that is no command
        member.refuse_glued(words[1:])
        return member.parse_intermixed_args(words[1:])


def add(commands: Subcommands) -> None:
    name = commands.add_parser("receipt", help=HELP).prog
    group = Group(name, description=HELP.capitalize() + ".")
    commands.choices["receipt"] = group
    for member in (receipt_show, receipt_sign, receipt_convert, receipt_export, receipt_diff, receipt_open):
        member.add(group.members)
