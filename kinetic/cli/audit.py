"""``kinetic audit``: verify many receipts, each model loaded once, and report on them."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kinetic.cli import report_options as shared
from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress, news
from kinetic.errors import INTERRUPTED, UsageError

if TYPE_CHECKING:
    from kinetic.api.audit import Audit
    from receipts.report.rows import Report, Row

HELP = "verify many receipts, each model loaded once, and report on them"

EPILOG = f"""\
Of a folder all *.json and *.cbor count, further down too; hidden files do not. Skipped,
and named, are only files that are surely something else: openings, JSON reports, audit states
and baselines of kinetic, DSSE and in-toto envelopes, SARIF, COSE messages, sigstore bundles.
All others count as receipts: an empty or broken one is MALFORMED, one too large a LIMIT.

Ctrl-C loses nothing: the same command goes on where it was.

{shared.EXIT_CODES}"""

FINE = ("IDENTICAL", "NOT_RERUN")
"""Words of rows that need no line of their own."""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("audit", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("names", nargs="+", metavar="DIR|FILE", help="a folder, a file, or a pattern in quotes")
    group = parser.add_argument_group("sample and state")
    group.add_argument("--sample", type=shared.as_argument(_parse_size), metavar="N|SHARE",
                       help="rerun only so many (20, or 5%%), chosen by chance, and say what that finds")  # fmt: skip
    group.add_argument("--sample-seed", type=shared.as_argument(_parse_seed), metavar="HEX",
                       help="choose them as an earlier audit did, whose report names this")  # fmt: skip
    group.add_argument("--state", metavar="FILE", help="keep what was found in this file, also when all is done")
    shared.add_trust(parser)
    shared.add_machine(parser)
    shared.add_reports(parser, "print the report as one JSON object")
    parser.set_defaults(main=main)


def _parse_size(text: str) -> Any:
    from receipts.audit import parse_size

    return parse_size(text)


def _parse_seed(text: str) -> bytes:
    from receipts.audit import parse_seed

    return parse_seed(text)


def main(options: Namespace) -> int:
    if options.sample_seed is not None and options.sample is None:
        raise UsageError("--sample-seed says which ones a sample holds: say how many with --sample", name="NO_SAMPLE")
    places = shared.require_reports(options, options.names)
    _require_apart(options, places)
    arguments = shared.checker_options(options)
    from kinetic.api.audit import Audit
    from receipts.errors import worst

    with (
        Progress("checking", quiet=options.quiet) as checking,
        Progress("hashing the model", quiet=options.quiet) as hashing,
        Progress("rerunning", quiet=options.quiet) as rerunning,
    ):
        audit = Audit(
            options.names,
            sample=options.sample,
            sample_seed=options.sample_seed,
            state=_state(options),
            keep_state=options.state is not None,
            on_check=checking,
            on_hash=hashing,
            on_rerun=rerunning,
            **arguments,
        )
        try:
            for row in audit.run():
                for bar in (checking, hashing, rerunning):
                    bar.clear()
                _show(options, row)
        except KeyboardInterrupt:
            _say_how_to_go_on(audit)
            return INTERRUPTED
    report = audit.report()
    _conclude(options, audit, report)
    shared.write_reports(places, report)
    return worst(row.verdict.exit_code for row in report.rows)


def _require_apart(options: Namespace, places: Mapping[str, str]) -> None:
    """What is written is none of what is audited, and each of it a file of its own. Raises UsageError, FileProblem."""
    outputs = {f"--{form}": place for form, place in places.items()}
    if options.state is not None:
        outputs["--state"] = os.path.realpath(options.state)
        if outputs["--state"] in places.values():
            raise UsageError("a report can't be the state of the audit too: name another file", name="REPORT_TWICE")
    if not outputs:
        return
    from kinetic.attest import foreign_errors
    from receipts.audit import find_files, is_among

    with foreign_errors():
        sources = find_files(options.names)
    for flag, place in outputs.items():
        if is_among(place, sources, options.names):
            raise UsageError(
                f"{shared.shown(place)} is among the files to audit: name another file for {flag}", name="OVER_INPUT"
            )


def _state(options: Namespace) -> Any:
    if options.state is not None:
        return options.state
    from kinetic.api.audit import default_state

    seed = options.sample_seed.hex() if options.sample_seed else ""
    path = default_state(options.names, options.model, options.device, options.method, options.sample, seed)
    if path is None and not options.quiet:
        news("the cache folder can't be written, so an interrupted audit starts anew: --state names another place")
    return path


def _say_how_to_go_on(audit: Audit) -> None:
    found = f"kinetic: interrupted with {audit.settled} receipts settled"
    print(f"\n{found}: {'the same command goes on from there' if audit.is_resumable else 'nothing was kept'}",
          file=sys.stderr)  # fmt: skip


def _show(options: Namespace, row: Row) -> None:
    """A line for a receipt that is not as it should be, as soon as that is known."""
    from receipts.report.rows import word

    if word(row.verdict) not in FINE:
        stream = sys.stderr if options.json else sys.stdout
        print(f"{shared.shown(row.file)}: {shared.sentence(row)}", file=stream, flush=True)


def _conclude(options: Namespace, audit: Audit, report: Report) -> None:
    if options.json:
        from receipts.report import to_json

        sys.stdout.write(to_json(report))
        return
    print("\n".join(_table(audit, report)))


def _table(audit: Audit, report: Report) -> Iterator[str]:
    """Counts by verdict, the name of every receipt that is not identical, and what a sample says."""
    from receipts.report.rows import counts, headline, word

    table = counts(report.rows)
    yield headline(table)
    for kind, count in table.items():
        if count == 0:
            continue
        names = [shared.shown(row.file) for row in report.rows if word(row.verdict) == kind]
        shown = [""] if kind in FINE else names
        yield f"  {kind:<12} {count:>7,}  {shown[0]}".rstrip()
        yield from (f"  {'':<12} {'':>7}  {name}" for name in shown[1:])
    beginnings = sum(row.verdict.is_prefix for row in report.rows if word(row.verdict) == "IDENTICAL")
    if beginnings:
        yield f"{beginnings:,} of the identical ones were interrupted: only the beginning of an answer was compared."
    noted = sum(bool(row.verdict.notes) for row in report.rows if word(row.verdict) == "IDENTICAL")
    if noted:
        yield f"{noted:,} of the identical ones have a note: --json or --html shows it."
    kept = sum(row.is_kept for row in report.rows)
    if kept:
        yield f"{kept:,} of these verdicts are those of an earlier run."
    for name, value in audit.sample_facts():
        yield f"{name}: {value}"
    if audit.skipped:
        yield f"skipped: not a receipt: {len(audit.skipped):,} ({', '.join(map(shared.shown, audit.skipped))})"
