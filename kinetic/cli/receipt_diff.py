"""``kinetic receipt diff``: is it one question, is it one answer, and where do they part?"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from kinetic.cli.parser import Subcommands
from kinetic.cli.receipt_files import load, said

if TYPE_CHECKING:
    from kinetic.cli.receipt_files import Loaded

HELP = "compare two receipts, without a rerun"

EPILOG = """\
exit codes:
  0    one question, one answer: the same tokens, text and stop reason (and the same
       digests of the logits, where both receipts hold them)
  10   one question, two answers
  13   two questions, so the answers say nothing about each other, the same or not
  11, 12, 3, 14: one of the files is no sound receipt; of two faults the graver counts

What is only claimed or attached (time, device, signatures, ...) may differ: it is listed,
of signatures the keys that signed only one of the two, and changes no exit code.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("diff", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("first", metavar="A", help="a receipt, JSON or CBOR")
    parser.add_argument("second", metavar="B", help="another")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(main=said(main))


def main(options: Namespace) -> int:
    from receipts.diff import as_json, compare, page

    loaded = _load_both(options.first, options.second)
    first, second = (one.receipt.record for one in loaded)
    found = compare(first, second, (loaded[0].signers, loaded[1].signers))
    if options.json:
        import json

        print(json.dumps({"first_file": options.first, "second_file": options.second} | as_json(found)))
    else:
        print(page(found, (first, second), (options.first, options.second)), end="")
    return found.exit_code


def _load_both(*paths: str) -> list[Loaded]:
    """Both files. Raises the graver of two faults."""
    from ktc.errors import KtcError
    from receipts.errors import worst

    loaded, faults = [], []
    for path in paths:
        try:
            loaded.append(load(path))
        except KtcError as error:
            faults.append(error)
    if faults:
        code = worst(fault.exit_code for fault in faults)
        raise next(fault for fault in faults if fault.exit_code == code)
    return loaded
