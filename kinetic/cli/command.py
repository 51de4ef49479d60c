"""The command line as a whole: its parser, and what becomes of errors.

Built on argparse, because start-up time is part of the interface: it costs
20 ms where Typer and the validation library it loads cost 250.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from kinetic.cli import (
    audit,
    bench,
    cache,
    check_output,
    conformance,
    doctor,
    embed,
    export,
    gate,
    imatrix,
    info,
    keygen,
    models,
    pack,
    perplexity,
    pull,
    quantize,
    receipt,
    render,
    repair,
    rerank,
    rm,
    run,
    sign,
    tokenize,
    trace,
    unpack,
    verify,
    verify_receipt,
)
from kinetic.cli.parser import Parser, Subcommands, VersionAction
from kinetic.errors import BROKEN_PIPE, INTERRUPTED, TERMINATED, FileProblem, KineticError, OutOfMemory

DESCRIPTION = "Run language models so that the same question gets the same answer, and prove it later with a receipt."

COMMANDS = (
    *(run, verify_receipt, receipt, audit, trace, keygen),
    *(pack, unpack, verify, sign, repair, export, quantize),
    *(embed, rerank),
    *(info, render, tokenize, pull, models, rm, cache),
    *(bench, doctor, conformance, gate),
    *(perplexity, check_output, imatrix),
)

EXIT_CODES = """\
exit codes:
  0    done, IDENTICAL, or INTACT
  1    internal fault
  2    wrong flags or arguments
  3    file missing or unusable, or output that can't be written
  4    pull failed
  5    not enough memory
  6    prompt longer than the context
  7    slower than `kinetic bench --fail-below` or a baseline of `kinetic gate` allows
  8    the model produced a number that is not finite
  9    licence not accepted
  10   DIFFERS
  11   MALFORMED file, or one this build can't run
  12   SIGNATURE or trust
  13   UNVERIFIABLE here
  14   LIMIT exceeded
  130  interrupted
  141  the reader of the output went away
  143  terminated

Give a flag and its value apart (-n 5), or as --flag=VALUE if the value begins with a dash.
"""

OUTPUT_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def build_parser() -> tuple[Parser, Subcommands]:
    """The whole command line: the parser and its sub-commands by name."""
    parser = Parser("kinetic", description=DESCRIPTION, epilog=EXIT_CODES)
    parser.add_argument("--version", action=VersionAction)
    commands: Subcommands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS:
        command.add(commands)
    return parser, commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; any error of ours becomes one line on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # NumPy's linear algebra is never used here; starting its threads would take a third of NumPy's own start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = _guarded(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a reader that went away can still be told from other faults
        return code
    except BrokenPipeError:
        _drop(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        return _complain(_file_problem(error))


def _guarded(words: list[str]) -> int:
    try:
        _require_output()
        return _run(words)
    except KineticError as error:
        return _complain(error)
    except MemoryError:
        return _complain(OutOfMemory("there is not enough memory: try a smaller model or context"))
    except KeyboardInterrupt:
        return INTERRUPTED


def _require_output() -> None:
    """Streams closed by the caller: nothing runs without the one for answers, and the one for news is optional."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the end
    if sys.stdout is None:
        raise FileProblem("standard output is closed, so there is nowhere to write", name="NO_OUTPUT")


def _run(words: list[str]) -> int:
    _end_cleanly_when_told()
    try:
        return _dispatch(words)
    except SystemExit as leaving:  # argparse leaves so after --help and --version
        return int(leaving.code or 0)


def _end_cleanly_when_told() -> None:
    """SIGTERM ends the program as an exception does, so that no scratch file stays behind."""
    import signal
    import threading

    def leave(*_: object) -> None:
        raise SystemExit(TERMINATED)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)


def _dispatch(words: list[str]) -> int:
    _use_utf8()
    if not words:
        return doctor.welcome()
    parser, commands = build_parser()
    command = commands.choices.get(words[0])
    if command is None:
        parser.parse_args(words)  # --help, --version, or a word that is no command
        return 0
    command.refuse_glued(words[1:])
    # Intermixed: flags may stand between MODEL and PROMPT.
    options = command.parse_intermixed_args(command.join_pairs(words[1:]))
    code: int = options.main(options)
    return code


def _use_utf8() -> None:
    """Text is UTF-8 wherever it goes; whole characters only, and no newline is rewritten."""
    with contextlib.suppress(AttributeError, OSError):  # a replaced stdout may not be able to
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")  # type: ignore[union-attr]


def _complain(error: KineticError) -> int:
    from receipts.terminal import printable  # Not at the top: most commands have nothing to complain of.

    try:  # it may name a file, and a name may hold anything
        print(printable(f"kinetic: {error}"), file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)
    return error.exit_code


def _file_problem(error: OSError) -> FileProblem:
    """What failed: an output stream, which has no file name, or else a file."""
    reason = error.strerror or str(error)
    _drop(sys.stdout)
    if error.filename is None and error.errno in OUTPUT_FAULTS:
        return FileProblem(f"the output can't be written: {reason}", name="NO_OUTPUT")
    return FileProblem(f"{error.filename or 'something'} can't be used: {reason}", name="UNUSABLE")


def _drop(stream: TextIO) -> None:
    # Python flushes its streams once more at exit, and would complain there.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
