"""``kinetic receipt show``: what a receipt says."""

from __future__ import annotations

import sys
from argparse import Namespace

from kinetic.cli.parser import Subcommands
from kinetic.cli.receipt_files import about, complain, read_file, said

HELP = "show what a receipt says; nothing is rerun"

EPILOG = """\
A receipt that contradicts itself (exit code 11) or has a signature that does not hold
(12) is shown too, and the fault is named. `kinetic verify-receipt` reruns the answer,
and is told there whose signature to trust.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("show", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("file", metavar="FILE", help="a receipt, JSON or CBOR")
    parser.add_argument("--json", action="store_true", help="print one JSON object: the receipt and its ids")
    parser.set_defaults(main=said(main))


def main(options: Namespace) -> int:
    from ktc.errors import KtcError
    from ktc.trust import judge
    from receipts import show
    from receipts.checks import check_answer
    from receipts.encode import read_receipt
    from receipts.errors import worst
    from receipts.sign import SCOPE, check_signatures

    data, faults, signers = read_file(options.file), list[KtcError](), list[str]()
    with about(options.file):
        receipt = read_receipt(data)
    try:
        signers = check_signatures(*receipt)
        signed = judge(None, SCOPE, signers, 0).sentence
    except KtcError as error:
        faults.append(error)
        signed = f"signature not consistent: {error}"
    try:
        check_answer(receipt.record)
    except KtcError as error:
        faults.append(error)
    if options.json:
        import json

        listed = [{"exit_code": fault.exit_code, "name": fault.name, "message": str(fault)} for fault in faults]
        table = {"file": options.file} | show.as_json(receipt, signers, signed) | {"faults": listed}
        print(json.dumps(table))
    else:
        sys.stdout.write(show.page(receipt, signed))
    sys.stdout.flush()  # what the receipt says comes before what is wrong with it
    for fault in faults:
        complain(fault)
    return worst(fault.exit_code for fault in faults)
