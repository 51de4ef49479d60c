"""The command line of the suite, which ``kinetic conformance`` and ``python -m conformance`` share."""

from __future__ import annotations

import argparse
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic.errors import FileProblem, UsageError, of_code
from ktc.errors import KtcError

if TYPE_CHECKING:
    from conformance.report import Report
    from conformance.setting import Setting
    from conformance.suite import Result

HELP = "prove on this machine that no speed-up changes a bit, with built-in models or with yours"

EPILOG = """\
Without a MODEL everything is tried on small built-in models, offline; with one, the cases that are about models on it.
--only takes names of properties or cases, and patterns: rows, 'rows/llama-mixed/*'. --list lists them.

exit codes: 0 all that was tried holds; 10 a case failed; 13 nothing could be tried, or --strict
and a case was skipped; of --check: 0 it holds and its cases passed, 10 a case had failed,
11 malformed, 12 signature or trust
"""

FORMS = ("junit", "html")
DEVICES = "cpu, reference, opencl[:N], cuda[:N]"
Progress = Callable[[int, int], None]
News = Callable[[str], None]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a model file, or a name from `kinetic models`")
    level = parser.add_mutually_exclusive_group()
    for name, what in (("quick", "a minute at most"), ("full", "every size, thread count, instruction set and format")):
        level.add_argument(f"--{name}", dest="level", action="store_const", const=name, default="normal", help=what)
    parser.add_argument("--only", action="append", default=[], metavar="CASE", help="only these cases (repeatable)")
    parser.add_argument("--list", action="store_true", help="list the cases, and run none")
    parser.add_argument("--strict", action="store_true", help="exit 13 if a case was skipped")
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help=f"one of {DEVICES}; the reference is slow, and defines every bit",
    )
    group.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="threads; 0 is one per core")
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    for name, what in (("markdown", "a table (default)"), ("json", "one JSON object")):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=f"print {what}")
    parser.set_defaults(form="markdown")
    group.add_argument("--junit", metavar="FILE", help="write a report as JUnit XML")
    group.add_argument("--html", metavar="FILE", help="write a report to read, all in one file")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress")
    group = parser.add_argument_group("other engines")
    group.add_argument("--peer", metavar="PATH", help="ask llama.cpp's llama-server and Kinetic the same, beside"
                       " neighbours and under other settings, and count the answers that change")  # fmt: skip
    group.add_argument("--cmd", metavar="CMD", help="judge a program by the vectors, over JSON lines:"
                       " conformance/vectors/README.md")  # fmt: skip
    group = parser.add_argument_group("certificate")
    group.add_argument("--certify", action="store_true", help="write what was found to a certificate, the file of -o")
    group.add_argument("-o", "--output", metavar="FILE", help="where the certificate goes")
    group.add_argument("--sign", metavar="KEY", help="sign the certificate with this secret key")
    group.add_argument("--check", metavar="CERT", help="check a certificate, and run nothing")
    group.add_argument("--key", action="append", default=[], metavar="FILE",
                       help="a key to trust with --check (repeatable)")  # fmt: skip


def execute(options: Namespace, progress: Progress | None = None, news: News | None = None) -> int:
    """Do what the flags say; returns the exit code. Raises KineticError."""
    try:
        _require_sense(options)
        if options.peer is not None or options.cmd is not None:
            return _others(options, progress, news)
        return _check(options) if options.check is not None else _run(options, progress, news)
    except KtcError as error:
        raise of_code(error.exit_code, str(error), error.name) from error


def _require_sense(options: Namespace) -> None:
    if options.certify != (options.output is not None):
        raise UsageError("a certificate takes both --certify and -o FILE", name="NO_OUTPUT_FILE")
    if options.sign is not None and not options.certify:
        raise UsageError("--sign signs a certificate: add --certify -o FILE", name="NOTHING_TO_SIGN")
    if options.key and options.check is None:
        raise UsageError("--key says whom to trust with the certificate of --check", name="NOTHING_TO_CHECK")
    if options.check is not None and (options.models or options.certify):
        raise UsageError("--check runs nothing: leave out models and --certify", name="CHECK_ALONE")
    if options.peer is not None or options.cmd is not None:
        _require_alone(options)
    if options.threads < 0:
        raise UsageError(f"the number of threads is {options.threads}, but must be 0 or more", name="BAD_ARGUMENTS")
    for flag in (*FORMS, "output"):
        _require_place(flag, getattr(options, flag))


def _require_alone(options: Namespace) -> None:
    """Another engine is judged for itself, and only on standard output."""
    given = [name for name in ("peer", "cmd", "check", "output", "junit", "html") if getattr(options, name) is not None]
    if len(given) > 1 or options.list or (options.cmd is not None and options.models):
        raise UsageError(
            "--peer PATH and --cmd CMD go with no other command, nor with report files; --cmd takes no model",
            name="OTHER_ENGINE_ALONE",
        )


