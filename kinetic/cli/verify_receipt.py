"""``kinetic verify-receipt``: rerun answers and say whether they are the model's, to the token."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from kinetic.cli import report_options as shared
from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.api.verify import Checker
    from receipts.report.rows import Report, Row

HELP = "rerun an answer and say whether this model gives it, to the token"


def add(commands: Subcommands) -> None:
    description = HELP.capitalize() + "."
    parser = commands.add_parser("verify-receipt", help=HELP, description=description, epilog=shared.EXIT_CODES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a receipt, JSON or CBOR")
    parser.add_argument("--opening", metavar="FILE", help="what shows a prompt that the receipt withholds")
    parser.add_argument(
        "--challenge", type=shared.as_argument(_parse_challenge), metavar="HEX", help="the receipt must answer this"
    )
    shared.add_trust(parser)
    shared.add_machine(parser)
    shared.add_reports(parser, "print one JSON object per file and line")
    parser.set_defaults(main=main)


def _parse_challenge(text: str) -> str:
    from receipts.checks import parse_challenge

    return parse_challenge(text)


def main(options: Namespace) -> int:
    if options.opening is not None and len(options.files) > 1:
        raise UsageError("an opening is that of one receipt: verify that one alone", name="ONE_OPENING")
    places = shared.require_reports(options, [*options.files, options.opening or ""])
    arguments = shared.checker_options(options) | {"challenge": options.challenge, "opening": _opening(options.opening)}
    from kinetic.api.verify import Checker
    from receipts.errors import worst

    with (
        Progress("hashing the model", quiet=options.quiet) as hashing,
        Progress("rerunning the answer", quiet=options.quiet) as rerunning,
        Checker(**arguments, on_hash=hashing, on_rerun=rerunning) as checker,
    ):
        rows = [_verify(options, checker, file, (hashing, rerunning)) for file in options.files]
        shared.write_reports(places, _report(options, checker, rows))
    return worst(row.verdict.exit_code for row in rows)


def _opening(path: str | None) -> Any:
    if path is None:
        return None
    from kinetic.attest import foreign_errors
    from kinetic.cli.receipt_files import load_opening

    with foreign_errors():
        return load_opening(path)


def _verify(options: Namespace, checker: Checker, file: str, bars: tuple[Progress, ...]) -> Row:
    from kinetic.api.verify import check_file

    row = check_file(checker, file)
    for bar in bars:
        bar.clear()
    if options.json:
        import json

        from receipts.report import json_row

        print(json.dumps(json_row(row), ensure_ascii=False), flush=True)
    elif len(options.files) > 1:
        print(f"{shared.shown(file)}: {shared.sentence(row)}", flush=True)
    else:
        print(shared.sentence(row), file=sys.stdout if row.verdict.exit_code in (0, 10) else sys.stderr)
    return row


def _report(options: Namespace, checker: Checker, rows: list[Row]) -> Report:
    from receipts.report.rows import Report

    return Report(rows, "Verification of receipts", checker.facts())
