"""``kinetic unpack``: the model file in a bundle, as it went in."""

from __future__ import annotations

from argparse import Namespace

from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress

HELP = "take the model file out of a bundle, byte for byte"


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("unpack", help=HELP, description=HELP.capitalize() + ".")
    parser.add_argument("file", metavar="FILE", help="a bundle (.ktc)")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the model file, which must not exist")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.api.bundle import unpack

    with Progress("unpacking", quiet=options.quiet) as bar:
        section = unpack(options.file, options.output, progress=bar)
    print(f"{options.output}: {section.length:,} bytes, sha256 {section.sha256}")
    return 0
