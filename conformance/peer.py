"""Does another engine keep the promise? Determinism, condition by condition, of llama.cpp's server and of Kinetic.

    python -m conformance.peer MODEL.gguf --peer PATH/llama-server [--full] [--json]

Both are asked the same questions, by token ids, first each alone and then under conditions that should not matter.
What the peer changes is reported; an answer of Kinetic's that changes is a failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

from conformance import outside
from conformance.peer_conditions import CONDITIONS, Question, measure
from kinetic.errors import FileProblem, UsageError

QUESTIONS = {"quick": 4, "normal": 8, "full": 256}
TOKENS = 64
"""Of an answer."""

HOLDS, DIFFERS = 0, 10

Progress = Callable[[int, int], None]
News = Callable[[str], None]


def execute(options: Namespace, progress: Progress | None = None, news: News | None = None) -> int:
    """Ask both and print the table; returns the exit code. Raises KineticError.

    ``options``: ``peer`` (path of the server), ``models`` (exactly one), ``level``, ``form``.
    """
    from conformance import peer_report
    from conformance.peer_kinetic import Kinetic
    from conformance.peer_llama import LlamaServer

    program, model = _program(options.peer), _model(options.models)
    questions = questions_of(model, QUESTIONS[options.level])
    done, total = 0, 0

    def told(answers: int) -> None:
        nonlocal done
        done += answers
        if progress:
            progress(min(done, total), total)

    say = news or (lambda line: None)
    with LlamaServer(program, model) as peer, Kinetic(model, news) as own:
        # Twice for the answers alone, one to each engine.
        total = len(questions) * (2 + len(peer.conditions()) + len(own.conditions()))
        found = [(peer, measure(peer, questions, TOKENS, told, say))]
        peer.close()
        found.append((own, measure(own, questions, TOKENS, told, say)))  # type: ignore[arg-type]
        engines = [(engine.name, rows) for engine, rows in found]
        compared = peer_report.Compared(model.name, len(questions), TOKENS, peer.reused, engines)
    if progress:
        progress(total, total)
    sys.stdout.write((peer_report.to_json if options.form == "json" else peer_report.to_markdown)(compared))
    return DIFFERS if any(row.first for row in engines[1][1]) else HOLDS


def questions_of(model: Path, count: int) -> list[Question]:
    """Questions in the model's own tokens. Raises what ``tokenizer_of`` raises."""
    from conformance import peer_prompts
    from kinetic.api.probe import tokenizer_of

    ids = partial(tokenizer_of(model).encode, add_special=True, parse_special=False)
    prompts = [peer_prompts.shortened(ids(peer_prompts.text(n)), n) for n in range(count)]
    return [Question(prompt, peer_prompts.related(prompt, prompts[n - 1])) for n, prompt in enumerate(prompts)]


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        what = "is no program that can be run" if os.path.exists(name) else "isn't there"
        raise UsageError(f"{name} {what}: --peer takes the path of llama.cpp's llama-server", name="NO_PEER")
    return os.path.abspath(path)


def _model(models: list[str]) -> Path:
    from kinetic.api.probe import find_model

    if len(models) != 1:
        raise UsageError("--peer takes one model, which both engines read", name="ONE_MODEL")
    path = find_model(models[0])
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise FileProblem(f"{path} is no GGUF file, and the peer reads no other", name="NO_GGUF")
    return path


# --- python -m conformance.peer ---


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m conformance.peer",
        description=f"Ask llama.cpp's server and Kinetic the same under {len(CONDITIONS)} conditions.",
        epilog="exit codes: 0 no answer of Kinetic's changed; 10 one did; 2 and 3: the peer or model can't be run",
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs=1, metavar="MODEL", help="a GGUF file, or a name from `kinetic models`")
    parser.add_argument("--peer", required=True, metavar="PATH", help="llama.cpp's llama-server")
    level = parser.add_mutually_exclusive_group()
    for name, count in QUESTIONS.items():
        level.add_argument(f"--{name}", dest="level", action="store_const", const=name, help=f"{count} questions")
    parser.add_argument("--json", dest="form", action="store_const", const="json", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(level="normal", form="markdown")
    options = parser.parse_args(arguments)
    told = None if options.quiet else outside.news
    return outside.run(
        "python -m conformance.peer", lambda: execute(options, outside.bar("answers", options.quiet), told)
    )


if __name__ == "__main__":
    sys.exit(main())
