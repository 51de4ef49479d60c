"""Uses a model file as a program would that embeds kinetic, and says by which error it is refused.

    python -m conformance.attacks.use ACTION FILE [WORDS...]

``describe`` lists what is odd in it, ``open`` makes it ready to answer, ``ask`` puts words to
it, ``each`` describes every file that FILE names, one a line. A refusal is one line, "CLASS NAME: sentence",
and the exit code is that of the error; ``each`` leaves with the code that all files have in common, else 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kinetic.errors import KineticError
from receipts.terminal import printable

CLOCK = "2026-03-14T15:09:26Z"
"""What a template that asks for the time is told."""


def main() -> int:
    action, path, *words = sys.argv[1:]
    if action == "each":
        codes = {_act("describe", name) for name in Path(path).read_text(encoding="utf-8").splitlines()}
        return codes.pop() if len(codes) == 1 else 1
    return _act(action, path, *words)


def _act(action: str, path: str, *words: str) -> int:
    try:
        for line in ACTIONS[action](path, *words):
            print(printable(line))
    except KineticError as error:
        print(printable(f"{type(error).__name__} {error.name}: {error}"))
        return error.exit_code
    return 0


def _describe(path: str) -> Iterator[str]:
    from kinetic.api.describe import describe

    facts = describe(path)
    yield from facts["warnings"]
    yield from facts["reasons"]


def _open(path: str) -> Iterator[str]:
    from kinetic.api.model import Model

    with Model(path, device="reference", pack_cache=False) as model:
        yield from model.tokenizer.warnings


def _ask(path: str, words: str = "Hi") -> Iterator[str]:
    """One token of an answer; then what is odd, and the prompt's tokens."""
    from kinetic.api.model import Model

    with Model(path, device="reference", pack_cache=False) as model:
        answer = model.generate(words, max_tokens=1, temperature=0.0, seed=1, template_time=CLOCK)
        yield from model.tokenizer.warnings
        yield f"prompt {list(answer.prompt_tokens)}"


ACTIONS: dict[str, Callable[..., Iterator[str]]] = {"describe": _describe, "open": _open, "ask": _ask}

if __name__ == "__main__":
    sys.exit(main())
