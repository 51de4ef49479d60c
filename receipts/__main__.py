"""``python -m receipts check FILE...``: form, digests, signatures and trust, without any engine."""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ktc.canonical import show
from receipts.checks import check_answer, parse_challenge
from receipts.encode import read_receipt
from receipts.errors import VERDICTS, KtcError, worst
from receipts.identity import question_id, receipt_id
from receipts.sign import check_signatures, judge_signers, read_trusted
from receipts.terminal import printable
from receipts.verify import require_challenge

if TYPE_CHECKING:
    from ktc.trust import Trust

_HELP = """Check receipts without rerunning them: their form, their digests, and their signatures.

Exit codes: 0 all hold, 3 unreadable file, 11 malformed, 12 signature or trust,
13 unverifiable (another version), 14 limit; of several files the gravest.
Whether the answer is the model's takes an engine: kinetic verify-receipt.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may be no valid text
    options = _parser().parse_args(arguments)
    try:
        trust = read_trusted(options.key, options.trust)
    except KtcError as error:  # nothing can be judged then, so no receipt is
        print(printable(f"python -m receipts: {error}"), file=sys.stderr)
        return error.exit_code
    findings = [_examine(path, options, trust) for path in options.files]
    for finding in findings:
        print(json.dumps(finding) if options.json else _sentence(finding))
    return worst(finding["exit_code"] for finding in findings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m receipts", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plain = argparse.RawDescriptionHelpFormatter
    check = commands.add_parser("check", help="form, digests and signatures", description=_HELP, formatter_class=plain)
    check.add_argument("files", nargs="+", metavar="FILE", help="a receipt, JSON or CBOR")
    whom = check.add_mutually_exclusive_group()
    whom.add_argument("--key", action="append", default=[], metavar="FILE", help="a public key to trust (repeatable)")
    whom.add_argument("--trust", metavar="FILE", help="a trust file: whom to trust for what")
    check.add_argument("--at", type=_argument(_parse_time), metavar="TIME", help="judge keys at this time, not now")
    check.add_argument("--challenge", type=_argument(parse_challenge), metavar="HEX", help="must have been answered")
    check.add_argument("--json", action="store_true", help="one JSON object per file")
    return parser


def _argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of values for argparse, which says what is wrong with one in the reader's own words."""

    def value(text: str) -> Any:
        try:
            return read(text)
        except KtcError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value


def _parse_time(text: str) -> int:
    from ktc.trust import parse_time

    return parse_time(text)


def _examine(path: str, options: argparse.Namespace, trust: Trust | None) -> dict[str, Any]:
    """Everything one file shows, as plain values."""
    try:
        return {"file": path, "exit_code": 0, "name": "CONSISTENT"} | _check(path, options, trust)
    except KtcError as error:
        return {"file": path, "exit_code": error.exit_code, "name": error.name, "message": str(error)}
    except Exception as error:  # a fault of this program: said in a line, and never exit code 0
        return {"file": path, "exit_code": 1, "name": "FAULT", "message": f"internal fault: {error!r}"}


def _check(path: str, options: argparse.Namespace, trust: Trust | None) -> dict[str, Any]:
    record, entries = read_receipt(path)
    signers = check_signatures(record, entries)
    standing = judge_signers(signers, trust, int(time.time()) if options.at is None else options.at)
    if options.challenge is not None:
        require_challenge(record, options.challenge)
    check_answer(record)
    return {
        "receipt_id": receipt_id(record),
        "question_id": question_id(record),
        "signers": signers,
        "signature": standing.sentence,
        "is_trusted": standing.is_trusted,
        "warning": standing.warning,
    }


def _sentence(finding: dict[str, Any]) -> str:
    """One line that steers no terminal, whatever files and receipts are called and say."""
    file = finding["file"] if finding["file"].isprintable() else show(finding["file"], 200)
    if finding["exit_code"]:
        return printable(f"{file}: {VERDICTS[finding['exit_code']]} ({finding['name']}): {finding['message']}")
    warning = f"; {finding['warning']}" if finding["warning"] else ""
    signature = f"{finding['signature']}{warning}"
    return printable(f"{file}: consistent, not rerun; {signature}; receipt {finding['receipt_id']}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
