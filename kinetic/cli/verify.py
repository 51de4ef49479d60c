"""``kinetic verify``: check bundles whole, and say who signed them."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from kinetic.cli import report_options as shared
from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress
from kinetic.errors import UsageError

HELP = "check a bundle whole: every byte, every digest, every signature"

EPILOG = """\
exit codes: 0 INTACT, 11 MALFORMED or damaged, 12 SIGNATURE or trust, 13 UNVERIFIABLE here
(another version), 14 LIMIT, 3 unreadable; of several files the gravest: 12, 11, 14, 3, 13, 0

Receipts are checked with `kinetic verify-receipt`.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("verify", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a bundle (.ktc)")
    parser.add_argument("--sha256", action="store_true", help="check the model's SHA-256 too, which takes longer")
    parser.add_argument("--min-release", type=int, default=0, metavar="N", help="refuse releases below N")
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


def _findings(report: dict[str, Any]) -> str:
    leaves, sha256 = report["leaves_checked"], "" if report["sha256_checked"] else "not checked (--sha256 does)"
    parts = ["every section"] + ([f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"] if leaves else [])
    lines = [
        f"INTACT: {' and '.join(parts)}, SHA-256 {sha256 or 'too'}; {report['signature']}",
        f"  {report['bundle_name']}, release {report['release']}, bundle {report['manifest_digest']}",
        *(f"  warning: {warning}" for warning in report["warnings"]),
    ]
    return "\n".join(lines)
