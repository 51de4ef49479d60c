"""What the commands about receipts share: reading one and checking it, writing beside it, and saying what is wrong."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kinetic.errors import FileProblem, UsageError

if TYPE_CHECKING:
    from ktc.errors import KtcError
    from receipts.encode import Receipt
    from receipts.withhold import Opening

Command = Callable[[Namespace], int]


class Loaded(NamedTuple):
    """A receipt file whose form and signatures hold."""

    path: str
    data: bytes
    receipt: Receipt
    signers: list[str]
    """Key ids, in the order of the signatures."""


def said(command: Command) -> Command:
    """The same command; what ``receipts`` and ``ktc`` refuse becomes one line and their exit code."""

    def run(options: Namespace) -> int:
        from ktc.errors import KtcError

        try:
            return command(options)
        except KtcError as error:
            return complain(error)

    return run


def complain(error: KtcError) -> int:
    """One line on standard error; returns the exit code."""
    from receipts.errors import VERDICTS
    from receipts.terminal import printable

    kind = f"{VERDICTS[error.exit_code]} ({error.name}): " if error.exit_code >= 10 else ""
    print(printable(f"kinetic: {kind}{error}"), file=sys.stderr)
    return error.exit_code


def load(path: str, *, answer: bool = True) -> Loaded:
    """Read and check a receipt. Raises any KtcError; the message names the file.

    ``answer``: it must also agree with itself on its answer, which a rerun
    judges only when it has looked at the tokens.
    """
    from receipts.checks import check_answer
    from receipts.encode import read_receipt
    from receipts.sign import check_signatures

    data = read_file(path)
    with about(path):
        receipt = read_receipt(data)
        signers = check_signatures(*receipt)
        if answer:
            check_answer(receipt.record)
        return Loaded(path, data, receipt, signers)


def read_file(path: str) -> bytes:
    """The bytes of a receipt's file. Raises any KtcError; the message names the file, once."""
    from ktc.errors import Malformed
    from receipts import encode

    try:
        return encode.read_file(path)
    except Malformed as error:  # the other errors name it themselves
        raise Malformed(f"{path}: {error}", name=error.name) from error


def load_opening(path: str) -> Opening:
    """Read what shows a withheld prompt. Raises any KtcError; the message names the file, once."""
    from ktc.files import read_bounded
    from receipts.withhold import read_opening

    data = read_bounded(path)
    with about(path):
        return read_opening(data)


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """Errors in here are about this file, and say so."""
    from ktc.errors import KtcError

    try:
        yield
    except KtcError as error:
        raise type(error)(f"{path}: {error}", name=error.name) from error


def require_writable(path: str, *inputs: str | None) -> None:
    """Raise unless a file can be put there that is none of ``inputs``, and no model, key or opening."""
    from kinetic.cli.run_receipt import is_precious

    if path in ("", "-"):
        raise UsageError("-o needs the name of a file", name="NO_OUTPUT_FILE")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileProblem(f"there is no folder {folder} for {path}", name="NO_FOLDER")
    if not os.access(folder, os.W_OK):
        raise FileProblem(f"the folder {folder} can't be written, so {path} can't be", name="READ_ONLY")
    if not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise FileProblem(f"{path} is no regular file: name another one to write to", name="NOT_A_FILE")
    if is_precious(path) or any(name and os.path.exists(name) and os.path.samefile(path, name) for name in inputs):
        raise UsageError(
            f"{path} is an input, a model, a key or an opening: name another file to write to", name="OUTPUT_OVER_INPUT"
        )


def write(path: str, data: bytes, source: str) -> None:
    """Put ``data`` there at one stroke, for no more eyes than could read the file before, or ``source`` if new.

    A receipt holds a prompt: signing or exporting it must not open it to others.
    """
    from ktc.files import write_atomic

    is_new, target = not os.path.exists(path), os.path.realpath(path)
    mode = stat.S_IMODE(os.stat(source if is_new else target).st_mode)
    before = os.umask(0)
    try:
        os.umask((0o777 & ~mode) | (before if is_new else 0))
        write_atomic(target, data)
    finally:
        os.umask(before)
