"""``kinetic run``: ask a model, see the answer as it comes, keep a receipt of it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kinetic.cli.model_options import changes
from kinetic.cli.parser import Subcommands, placed
from kinetic.cli.progress import Progress, news
from kinetic.cli.run_options import add_options, asked_options, read_prompt
from kinetic.cli.run_receipt import save, wanted
from kinetic.errors import INTERRUPTED

if TYPE_CHECKING:
    from kinetic.api import Completion, Model, Stream
    from kinetic.api.answer import Stats
    from kinetic.attest import Saved

HELP = "ask a model, and keep a receipt of its answer"

EPILOG = """\
The prompt is the PROMPT argument, -p, -f, or standard input, used as it is: a final
newline counts, and \\n stays two characters unless -e is given. A model with a chat
template gets it as the user's message; --raw completes the text instead. Where no seed
is given a fresh one is drawn and shown. Ctrl-C ends the answer after the current token,
and the receipt is still written. With --withhold-prompt the receipt holds a commitment to
the prompt; the opening, a file of its own, shows the prompt to whoever is given it.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("run", help=HELP, description=HELP.capitalize() + ".", epilog=EPILOG)
    add_options(parser)
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    keeping = wanted(options)
    prompt, asked = read_prompt(options), asked_options(options)
    from kinetic.api import Model

    saved = None

    with Model(
        options.model,
        **placed(options),
        threads=options.threads,
        context=options.ctx_size,
        check=options.check,
        pack_cache=options.pack_cache,
        **changes(options),
        off=options.off,
        draft_model=options.model_draft,
        draft_max=options.draft_max,
        cache_ram=options.cache_ram,
        cache_disk=options.cache_disk,
        progress=None if options.quiet else news,
    ) as model:
        if keeping:
            model.hash_ahead()
        with Progress("reading the prompt", quiet=options.quiet) as bar:
            stream = model.stream(prompt, on_progress=bar, **asked)
            try:
                _show(stream, bar, silent=options.json)
            finally:
                stream.close()
                if keeping and stream.is_finished:
                    saved = save(stream.completion, keeping, quiet=options.quiet)
        _report(options, model, stream.completion, saved)
        return INTERRUPTED if stream.completion.stop_reason == "interrupt" else 0


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


def _report(options: Namespace, model: Model, answer: Completion, saved: Saved | None) -> None:
    if options.json:
        import json

        print(json.dumps(_as_json(options, model, answer, saved), ensure_ascii=False))
    if options.quiet:
        return
    from receipts.terminal import printable

    stats = answer.stats
    print(
        f"kinetic: prompt {_prompt(options, stats)}, "
        f"answer {_tokens(len(answer.tokens))}{_speed(stats.decode_speed)}, ended by {answer.stop_reason}"
        f"{_guessed(stats)}\n"
        f"kinetic: seed {answer.seed}, device {model.device_name}, model {printable(model.path.name)}"
        f"{f', {model.profile_note}' if model.profile_note else ''}",
        file=sys.stderr,
    )


def _prompt(options: Namespace, stats: Stats) -> str:
    """Its length and speed, unless it is kept back: then how long it is is nobody's business."""
    if options.withhold_prompt:
        return "withheld"
    known = f" ({stats.reused} known)" if stats.reused else _speed(stats.prompt_speed)
    return f"{_tokens(stats.prompt_tokens)}{known}"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _guessed(stats: Stats) -> str:
    return f"; {stats.accepted} of {stats.drafted} drafts were right" if stats.drafted else ""


def _speed(tokens_per_second: float) -> str:
    """Nothing where too little ran to measure."""
    return f" at {tokens_per_second:.1f}/s" if tokens_per_second else ""


def _as_json(options: Namespace, model: Model, answer: Completion, saved: Saved | None) -> dict[str, Any]:
    from kinetic.types import PROFILE

    # Who withholds a prompt doesn't want it, or its length, in a log of answers either; the opening has it.
    withheld, stats = options.withhold_prompt, answer.stats
    return {
        "text": answer.text,
        "stop_reason": answer.stop_reason,
        "seed": str(answer.seed),
        "tokens": list(answer.tokens),
        "prompt_tokens": [] if withheld else list(answer.prompt_tokens),
        "model": str(model.path),
        "device": model.device_name,
        "profile": PROFILE,
        "bundle": model.bundle_digest,
        "receipt": options.receipt or "",
        "receipt_id": saved.receipt_id if saved else "",
        "key_id": saved.key_id if saved else "",
        "opening": saved.opening if saved else "",
        "stats": {
            "prompt_tokens": 0 if withheld else stats.prompt_tokens,
            "prompt_seconds": 0.0 if withheld else round(stats.prompt_seconds, 6),
            "prompt_tokens_reused": 0 if withheld else stats.reused,
            "prompt_tokens_per_second": 0.0 if withheld else round(stats.prompt_speed, 3),
            "answer_tokens": len(answer.tokens),
            "decode_seconds": round(stats.decode_seconds, 6),
            "decode_tokens_per_second": round(stats.decode_speed, 3),
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "rows": stats.rows,
        },
    }
