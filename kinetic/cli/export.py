"""``kinetic export``: statements about models in the formats of other tools."""

from __future__ import annotations

from argparse import Namespace

from kinetic.cli.parser import Parser, Subcommands
from kinetic.cli.progress import Progress
from kinetic.cli.receipt import Group

HELP = "sign a model or bundle in a format of other tools"

OMS_HELP = "OpenSSF Model Signing v1 of a folder that holds a model, or of one file"
INTOTO_HELP = "in-toto Statement v1 about a bundle and the model in it, in a DSSE envelope"

OMS_EPILOG = """\
The format knows elliptic curve keys and no Ed25519, so it takes a key of its own:
  openssl ecparam -name prime256v1 -genkey -noout -out ec.pem && openssl ec -in ec.pem -pubout -out ec.pub
  kinetic export oms FOLDER --ec-key ec.pem -o model.sig
  model_signing verify key FOLDER --signature model.sig --public_key ec.pub
Needs the package cryptography, which `pip install kinetic-engine[oms]` brings.
"""

INTOTO_EPILOG = """\
The bundle is verified whole before anything is said about it. Subjects are the .ktc file and
the model file in it, each by its SHA-256; a signature added to the bundle later changes the first.
"""


def add(commands: Subcommands) -> None:
    name = commands.add_parser("export", help=HELP).prog
    group = Group(name, description=HELP.capitalize() + ".")
    commands.choices["export"] = group
    _add_oms(group)
    _add_intoto(group)


def _add_oms(group: Group) -> None:
    parser = group.members.add_parser("oms", help=OMS_HELP, description=OMS_HELP + ".", epilog=OMS_EPILOG)
    parser.add_argument("model", metavar="DIR|FILE", help="a folder, or a file or name of a model")
    parser.add_argument("--ec-key", required=True, metavar="KEY", help="secret key in PEM, on P-256, P-384 or P-521")
    _add_output(parser)
    parser.set_defaults(main=main_oms)


def _add_intoto(group: Group) -> None:
    parser = group.members.add_parser("intoto", help=INTOTO_HELP, description=INTOTO_HELP + ".", epilog=INTOTO_EPILOG)
    parser.add_argument("file", metavar="FILE", help="a bundle (.ktc)")
    parser.add_argument("--sign", required=True, metavar="KEY", help="the secret key, from `kinetic keygen`")
    _add_output(parser)
    parser.set_defaults(main=main_intoto)


def _add_output(parser: Parser) -> None:
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="where it goes")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def main_oms(options: Namespace) -> int:
    from kinetic.api.exports import oms
    from kinetic.cli.receipt_files import require_writable

    require_writable(options.output, options.ec_key, options.model)
    with Progress("hashing", quiet=options.quiet) as bar:
        data = oms(options.model, options.ec_key, options.output, bar)
    return _write(options, data)


def main_intoto(options: Namespace) -> int:
    from kinetic.api.exports import intoto
    from kinetic.attest import read_key
    from kinetic.cli.receipt_files import require_writable

    require_writable(options.output, options.sign, f"{options.sign}.pub", options.file)
    pair = read_key(options.sign)
    with Progress("verifying", quiet=options.quiet) as bar:
        data = intoto(options.file, pair, bar)
    return _write(options, data)


def _write(options: Namespace, data: bytes) -> int:
    from kinetic.attest import foreign_errors
    from ktc.files import write_atomic

    with foreign_errors():
        write_atomic(options.output, data)
    print(options.output)
    return 0
