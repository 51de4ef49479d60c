"""What ``verify-receipt`` and ``audit`` share: flags for trust, machine and reports, and what becomes of them."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Parser, add_device, add_experts, add_pack_cache, placed
from kinetic.cli.progress import news
from kinetic.cli.run_receipt import is_precious
from kinetic.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from receipts.report.rows import Report, Row

FORMS = ("junit", "sarif", "html")

EXIT_CODES = """\
exit codes: 0 IDENTICAL, 10 DIFFERS (names the first token), 11 MALFORMED, 12 SIGNATURE or trust,
13 UNVERIFIABLE here (model missing or another, other numerics profile), 14 LIMIT, 3 unreadable;
of several files the gravest: 12, 11, 10, 14, 1, 3, 13, 0
"""


def add_trust(parser: Parser) -> None:
    group = parser.add_argument_group(
        "trust", "Without a key or a trust file no signer is known, and none is asked for."
    )
    group.add_argument("--key", action="append", default=[], metavar="FILE", help="a public key to trust (repeatable)")
    group.add_argument("--trust", metavar="FILE", help="a trust file: whom to trust, since when, until when")
    group.add_argument("--at", type=as_argument(_parse_time), metavar="TIME", help="judge keys at this time, not now")


def add_machine(parser: Parser) -> None:
    group = parser.add_argument_group("rerun")
    group.add_argument("--model", metavar="PATH", help="the model; by default it is found by the receipts' hashes")
    group.add_argument("--lora", action="append", default=[], metavar="FILE",
                       help="an adapter that receipts name (repeatable); found by hashes too")  # fmt: skip
    group.add_argument(
        "--method", choices=("replay", "decode"), default="replay", metavar="M",
        help="replay (reads the answer in batches), or decode (token by token: slow, the same verdict)",
    )  # fmt: skip
    add_device(group)
    add_experts(group)
    group.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="threads; 0 is one per core")
    add_pack_cache(group)


def add_reports(parser: Parser, json_help: str) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help=json_help)
    group.add_argument("--junit", metavar="FILE", help="write a report as JUnit XML")
    group.add_argument("--sarif", metavar="FILE", help="write a report as SARIF")
    group.add_argument("--html", metavar="FILE", help="write a report to read, all in one file")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress")


def as_argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of values for argparse, which says what is wrong with one in the reader's own words."""

    def value(text: str) -> Any:
        from ktc.errors import KtcError

        try:
            return read(text)
        except KtcError as error:
            raise ArgumentTypeError(str(error)) from None

    return value


def _parse_time(text: str) -> int:
    from ktc.trust import parse_time

    return parse_time(text)


def checker_options(options: Namespace) -> dict[str, Any]:
    """What the flags say, as arguments of ``kinetic.api.verify.Checker``. Reads the files of keys and trust."""
    if options.key and options.trust is not None:
        raise UsageError("--key and --trust both say whom to trust: give one of them", name="TRUST_TWICE")
    if options.at is not None and not options.key and options.trust is None:
        raise UsageError("--at says when keys are judged: name some with --key or --trust", name="NO_TRUST")
    from kinetic.attest import foreign_errors
    from receipts.sign import read_trusted

    with foreign_errors():
        trust = read_trusted(options.key, options.trust)
    return {
        "model": options.model,
        "adapters": getattr(options, "lora", []),
        **placed(options),
        "threads": options.threads,
        "pack_cache": options.pack_cache,
        "trust": trust,
        "at": options.at,
        "method": options.method,
        "trail": options.html is not None,
        "progress": None if options.quiet else news,
    }


def require_reports(options: Namespace, inputs: Sequence[str], forms: Sequence[str] = FORMS) -> dict[str, str]:
    """Where each report goes, links followed: one that can't or mustn't be written should be known before the work."""
    named = [(form, getattr(options, form)) for form in forms if getattr(options, form) is not None]
    places = [os.path.realpath(path) for _, path in named]
    if len(set(places)) != len(places):
        raise UsageError("two reports can't be one file: name another", name="REPORT_TWICE")
    taken = {os.path.realpath(path) for path in _read(options, inputs) if path}
    for (form, path), place in zip(named, places, strict=True):
        _require_place(f"--{form}", path, place)
        if place in taken or is_precious(place):
            raise UsageError(
                f"{path} is what is read, a model, a key or the like: name another file for --{form}", name="OVER_INPUT"
            )
    return {form: place for (form, _), place in zip(named, places, strict=True)}


def _read(options: Namespace, inputs: Sequence[str]) -> list[str | None]:
    return [*inputs, *options.key, options.trust, options.model, *getattr(options, "lora", [])]


def _require_place(flag: str, path: str, place: str) -> None:
    folder = os.path.dirname(place)
    if path in ("", "-") or os.path.isdir(place):
        raise UsageError(f"{flag} needs the name of a file", name="NO_REPORT")
    if os.path.exists(place) and not os.path.isfile(place):
        raise FileProblem(f"{path} is no regular file: name another one for {flag}", name="NOT_A_FILE")
    if not os.path.isdir(folder):
        raise FileProblem(f"there is no folder {folder} for the report", name="NO_FOLDER")
    if not os.access(folder, os.W_OK):
        raise FileProblem(f"the folder {folder} can't be written, so the report can't be", name="READ_ONLY")


def write_reports(places: Mapping[str, str], report: Report) -> None:
    """The reports that were asked for, each whole or not at all, at the places that ``require_reports`` found."""
    if not places:
        return
    from kinetic.attest import foreign_errors
    from ktc.files import write_atomic
    from receipts.report import to_html, to_junit, to_sarif

    forms = {"junit": to_junit, "sarif": to_sarif, "html": to_html}
    with foreign_errors():
        for form, place in places.items():
            write_atomic(place, forms[form](report).encode("utf-8"))


def shown(path: str) -> str:
    """A file's name in a line for people: it may hold anything."""
    from ktc.canonical import show

    return path if path.isprintable() else show(path, 200)


def sentence(row: Row) -> str:
    """A verdict in one line: the word, the reason's name, the sentence, and what the signatures are worth."""
    from receipts.report.rows import reason, word
    from receipts.terminal import printable

    verdict = row.verdict
    name = f" ({why})" if (why := reason(verdict)) else ""
    signature = "" if verdict.signature in ("", "unsigned") else f"; {verdict.signature}"
    return printable(f"{word(verdict)}{name}: {verdict.sentence}{signature}")
