"""The receipt of ``kinetic run``: all that could stand in its way is found before the answer, not after."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kinetic.cli.progress import news
from kinetic.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from kinetic.api import Completion
    from kinetic.attest import Saved
    from ktc.signature import KeyPair

PRECIOUS = re.compile(
    rb"""\A(?:GGUF|\x89KTC\r\n\x1a\n|-----BEGIN |\s*\{\s*"type"\s*:\s*"kinetic-(?:opening|audit-state)")"""
    rb"""|^[ \t]*format[ \t]*=[ \t]*["']kinetic-trust["']""",
    re.MULTILINE,
)
"""How files begin that no output replaces: models, bundles, keys, openings, states of audits, trust files."""


class Keeping(NamedTuple):
    """Where the receipt goes, who signs it, where its opening goes, if it has one, and the certificate it cites."""

    receipt: Path
    key: KeyPair | None
    opening: Path | None
    certificate: str
    """Its name, hex, or ""."""
    engine: str = ""
    """Whose certificate it is."""


def wanted(options: Namespace) -> Keeping | None:
    """The receipt that was asked for, if any. Raises UsageError, FileProblem or SignatureProblem."""
    _require_sense(options)
    if options.receipt is None:
        return None
    from kinetic import attest

    receipt = _writable(options.receipt, "receipt")
    adapters = [name for name, _ in options.lora]
    inputs = [options.file or "-", options.sign, options.sign and f"{options.sign}.pub", options.certificate, *adapters]
    if any(_is_same(receipt, name) for name in inputs) or is_precious(receipt):
        raise UsageError(
            f"{receipt} is a key, an opening, or what the answer comes from, a model or the prompt:"
            " name another file for the receipt",
            name="RECEIPT_OVER_INPUT",
        )
    place = None if options.opening is None else _writable(options.opening, "opening")
    opening = attest.opening_path(receipt, place) if options.withhold_prompt else None
    key = None if options.sign is None else attest.read_key(options.sign)
    return Keeping(receipt, key, opening, *_certificate(options))


def _certificate(options: Namespace) -> tuple[str, str]:
    """The certificate that was named, if it is of the engine that will answer, and that engine."""
    if options.certificate is None:
        return "", ""
    from conformance.certificate import cited
    from kinetic.api.opening import choose_device
    from kinetic.api.probe import describe_backend
    from kinetic.attest import foreign_errors
    from ktc.files import read_bounded

    device, _ = choose_device(options.device, None, options.gpu_layers)
    engine = describe_backend(device)["engine_id"]
    with foreign_errors():
        return cited(read_bounded(options.certificate), engine), engine


def save(answer: Completion, keeping: Keeping, *, quiet: bool) -> Saved:
    """Write the receipt, and say where the opening went."""
    certificate = keeping.certificate
    if certificate and answer.receipt()["claims"]["engine_id"] != keeping.engine:
        certificate = ""
        news("the receipt cites no certificate: what answered is that engine with another one beside it")
    saved = answer.save_receipt(keeping.receipt, sign=keeping.key, opening=keeping.opening, certificate=certificate)
    if saved.opening and not quiet:
        news(f"the opening is {saved.opening}: whoever has it can read the prompt, and only they can rerun the receipt")
    return saved


def _require_sense(options: Namespace) -> None:
    given = {
        "--sign": options.sign is not None,
        "--challenge": options.challenge is not None,
        "--commit": options.commit,
        "--withhold-prompt": options.withhold_prompt,
        "--opening": options.opening is not None,
        "--certificate": options.certificate is not None,
    }
    for flag, is_given in given.items():
        if is_given and options.receipt is None:
            raise UsageError(f"{flag} is about the receipt: name a file for that with --receipt", name="NO_RECEIPT")
    if options.opening is not None and not options.withhold_prompt:
        raise UsageError("--opening is where a prompt goes that --withhold-prompt keeps back", name="NO_OPENING")


def _writable(name: str, what: str) -> Path:
    """The name as a path. Raises unless a file can be put there."""
    if name in ("", "-"):
        raise UsageError(
            f"--{what} needs the name of a file, since standard output has the answer", name=f"NO_{what.upper()}"
        )
    path = Path(name).absolute()
    if not path.parent.is_dir():
        raise FileProblem(f"there is no folder {path.parent} for the {what}", name="NO_FOLDER")
    if path.is_dir():
        raise FileProblem(f"{path} is a folder: name a file for the {what}", name="IS_FOLDER")
    if path.exists() and not path.is_file():
        raise FileProblem(f"{path} is no regular file: name another for the {what}", name="NOT_A_FILE")
    if not os.access(path.parent, os.W_OK):
        raise FileProblem(f"the folder {path.parent} can't be written, so the {what} can't be", name="READ_ONLY")
    return Path(name)


def _is_same(path: Path, name: str | None) -> bool:
    """Whether this is the file of that name, whatever its own; "-" is standard input."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        other = os.fstat(sys.stdin.fileno()) if name == "-" else os.stat(name or "")
        return path.is_file() and os.path.samestat(path.stat(), other)
    return False


def is_precious(path: str | os.PathLike[str]) -> bool:
    """Whether a file is there that begins as one of those that no output replaces."""
    if not os.path.isfile(path):
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return PRECIOUS.search(file.read(4096)) is not None
    return False