def _others(options: Namespace, progress: Progress | None, news: News | None) -> int:
    from conformance import drive, peer

    if options.cmd is not None:
        return drive.execute(options, progress)
    return peer.execute(options, progress, news)


def _require_place(flag: str, name: str | None) -> None:
    """Where output goes should be known to be fine before a minute of work."""
    if name is None:
        return
    folder = os.path.dirname(os.path.realpath(name))
    if name in ("", "-") or os.path.isdir(name):
        raise UsageError(f"--{flag} needs the name of a file", name="NO_OUTPUT_FILE")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise FileProblem(f"{folder} can't be written, so {name} can't be", name="READ_ONLY")


# --- running ---


def _run(options: Namespace, progress: Progress | None, news: News | None) -> int:
    from conformance import suite
    from conformance.report import Report
    from kinetic.api.probe import describe_backend, is_device, usable_cores

    if not is_device(options.device):
        raise UsageError(f"there is no device {options.device}: choose one of {DEVICES}", name="NO_DEVICE")
    models = list(dict.fromkeys(_resolve(model) for model in options.models))
    threads = options.threads or usable_cores()
    describe_backend(options.device, threads)  # what it refuses is a wrong flag, and no failed case
    made = {"level": options.level, "device": options.device, "threads": threads, "models": models, "news": news}
    with suite.opened(**made) as setting:
        chosen = suite.select(setting, options.only)
        if options.list:
            print("\n".join(one.id for one in chosen))
            return 0
        results = list(suite.run(setting, chosen, progress))
        report = Report(results, _facts(setting), suite.exit_code(results, options.strict), bool(options.only))
        certificate = _certificate(setting, results, options) if options.certify else b""
    _write(options, report, certificate)
    return report.exit_code


def _resolve(model: str) -> Path:
    from kinetic.api.probe import find_model

    return find_model(model)


def _facts(setting: Setting) -> list[tuple[str, str]]:
    from conformance import about

    return about.facts(setting)


def _certificate(setting: Setting, results: list[Result], options: Namespace) -> bytes:
    from conformance import about, certificate

    seed = None
    if options.sign is not None:
        from ktc.keys import read_secret_key

        seed = read_secret_key(options.sign).seed
    said = about.certified(setting) | {"only": sorted(set(options.only))}
    return certificate.to_bytes(certificate.build(said, results), seed)


def _write(options: Namespace, report: Report, certificate: bytes) -> None:
    from conformance.report import to_html, to_json, to_junit, to_markdown
    from ktc.files import write_atomic

    for name, form in (("junit", to_junit), ("html", to_html)):
        if (place := getattr(options, name)) is not None:
            write_atomic(place, form(report).encode("utf-8"))
    if options.certify:
        write_atomic(options.output, certificate)
    sys.stdout.write((to_json if options.form == "json" else to_markdown)(report))


# --- checking a certificate ---


def _check(options: Namespace) -> int:
    from conformance import certificate
    from conformance.suite import DIFFERS, UNVERIFIABLE
    from ktc.files import read_bounded
    from ktc.trust import judge

    checked = certificate.check(read_bounded(options.check))
    standing = judge(_trusted(options.key), certificate.SCOPE, checked.signers, int(time.time()))
    said = checked.certificate
    print(_sentence(options, said, standing.sentence))
    if said["failed"]:
        return DIFFERS
    return UNVERIFIABLE if not said["passed"] or (options.strict and said["skipped"]) else 0


def _trusted(files: list[str]) -> Any:
    from conformance import certificate
    from ktc.keys import read_public_key
    from ktc.trust import pinned

    keys = {os.path.basename(path).removesuffix(".pub"): read_public_key(path) for path in files}
    return pinned(keys, certificate.SCOPE) if files else None


def _sentence(options: Namespace, said: dict[str, Any], signature: str) -> str:
    import json

    from conformance.certificate import certificate_id
    from receipts.terminal import printable

    name = certificate_id(said)
    if options.form == "json":
        rest = {key: value for key, value in said.items() if key != "cases"}
        return json.dumps({"id": name, **rest, "signature": signature})
    tried = f"{said['passed']} passed, {said['failed']} failed, {said['skipped']} skipped"
    tried += f" (only {', '.join(said['only'])})" if said["only"] else ""
    about = f"{said['program']} on {said['device_name']} ({said['profile']}, {said['time']})"
    return printable(f"{about}: {tried}; {signature}; engine {said['engine_id']}; certificate {name}")
