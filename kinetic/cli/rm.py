"""``kinetic rm``: remove pulled models."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from kinetic.cli.parser import Subcommands
from kinetic.errors import FileProblem, UsageError

HELP = "remove pulled models from this machine"

EPILOG = """\
Asks before it removes, on a terminal. Where there is none, as in scripts, it takes -y to remove
anything: without it nothing is removed, and the exit code is 2. It is 1 if the answer is no.
"""

OTHERS = {"ollama": "Ollama", "lmstudio": "LM Studio", "hf": "the Hugging Face cache"}


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("rm", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("names", metavar="NAME", nargs="*", help="a name from `kinetic models`")
    parser.add_argument("--unfinished", action="store_true", help="remove what pulls that broke off have left, too")
    parser.add_argument("-y", "--yes", action="store_true", help="don't ask; needed where no terminal is")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic import packs, pull

    found = {name: _files(name) for name in options.names}
    if options.unfinished:
        found["unfinished downloads"] = pull.unfinished()
    if not found:
        raise UsageError("name a model to remove: `kinetic models` lists them", name="NO_NAME")
    sizes = {name: sum(path.stat().st_size for path in files) for name, files in found.items()}
    if not options.yes and not _is_wanted(sizes):
        print("Nothing was removed.")
        return 1
    for name, files in found.items():
        packed = packs.of_files(files)  # while the files are there to tell whose they are
        freed = pull.remove(files) + packs.remove(packed)
        print(f"{name}: {freed / 1e6:,.1f} MB freed")
    return 0


def _files(name: str) -> list[Path]:
    """The files of a model of ours. Raises FileProblem for everything else."""
    from kinetic import local_models, pull, store

    if files := pull.owned(name):
        return files
    try:
        store.resolve(name)
    except FileProblem as error:
        if error.name != "NOT_PULLED":
            raise
        raise FileProblem(f"{name} is not on this machine: there is nothing to remove", name="NOT_PULLED") from None
    source = name.partition(":")[0] if local_models.find_local(name) else ""
    if owner := OTHERS.get(source, OTHERS["hf"] if source else ""):
        raise FileProblem(f"{name} belongs to {owner}: remove it there", name="NOT_OURS")
    raise FileProblem(f"{name} is no pulled model: delete a file of your own by other means", name="NOT_OURS")


def _is_wanted(sizes: dict[str, int]) -> bool:
    """Asks whoever is at the terminal; raises UsageError if nobody is."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("nothing was removed, for there is no terminal to ask on: say -y", name="NOT_CONFIRMED")
    from receipts.terminal import printable

    what = ", ".join(f"{name} ({size / 1e6:,.1f} MB)" for name, size in sizes.items())
    print(printable(f"Remove {what}? [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
