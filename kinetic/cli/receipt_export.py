"""``kinetic receipt export``: a receipt in the envelope of another tool."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from kinetic.cli.parser import NO_PACK_CACHE, Subcommands, add_device, placed
from kinetic.cli.progress import Progress, news
from kinetic.cli.receipt_files import Loaded, about, load, load_opening, require_writable, said, write
from kinetic.cli.report_options import shown
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from ktc.signature import KeyPair
    from ktc.trust import Trust
    from receipts.export import Verification

HELP = "write a receipt in a format of other tools"

EPILOG = """\
formats:
  dsse    DSSE envelope of the canonical CBOR. Holds the receipt's own signatures, so it
          needs no key; --sign adds one
  intoto  in-toto Statement v1 about the answer's text, in a DSSE envelope; needs --sign
  cose    COSE_Sign1 with CWT claims, for SCITT transparency services; needs --sign
  vsa     SLSA Verification Summary v1, in a DSSE envelope; needs --sign. The receipt is
          rerun first, and PASSED or FAILED is what the rerun found

exit codes: 0 written; with vsa that of the verdict: 0 IDENTICAL, written as PASSED, and 10
DIFFERS, written as FAILED. Nothing is written of what is MALFORMED (11), not soundly signed
(12), UNVERIFIABLE (13) or over a LIMIT (14).
"""

FORMATS = ("dsse", "intoto", "cose", "vsa")
ONLY_FOR = {
    "cose": ("issuer",),
    "vsa": ("model", "key", "trust", "opening", "gpu_layers", "device", "threads", "no_pack_cache", "quiet"),
}
"""Flags that make sense for one format alone."""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("export", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    parser.add_argument("format", choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("file", metavar="FILE", help="a receipt, JSON or CBOR")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="where it goes")
    parser.add_argument("--sign", metavar="KEY", help="the secret key file to sign with")
    parser.add_argument("--issuer", metavar="URI", help="cose: who signs; by default the key itself, as a did:key")
    parser.add_argument("--model", metavar="PATH", help="vsa: the model; by default it is found by the hashes")
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument("--key", action="append", metavar="PUB", help="vsa: a public key to trust (repeatable)")
    whom.add_argument("--trust", metavar="FILE", help="vsa: a trust file")
    parser.add_argument("--opening", metavar="FILE", help="vsa: the opening of a withheld prompt")
    add_device(parser, only_for="vsa")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="vsa: threads; by default one per core")
    parser.add_argument("--no-pack-cache", action="store_true", default=None, help=f"vsa: {NO_PACK_CACHE}")
    parser.add_argument("-q", "--quiet", action="store_true", help="vsa: no progress")
    parser.set_defaults(main=said(main))


def main(options: Namespace) -> int:
    _require_sense(options)
    require_writable(options.output, options.file, options.trust)
    loaded, pair = load(options.file, answer=options.format != "vsa"), _key(options)
    if options.format == "vsa":
        return _summarise(options, loaded, _needed(pair))
    write(options.output, _exported(options, loaded, pair), options.file)
    print(_written(options, loaded))
    return 0


def _require_sense(options: Namespace) -> None:
    for kind, names in ONLY_FOR.items():
        for name in names:
            value = getattr(options, name)
            if options.format != kind and value is not None and value is not False:
                raise UsageError(f"--{name.replace('_', '-')} is for {kind} alone", name="BAD_ARGUMENTS")
    if options.issuer is not None and (not options.issuer.strip() or not options.issuer.isprintable()):
        raise UsageError("--issuer is a URI of who signs, in UTF-8: leave it out, or name one", name="BAD_ISSUER")
    if options.format != "dsse" and options.sign is None:
        raise UsageError(f"{options.format} is signed anew: name a secret key with --sign", name="NO_KEY")


def _key(options: Namespace) -> KeyPair | None:
    from ktc.keys import read_secret_key

    return None if options.sign is None else read_secret_key(options.sign)


def _needed(pair: KeyPair | None) -> KeyPair:
    if pair is None:
        raise UsageError("name a secret key with --sign", name="NO_KEY")
    return pair


def _exported(options: Namespace, loaded: Loaded, pair: KeyPair | None) -> bytes:
    from ktc.errors import SignatureProblem
    from receipts import export
    from receipts.rewrite import with_signature

    if options.format == "intoto":
        return export.intoto(loaded.receipt, _needed(pair))
    if options.format == "cose":
        return export.cose(loaded.receipt.record, _needed(pair), options.issuer or "")
    receipt = with_signature(loaded.receipt, pair) if pair else loaded.receipt
    if not receipt.signatures:
        raise SignatureProblem(f"{options.file} is not signed: add a signature with --sign KEY", name="UNSIGNED")
    return export.dsse(receipt)


def _written(options: Namespace, loaded: Loaded) -> str:
    from receipts.identity import receipt_id

    return f"{shown(options.output)}: {options.format}, receipt {receipt_id(loaded.receipt.record)}"


# The one export that needs the engine


def _summarise(options: Namespace, loaded: Loaded, pair: KeyPair) -> int:
    """Rerun the receipt, and write what came of it if it could be judged."""
    from receipts import export
    from receipts.errors import DIFFERS, IDENTICAL, VERDICTS
    from receipts.terminal import printable

    made = _verify(options, loaded)
    verdict = made.verdict
    if verdict.exit_code not in (IDENTICAL, DIFFERS):
        word = VERDICTS.get(verdict.exit_code, "FAULT")
        message = f"kinetic: {word} ({verdict.name}): nothing is written: {verdict.sentence}"
        print(printable(message), file=sys.stderr)
        return verdict.exit_code
    write(options.output, export.summary(loaded.receipt.record, made, pair), options.file)
    result = "PASSED" if verdict.exit_code == IDENTICAL else "FAILED"
    print(printable(f"{_written(options, loaded)}: {result}: {verdict.sentence}"))
    return verdict.exit_code


def _verify(options: Namespace, loaded: Loaded) -> Verification:
    import time
    from hashlib import sha256

    from kinetic._version import __version__
    from kinetic.api.verify import verify_receipt
    from ktc.signature import key_id
    from receipts.export import Verification

    trust, trust_sha256 = _trust(options)
    opening = None if options.opening is None else load_opening(options.opening)
    with (
        Progress("hashing the model", quiet=options.quiet) as hashing,
        Progress("rerunning the answer", quiet=options.quiet) as rerunning,
    ):
        verdict = verify_receipt(
            loaded.data,
            options.model,
            **placed(options),
            threads=options.threads or 0,
            pack_cache=not options.no_pack_cache,
            trust=trust,
            opening=opening,
            on_hash=hashing,
            on_rerun=rerunning,
            progress=None if options.quiet else news,
        )
    return Verification(
        verdict,
        file_sha256=sha256(loaded.data).hexdigest(),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        program=__version__,
        pinned=[key_id(key.public) for key in trust.keys] if trust and options.key else [],
        trust_sha256=trust_sha256,
    )


def _trust(options: Namespace) -> tuple[Trust | None, str]:
    """Whom to trust, and the SHA-256 of the very bytes that said so."""
    from hashlib import sha256

    from ktc import limits
    from ktc.files import read_guarded
    from ktc.trust import parse_trust
    from receipts.sign import read_trusted

    if options.trust is None:
        return read_trusted(options.key or (), None), ""
    data = read_guarded(options.trust, limits.MAX_TRUST_FILE_BYTES)
    with about(options.trust):
        return parse_trust(data), sha256(data).hexdigest()
