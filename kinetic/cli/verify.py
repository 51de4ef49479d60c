"""``kinetic verify``: check bundles whole, and say who signed them."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from kinetic.cli import report_options as shared
from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress, news
from kinetic.errors import UsageError

HELP = "check a bundle whole: every byte, every digest, every signature"

EPILOG = """\
With --derive the weights are made again from what the bundle says that they were made from by
`kinetic quantize`, and every byte is compared. Files are known by their digests.

exit codes: 0 INTACT, 10 DIFFERS (names the first tensor or key), 11 MALFORMED or damaged,
12 SIGNATURE or trust, 13 UNVERIFIABLE here (another version; files missing), 14 LIMIT,
3 unreadable; of several files the gravest: 12, 11, 10, 14, 3, 13, 0

Receipts are checked with `kinetic verify-receipt`.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("verify", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a bundle (.ktc)")
    parser.add_argument("--sha256", action="store_true", help="check the model's SHA-256 too, which takes longer")
    parser.add_argument("--min-release", type=int, default=0, metavar="N", help="refuse releases below N")
    parser.add_argument("--derive", action="append", default=[], metavar="FILE",
                        help="make the weights again from this file, and compare (repeatable)")  # fmt: skip
    shared.add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per file and line")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, and nothing about what is intact")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    if options.key and options.trust is not None:
        raise UsageError("--key and --trust both say whom to trust: give one of them", name="TRUST_TWICE")
    if options.at is not None and not options.key and options.trust is None:
        raise UsageError("--at says when keys are judged: name some with --key or --trust", name="NO_TRUST")
    from kinetic.api.bundle import read_trust
    from receipts.errors import worst

    trust = read_trust(options.key, options.trust)
    return worst(_verify(options, file, trust) for file in options.files)


def _verify(options: Namespace, file: str, trust: Any) -> int:
    from kinetic.api.bundle import verify

    with Progress("verifying", quiet=options.quiet) as bar:
        report = verify(
            file, trust=trust, at=options.at, min_release=options.min_release, sha256=options.sha256, progress=bar
        )
    if options.derive and not report["exit_code"]:
        report = _derive(options, file, report)
    code: int = report["exit_code"]
    if options.json:
        import json

        print(json.dumps({"file": file} | report, ensure_ascii=False), flush=True)
    elif code:
        from receipts.terminal import printable

        message = printable(f"{report['verdict']} ({report['name']}): {report['message']}")
        print(f"{shared.shown(file)}: {message}", file=sys.stderr)
    elif not options.quiet:
        print(f"{shared.shown(file)}: {_findings(report)}", flush=True)
    return code


def _derive(options: Namespace, file: str, report: dict[str, Any]) -> dict[str, Any]:
    """The report of a bundle whose derivation holds, or the refusal."""
    from kinetic.api import derivation

    with (
        Progress("hashing the files", quiet=options.quiet) as hashing,
        Progress("deriving", quiet=options.quiet) as bar,
    ):
        found = derivation.verify(
            file,
            options.derive,
            manifest_digest=report["manifest_digest"],
            on_hash=hashing,
            progress=bar,
            news=None if options.quiet else news,
        )
    return found if found["exit_code"] else report | {"derivation": found}


def _derivation(found: dict[str, Any]) -> str:
    from receipts.terminal import printable

    names = ", ".join(entry["name"] for entry in found["files"])
    return printable(f"  DERIVED: every byte is what {found['tool']} makes of {names} with {found['settings']}")


def _findings(report: dict[str, Any]) -> str:
    leaves, sha256 = report["leaves_checked"], "" if report["sha256_checked"] else "not checked (--sha256 does)"
    parts = ["every section"] + ([f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"] if leaves else [])
    lines = [
        f"INTACT: {' and '.join(parts)}, SHA-256 {sha256 or 'too'}; {report['signature']}",
        f"  {report['bundle_name']}, release {report['release']}, bundle {report['manifest_digest']}",
        *([_derivation(report["derivation"])] if "derivation" in report else []),
        *(f"  warning: {warning}" for warning in report["warnings"]),
    ]
    return "\n".join(lines)
