"""``python -m ktc verify FILE...`` and ``info FILE``: bundles, checked where no engine is installed."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ktc.canonical import show
from ktc.errors import KtcError

if TYPE_CHECKING:
    from ktc.trust import Trust

_VERIFY = """Check bundles: every byte, every digest, every signature, and that tokenizer
and template are those of the model file.

Exit codes: 0 intact, 3 unreadable file, 11 malformed or damaged, 12 signature,
13 unverifiable (another version), 14 limit; of several files the gravest.
Without --key or --trust a signer is shown, and not judged.
"""

_INFO = """Show what a bundle says it holds. Its parts must agree about where everything is;
their digests are not checked: `verify` does that.
"""

WORDS = {
    0: "INTACT",
    1: "FAULT",
    3: "UNREADABLE",
    11: "MALFORMED",
    12: "SIGNATURE",
    13: "UNVERIFIABLE",
    14: "LIMIT",
}
_WORST_FIRST = (12, 11, 14, 1, 3, 13, 0)

Report = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may be no valid text
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        examine, sentence = (_verifier(options), _verdict) if options.command == "verify" else (_info, _description)
    except KtcError as error:
        if error.name == "BAD_TIME":
            parser.error(str(error))
        print(f"{WORDS[error.exit_code]} ({error.name}): {error}", file=sys.stderr)
        return error.exit_code
    codes: list[int] = []
    for path in options.files:
        report = _examined(examine, path)
        print(json.dumps(report) if options.json else sentence(report), flush=True)
        codes.append(report["exit_code"])
    return min(codes, key=_WORST_FIRST.index)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ktc")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    plain = argparse.RawDescriptionHelpFormatter
    verify = commands.add_parser("verify", help="check bundles whole", description=_VERIFY, formatter_class=plain)
    verify.add_argument("files", nargs="+", metavar="FILE", help="a bundle (.ktc)")
    whom = verify.add_mutually_exclusive_group()
    whom.add_argument("--key", action="append", default=[], metavar="K", help="a public key that must have signed")
    whom.add_argument("--trust", metavar="F", help="a trust file that says who must have signed")
    verify.add_argument("--at", metavar="TIME", help="judge keys at this time, as 2026-03-14T15:09:26Z; default: now")
    verify.add_argument("--min-release", type=int, default=0, metavar="N", help="refuse releases below N")
    verify.add_argument("--sha256", action="store_true", help="check the model file's SHA-256 too")
    verify.add_argument("--json", action="store_true", help="one JSON object per file")
    info = commands.add_parser("info", help="show what bundles hold", description=_INFO, formatter_class=plain)
    info.add_argument("files", nargs="+", metavar="FILE", help="a bundle (.ktc)")
    info.add_argument("--json", action="store_true", help="one JSON object per file")
    return parser


def _examined(look: Callable[[str], Report], path: str) -> Report:
    """``look``, its refusals as plain values too."""
    try:
        return {"file": path, "exit_code": 0, "name": "INTACT"} | look(path)
    except KtcError as error:
        damage = getattr(error, "damage", None)
        refusal = {"file": path, "exit_code": error.exit_code, "name": error.name, "message": str(error)}
        return refusal | ({"damage": damage.as_json()} if damage else {})
    except Exception as error:  # a fault of this program: said in a line, and never exit code 0
        return {"file": path, "exit_code": 1, "name": "FAULT", "message": f"internal fault: {error!r}"}


def _verifier(options: argparse.Namespace) -> Callable[[str], Report]:
    from ktc.verify import verify

    trust, at = _trust(options)

    def look(path: str) -> Report:
        progress = _Bar(path) if sys.stderr.isatty() else None
        try:
            findings = verify(
                path, trust=trust, at=at, min_release=options.min_release, sha256=options.sha256, progress=progress
            )
        finally:
            if progress:
                progress.clear()
        return findings.as_json()

    return look


def _trust(options: argparse.Namespace) -> tuple[Trust | None, int | None]:
    """Whom to trust, by key files or a trust file, and at what time."""
    if not (options.key or options.trust or options.at):
        return None, None
    from ktc import keys, trust

    at = trust.parse_time(options.at) if options.at else None
    if options.trust:
        return trust.read_trust(options.trust), at
    named: dict[str, bytes] = {}
    for path in options.key:
        name = os.path.basename(path).removesuffix(".pub")
        named[path if name in named else name] = keys.read_public_key(path)
    return trust.pinned(named, "bundle") if named else None, at


class _Bar:
    """Per cent done, on the terminal."""

    def __init__(self, path: str) -> None:
        self.name, self.shown = _shown(os.path.basename(path)), -1

    def __call__(self, done: int, total: int) -> None:
        share = 100 * done // max(total, 1)
        if share != self.shown:
            self.shown = share
            print(f"\r{self.name}: {share} %", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _info(path: str) -> Report:
    from ktc.reader import judge, open_bundle

    with open_bundle(path) as bundle:
        judge(bundle, None, 0, 0)
        assert bundle.standing is not None
        return {
            "manifest_digest": bundle.manifest_digest,
            "size": bundle.status.st_size,
            "manifest": bundle.manifest,
            "signers": bundle.signers,
            "signature": bundle.standing.sentence,
            "warnings": bundle.warnings,
        }


def _verdict(report: Report) -> str:
    if report["exit_code"]:
        return _refusal(report)
    parts = ["every section intact"]
    if report["leaves_checked"]:
        parts.append(f"{report['leaves_checked']} {'leaf' if report['leaves_checked'] == 1 else 'leaves'} intact")
    parts.append(f"SHA-256 {'intact' if report['sha256_checked'] else 'not checked'}")
    head = f"{_shown(report['file'])}: INTACT: {', '.join(parts)}; {report['signature']}"
    return "\n".join([f"{head}; bundle {report['manifest_digest']}", *_warnings(report)])


def _description(report: Report) -> str:
    if report["exit_code"]:
        return _refusal(report)
    manifest = report["manifest"]
    lines = [
        f"{_shown(report['file'])}: {manifest['name']}, release {manifest['release']}, {report['size']:,} bytes",
        f"  bundle        {report['manifest_digest']}",
        f"  architecture  {manifest['architecture']}",
        f"  model file    {_shown(manifest['file'])}, joined from {len(manifest['sources']) or 1}",
        f"  signature     {report['signature']}",
    ]
    lines += [
        f"  section       {section['name']} ({section['kind']}): {section['length']:,} bytes at {section['offset']:,}"
        for section in manifest["sections"]
    ]
    return "\n".join([*lines, *_warnings(report), "  digests not checked: python -m ktc verify does that"])


def _shown(name: str) -> str:
    """A file's name that cannot steer a terminal."""
    return name if name.isprintable() else show(name, 200)


def _warnings(report: Report) -> list[str]:
    return [f"  warning: {warning}" for warning in report["warnings"]]


def _refusal(report: Report) -> str:
    return f"{_shown(report['file'])}: {WORDS[report['exit_code']]} ({report['name']}): {report['message']}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
