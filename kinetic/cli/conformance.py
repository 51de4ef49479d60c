"""``kinetic conformance``: does this machine keep the promise? See the package ``conformance``."""

from __future__ import annotations

from argparse import Namespace

from conformance.command import EPILOG, HELP, add_flags
from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress, news


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("conformance", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    add_flags(parser)
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from conformance.command import execute

    with Progress("proving", quiet=options.quiet) as bar:

        def told(line: str) -> None:
            bar.clear()
            news(line)

        def progress(done: int, total: int) -> None:
            bar.clear() if done == total else bar(done, total)

        return execute(options, progress, None if options.quiet else told)
