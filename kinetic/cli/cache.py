"""``kinetic cache``: what was kept of earlier prompts."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Subcommands

if TYPE_CHECKING:
    from kinetic.prefixes import Kept

HELP = "list or remove what was kept of earlier prompts"

ACTIONS = ("ls", "clear")

EPILOG = """\
What a model computed of a prompt and its answer is kept, so that the next one that begins in the same way need not
wait for it. The files are for you alone and hold the tokens of both: who can read them can read your prompts.
`--off warm` neither reads nor writes any, KINETIC_PREFIX_CACHE=0 keeps none at all, and `kinetic cache clear`
removes them without asking. No answer depends on them.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("cache", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="ls: list them by model; clear: remove them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    return _list(options) if options.action == "ls" else _clear(options)


def _list(options: Namespace) -> int:
    from kinetic import prefixes

    found = prefixes.listed()
    if options.json:
        _print_json([_row(kept) for kept in found])
        return 0
    from receipts.terminal import printable

    models: dict[str, list[Kept]] = {}
    for kept in found:
        models.setdefault(kept.model or "(unreadable)", []).append(kept)
    for model, files in models.items():
        tokens, size = sum(kept.tokens - kept.start for kept in files), sum(kept.size for kept in files)
        ages = f"used {_ago(files[0].age)} to {_ago(files[-1].age)} ago"
        print(printable(f"{model}  {tokens} tokens in {len(files)} files, {size / 1e6:,.1f} MB, {ages}"))
    if not found:
        print("Nothing is kept of earlier prompts.", file=sys.stderr)
    return 0


def _row(kept: Kept) -> dict[str, Any]:
    about = {"model": kept.model, "start": kept.start, "tokens": kept.tokens - kept.start, "bytes": kept.size}
    return {"file": str(kept.path), **about, "age_seconds": round(kept.age, 3)}


def _clear(options: Namespace) -> int:
    from kinetic import prefixes

    count, freed = prefixes.clear()
    if options.json:
        _print_json({"files": count, "bytes": freed})
    else:
        print(f"{count} file{'' if count == 1 else 's'} removed, {freed / 1e6:,.1f} MB freed")
    return 0


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False))


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
