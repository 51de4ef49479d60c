"""``kinetic verify-receipt``: rerun an answer and say whether it is the model's, to the token."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress, news

if TYPE_CHECKING:
    from receipts.verify import Verdict

HELP = "rerun an answer and say whether this model gives it, to the token"

EPILOG = """\
exit codes: 0 IDENTICAL, 10 DIFFERS (names the first token), 11 MALFORMED, 12 SIGNATURE,
13 UNVERIFIABLE here (model missing or another, other numerics profile), 14 LIMIT
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("verify-receipt", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("file", metavar="FILE", help="a receipt, JSON or CBOR")
    parser.add_argument("--model", metavar="PATH", help="the model; by default it is found by the receipt's hashes")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or reference (slow, defines every bit)")
    parser.add_argument("-t", "--threads", type=int, default=0, metavar="N", help="threads; 0 is one per core")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.api.verify import verify_receipt

    with (
        Progress("hashing the model", quiet=options.quiet) as hashing,
        Progress("rerunning the answer", quiet=options.quiet) as rerunning,
    ):
        verdict = verify_receipt(
            options.file,
            options.model,
            device=options.device,
            threads=options.threads,
            on_hash=hashing,
            on_rerun=rerunning,
            progress=None if options.quiet else news,
        )
    _print(options, verdict)
    return verdict.exit_code


def _print(options: Namespace, verdict: Verdict) -> None:
    from receipts.errors import VERDICTS

    word = VERDICTS.get(verdict.exit_code, "FAULT")
    if options.json:
        import json

        print(json.dumps({"file": options.file, "verdict": word} | verdict._asdict(), ensure_ascii=False))
        return
    reason = "" if verdict.name == word else f" ({verdict.name})"
    stream = sys.stdout if verdict.exit_code in (0, 10) else sys.stderr
    print(f"{word}{reason}: {verdict.sentence}", file=stream)
