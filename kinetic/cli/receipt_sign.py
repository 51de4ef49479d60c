"""``kinetic receipt sign``: add a signature to a receipt."""

from __future__ import annotations

from argparse import Namespace

from kinetic.cli.parser import Subcommands
from kinetic.cli.receipt_files import about, load, require_writable, said, write
from kinetic.cli.report_options import shown

HELP = "add a signature to a receipt"

EPILOG = """\
The receipt's other signatures must hold, and are kept; one key signs once. The file keeps
its encoding, JSON or CBOR, and its receipt_id. `kinetic keygen` makes a key.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("sign", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("file", metavar="FILE", help="a receipt, JSON or CBOR")
    parser.add_argument("--key", required=True, metavar="KEY", help="the secret key file")
    parser.add_argument("-o", "--output", metavar="OUT", help="where the signed receipt goes; by default FILE itself")
    parser.set_defaults(main=said(main))


def main(options: Namespace) -> int:
    from kinetic import store
    from ktc.errors import Malformed
    from ktc.keys import read_secret_key
    from ktc.signature import key_id
    from receipts.identity import receipt_id
    from receipts.rewrite import encoded, form_of, with_signature

    if store.is_bundle(options.file):
        raise Malformed(f"{options.file}: this is a bundle: `kinetic sign` signs it", name="NOT_A_RECEIPT")
    output = options.file if options.output is None else options.output
    require_writable(output)
    loaded = load(options.file)
    pair = read_secret_key(options.key)
    with about(options.file):
        signed = with_signature(loaded.receipt, pair)
        data = encoded(signed, form_of(loaded.data))
    write(output, data, options.file)
    print(f"{shown(output)}: receipt {receipt_id(signed.record)} signed by key {key_id(pair.public)}")
    return 0
