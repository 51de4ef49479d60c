"""``kinetic receipt convert``: the same receipt in the other encoding."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from kinetic.cli.parser import Subcommands
from kinetic.cli.receipt_files import about, load, require_writable, said, write
from kinetic.cli.report_options import shown
from kinetic.errors import UsageError

HELP = "write a receipt as JSON or as CBOR"

EPILOG = """\
Both encodings hold the same receipt and signatures: its receipt_id, which is printed,
stays the same. OUT may be FILE.
"""

FORMS = ("json", "cbor")


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("convert", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("file", metavar="FILE", help="a receipt, JSON or CBOR")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="where it goes, such as answer.cbor")
    parser.add_argument("--to", choices=FORMS, metavar="FORM", help="json or cbor; by default as OUT's name ends")
    parser.set_defaults(main=said(main))


def main(options: Namespace) -> int:
    from receipts.identity import receipt_id
    from receipts.rewrite import encoded

    form = options.to or Path(options.output).suffix.removeprefix(".").lower()
    if form not in FORMS:
        message = f"{options.output} ends neither in .json nor in .cbor: say which with --to json or --to cbor"
        raise UsageError(message, name="NO_FORM")
    require_writable(options.output)
    loaded = load(options.file)
    with about(options.file):
        data = encoded(loaded.receipt, form)
    write(options.output, data, options.file)
    print(f"{shown(options.output)}: {form}, receipt {receipt_id(loaded.receipt.record)}")
    return 0
