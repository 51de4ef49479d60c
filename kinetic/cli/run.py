"""``kinetic run``: ask a model, see the answer as it comes, keep a receipt of it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic.cli.parser import Subcommands
from kinetic.cli.progress import Progress, news
from kinetic.cli.run_options import add_options, asked_options, read_prompt
from kinetic.errors import INTERRUPTED, FileProblem, UsageError

if TYPE_CHECKING:
    from kinetic.api import Completion, Model, Stream

HELP = "ask a model, and keep a receipt of its answer"

EPILOG = """\
The prompt is the PROMPT argument, -p, -f, or standard input, used as it is: a final
newline counts, and \\n stays two characters unless -e is given. A model with a chat
template gets it as the user's message; --raw completes the text instead. Where no seed
is given a fresh one is drawn and shown. Ctrl-C ends the answer after the current token,
and the receipt is still written.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("run", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    add_options(parser)
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    prompt, asked = read_prompt(options), asked_options(options)
    _require_writable(options.receipt, options.file)
    from kinetic.api import Model

    with Model(
        options.model,
        device=options.device,
        threads=options.threads,
        context=options.ctx_size,
        progress=None if options.quiet else news,
    ) as model:
        if options.receipt:
            model.hash_ahead()
        with Progress("reading the prompt", quiet=options.quiet) as bar:
            stream = model.stream(prompt, on_progress=bar, **asked)
            try:
                _show(stream, bar, silent=options.json)
            finally:
                stream.close()
                if options.receipt and stream.is_finished:
                    stream.completion.save_receipt(options.receipt)
        _report(options, model, stream.completion)
        return INTERRUPTED if stream.completion.stop_reason == "interrupt" else 0


def _require_writable(receipt: str | None, prompt_file: str | None) -> None:
    """A receipt that can't or mustn't be written there should be known before the answer, not after."""
    if receipt is None:
        return
    if receipt in ("", "-"):
        raise UsageError("--receipt needs the name of a file, since standard output has the answer", name="NO_RECEIPT")
    path = Path(receipt).absolute()
    if not path.parent.is_dir():
        raise FileProblem(f"there is no folder {path.parent} for the receipt", name="NO_FOLDER")
    if path.is_dir():
        raise FileProblem(f"{path} is a folder: name a file for the receipt", name="IS_FOLDER")
    if not os.access(path.parent, os.W_OK):
        raise FileProblem(f"the folder {path.parent} can't be written, so the receipt can't be", name="READ_ONLY")
    if _is_same(path, prompt_file) or _is_model(path):
        raise UsageError(
            f"{path} is what the answer comes from, a model or the prompt: name another file for the receipt",
            name="RECEIPT_OVER_INPUT",
        )


def _is_same(path: Path, prompt_file: str | None) -> bool:
    """Whether this is the prompt's file, under whatever name, standard input included."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        source = os.stat(prompt_file) if prompt_file not in (None, "-") else os.fstat(sys.stdin.fileno())
        return path.is_file() and os.path.samestat(path.stat(), source)
    return False


def _is_model(path: Path) -> bool:
    """Whether this is a model file or a part of one: nobody wants any model overwritten, asked or not."""
    if not path.is_file():
        return False
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(4) == b"GGUF"
    return False


def _show(stream: Stream, bar: Progress, *, silent: bool) -> None:
    ended = True
    with _interruptible(stream):
        for piece in stream:
            bar.clear()
            if not silent:
                sys.stdout.write(piece)
                sys.stdout.flush()
                ended = piece.endswith("\n")
    if not ended:
        print(flush=True)


@contextlib.contextmanager
def _interruptible(stream: Stream) -> Iterator[None]:
    """The first Ctrl-C ends the answer after the token in hand, the second ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGINT, before)
        stream.stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _report(options: Namespace, model: Model, answer: Completion) -> None:
    if options.json:
        import json

        print(json.dumps(_as_json(options, model, answer), ensure_ascii=False))
    if options.quiet:
        return
    stats = answer.stats
    print(
        f"kinetic: prompt {_tokens(stats.prompt_tokens)}{_speed(stats.prompt_speed)}, "
        f"answer {_tokens(len(answer.tokens))}{_speed(stats.decode_speed)}, ended by {answer.stop_reason}\n"
        f"kinetic: seed {answer.seed}, device {model.device_name}, model {model.path.name}",
        file=sys.stderr,
    )


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _speed(tokens_per_second: float) -> str:
    """Nothing where too little ran to measure."""
    return f" at {tokens_per_second:.1f}/s" if tokens_per_second else ""


def _as_json(options: Namespace, model: Model, answer: Completion) -> dict[str, Any]:
    from kinetic.types import PROFILE

    stats = answer.stats
    return {
        "text": answer.text,
        "stop_reason": answer.stop_reason,
        "seed": str(answer.seed),
        "tokens": list(answer.tokens),
        "prompt_tokens": list(answer.prompt_tokens),
        "model": str(model.path),
        "device": model.device_name,
        "profile": PROFILE,
        "receipt": options.receipt or "",
        "stats": {
            "prompt_tokens": stats.prompt_tokens,
            "prompt_seconds": round(stats.prompt_seconds, 6),
            "prompt_tokens_per_second": round(stats.prompt_speed, 3),
            "answer_tokens": len(answer.tokens),
            "decode_seconds": round(stats.decode_seconds, 6),
            "decode_tokens_per_second": round(stats.decode_speed, 3),
        },
    }
