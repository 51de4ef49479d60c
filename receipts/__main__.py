"""``python -m receipts check FILE...``: form, digests and signatures, without any engine."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

from receipts.checks import check_answer
from receipts.encode import read_receipt
from receipts.errors import VERDICTS, KtcError, worst
from receipts.identity import question_id, receipt_id
from receipts.sign import check_signatures

_HELP = """Check receipts without rerunning them: their form, their digests, and their signatures.

Exit codes: 0 all hold, 3 unreadable file, 11 malformed, 12 signature,
13 unverifiable (another version), 14 limit; of several files the gravest.
Whether the answer is the model's takes an engine: kinetic verify-receipt.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may be no valid text
    options = _parser().parse_args(arguments)
    findings = [_examine(path) for path in options.files]
    for finding in findings:
        print(json.dumps(finding) if options.json else _sentence(finding))
    return worst(finding["exit_code"] for finding in findings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m receipts")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plain = argparse.RawDescriptionHelpFormatter
    check = commands.add_parser("check", help="form, digests and signatures", description=_HELP, formatter_class=plain)
    check.add_argument("files", nargs="+", metavar="FILE", help="a receipt, JSON or CBOR")
    check.add_argument("--json", action="store_true", help="one JSON object per file")
    return parser


def _examine(path: str) -> dict[str, Any]:
    """Everything one file shows, as plain values."""
    try:
        return {"file": path, "exit_code": 0, "name": "CONSISTENT"} | _check(path)
    except KtcError as error:
        return {"file": path, "exit_code": error.exit_code, "name": error.name, "message": str(error)}
    except Exception as error:  # a fault of this program: said in a line, and never exit code 0
        return {"file": path, "exit_code": 1, "name": "FAULT", "message": f"internal fault: {error!r}"}


def _check(path: str) -> dict[str, Any]:
    record, entries = read_receipt(path)
    signers = check_signatures(record, entries)
    check_answer(record)
    return {"receipt_id": receipt_id(record), "question_id": question_id(record), "signers": signers}


def _sentence(finding: dict[str, Any]) -> str:
    if finding["exit_code"]:
        return f"{finding['file']}: {VERDICTS[finding['exit_code']]} ({finding['name']}): {finding['message']}"
    signers = ", ".join(finding["signers"])
    signed = f"signature consistent, signer unknown (key {signers})" if signers else "unsigned"
    return f"{finding['file']}: consistent, not rerun; {signed}; receipt {finding['receipt_id']}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
