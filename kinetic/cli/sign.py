"""``kinetic sign``: add a signature to a bundle."""

from __future__ import annotations

from argparse import Namespace

from kinetic.cli.parser import Subcommands

HELP = "add a signature to a bundle"

EPILOG = """\
What is signed are the bundle's name, its release and the digests of all it holds. The file is
changed in place, at its end only; signatures that are there must hold, and are kept. Verify a
bundle before you sign it. Receipts are signed with `kinetic receipt sign`.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("sign", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("file", metavar="FILE", help="a bundle (.ktc)")
    parser.add_argument("--key", required=True, metavar="KEY", help="the secret key file, from `kinetic keygen`")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.api.bundle import sign
    from kinetic.attest import read_key

    signers = sign(options.file, read_key(options.key))
    print(f"{options.file}: signed by {', '.join(f'key {signer}' for signer in signers)}")
    return 0
