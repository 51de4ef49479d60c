"""``kinetic repair``: make a damaged bundle whole, with another copy of the model."""

from __future__ import annotations

from argparse import Namespace

from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress

HELP = "make a damaged bundle whole again, in a new file, with another copy of the model"


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("repair", help=HELP, description=HELP.capitalize() + ".")
    parser.add_argument("file", metavar="FILE", help="the damaged bundle")
    parser.add_argument("--from", dest="donor", required=True, metavar="OTHER",
                        help="a bundle or model file that has what is damaged")  # fmt: skip
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the new bundle, which must not exist")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.api.bundle import repair

    with Progress("repairing", quiet=options.quiet) as bar:
        mended = repair(options.file, options.donor, options.output, progress=bar)
    if not (mended.leaves or mended.sections or mended.gaps):
        print(f"{options.file}: nothing is damaged, so nothing was written")
        return 0
    parts = [f"{_counted(len(mended.leaves), 'leaf', 'leaves')} from {options.donor}"] if mended.leaves else []
    parts += [f"section {name}" for name in mended.sections]
    parts += [_counted(mended.gaps, "stretch of padding", "stretches of padding")] if mended.gaps else []
    print(f"{options.output}: mended {', '.join(parts)}")
    return 0


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
