"""``kinetic gate``: for CI, whether this build still gives the answers and the speeds that a baseline promises."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kinetic.cli import report_options as shared
from kinetic.cli.bench import _ratio
from kinetic.cli.parser import Parser, Subcommands, add_device, add_pack_cache
from kinetic.cli.progress import Progress, news
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from conformance.bench_store import Record
    from conformance.gate import Gate
    from conformance.gate_outcome import Result

HELP = "rerun the receipts of a baseline, and fail if a change moved a bit or lost speed"

EPILOG = """\
`kinetic gate --write -o FILE RECEIPT...` makes a baseline of receipts (files, folders, patterns)
and of measurements (--bench); it reruns nothing. `kinetic gate --baseline FILE` reruns them all,
and compares tokens and digests of logits. A model is found by its hashes, among those named and
those on this machine. Speeds are compared with --bench, on the same kind of machine only.

Each check passes, fails or is skipped (its model or the opening of its prompt isn't here, or its
speed was not measured on such a machine). If nothing passed, or with --strict anything was
skipped, the gate is closed all the same.

exit codes: 0 open; otherwise the gravest of 12 SIGNATURE, 11 MALFORMED or changed receipt,
10 DIFFERS, 14 LIMIT, 1 fault, 3 receipt or baseline missing, 7 slower, 13 UNVERIFIABLE or skipped
"""

FORMS = ("markdown", "junit", "html")


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("gate", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("names", nargs="*", metavar="MODEL|RECEIPT",
                        help="with --baseline: models, by path or name; with --write: receipts")  # fmt: skip
    parser.add_argument("--baseline", metavar="FILE", help="check what this baseline promises")
    parser.add_argument("--write", action="store_true", help="write a baseline of these receipts")
    parser.add_argument("-o", "--output", metavar="FILE", help="where --write puts it")
    parser.add_argument("--bench", metavar="FILE", help="measurements, as of `kinetic bench MODEL --json -o FILE`")
    parser.add_argument("--strict", action="store_true", help="fail if anything was skipped")
    parser.add_argument("--fail-below", type=_ratio, default=1.0, metavar="RATIO",
                        help="the least ratio to a speed of the baseline, but for noise (1.0)")  # fmt: skip
    shared.add_trust(parser)
    _add_machine(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the report as one JSON object")
    group.add_argument("--markdown", metavar="FILE", help="write a report for a pull request, as Markdown")
    group.add_argument("--junit", metavar="FILE", help="write a report as JUnit XML")
    group.add_argument("--html", metavar="FILE", help="write a report to read, all in one file")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(main=main, model=None)


def _add_machine(parser: Parser) -> None:
    group = parser.add_argument_group("rerun")
    group.add_argument("--model", dest="models", action="append", default=[], metavar="PATH",
                       help="a model, as MODEL above (repeatable)")  # fmt: skip
    group.add_argument("--method", choices=("replay", "decode"), default="replay", metavar="M",
                       help="replay, or decode (token by token: slow, the same verdict)")  # fmt: skip
    add_device(group)
    group.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="threads; 0 is one per core")
    add_pack_cache(group)


def main(options: Namespace) -> int:
    from kinetic.attest import foreign_errors

    if options.write == (options.baseline is not None):
        raise UsageError(
            "say what to check with --baseline FILE, or make a baseline with --write -o FILE RECEIPT...",
            name="NO_BASELINE",
        )
    with foreign_errors():
        return _write(options) if options.write else _check(options)


# --- writing a baseline ---


def _write(options: Namespace) -> int:
    given = {"--strict": options.strict, "--model": options.models, "--json": options.json}
    given |= {f"--{form}": getattr(options, form) for form in FORMS}
    for flag, value in given.items():
        if value:
            raise UsageError(f"--write reruns nothing: leave {flag} out", name="NO_RERUN")
    if options.output is None or not (options.names or options.bench):
        raise UsageError("--write needs receipts, or --bench, and a place: -o FILE", name="NO_OUTPUT_FILE")
    from conformance import gate_baseline
    from kinetic.cli.receipt_files import require_writable
    from ktc.files import write_atomic

    require_writable(options.output, *options.names, options.bench)
    table = gate_baseline.make(options.output, options.names, _records(options) or ())
    write_atomic(os.path.realpath(options.output), gate_baseline.to_json(table).encode("utf-8"))
    if not options.quiet:
        counted = f"{len(table['receipts'])} receipts of {len(table['models'])} models, {len(table['bench'])} speeds"
        news(f"{options.output} promises {counted}; nothing was rerun: --baseline does that")
    return 0


def _records(options: Namespace) -> Sequence[Record] | None:
    if options.bench is None:
        return None
    from conformance.gate_bench import read_records

    return read_records(options.bench)


# --- checking one ---


def _check(options: Namespace) -> int:
    if options.output is not None:
        raise UsageError("-o is where --write puts a baseline: reports have flags of their own", name="NO_OUTPUT")
    from conformance import gate_baseline
    from conformance.gate import Gate

    named = [*options.names, *options.models]
    places = shared.require_reports(options, [options.baseline, options.bench or "", *named], FORMS)
    arguments = shared.checker_options(options)
    for name in ("model", "trail"):
        del arguments[name]
    baseline = gate_baseline.read(options.baseline)
    with (
        Progress("hashing the model", quiet=options.quiet) as hashing,
        Progress("rerunning", quiet=options.quiet) as rerunning,
    ):
        gate = Gate(
            baseline,
            models=named,
            records=_records(options),
            below=options.fail_below,
            is_strict=options.strict,
            on_hash=hashing,
            on_rerun=rerunning,
            **arguments,
        )
        _run(options, gate, (hashing, rerunning))
    for path in gate.unused():
        news(f"{path} is the model of no receipt in {options.baseline}")
    result = gate.result()
    _conclude(options, result)
    _write_reports(places, result)
    return result.exit_code


def _run(options: Namespace, gate: Gate, bars: Sequence[Progress]) -> None:
    """A few lines for each failure as soon as it is known."""
    from conformance.gate_outcome import FAILED
    from conformance.gate_report import text_of

    for outcome in gate.run():
        for bar in bars:
            bar.clear()
        if outcome.status == FAILED:
            print("\n".join(text_of(outcome)), file=sys.stderr if options.json else sys.stdout, flush=True)


def _conclude(options: Namespace, result: Result) -> None:
    from conformance import gate_report

    if options.json:
        sys.stdout.write(gate_report.to_json(result))
    else:
        print("\n".join(gate_report.summary(result)))


def _write_reports(places: dict[str, str], result: Result) -> None:
    from conformance import gate_report
    from ktc.files import write_atomic

    forms: dict[str, Any] = {
        "markdown": gate_report.markdown,
        "junit": gate_report.to_junit,
        "html": gate_report.to_page,
    }
    for form, place in places.items():
        write_atomic(place, forms[form](result).encode("utf-8", "backslashreplace"))
