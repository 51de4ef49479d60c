"""What a drafter costs beside the passes, where little or nothing is guessed: microseconds of the processor a token.

    python -m benchmarks.idle_drafter [TOKENS]

The engine's own loop runs with a program that computes nothing, with a drafter and without. ``noise`` are random tokens
of a vocabulary of 49,152, of which no three come again; ``text`` are the words of this project's documents, one token
each. Divide by what a token takes: a busy machine makes both larger, and changes their ratio least.
"""

from __future__ import annotations

import random
import re
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from kinetic.bits import F32
from kinetic.engine.drafts import Drafter, NgramSource, RowCosts, Tally
from kinetic.engine.passes import Passes
from kinetic.types import Batch

ROWS = np.zeros((64, 1), np.float32)

ROUNDS = 15


class Nothing:
    """As much of a program as the loop asks for."""

    def rows(self, batch: Batch, choice: object, best: int) -> F32:
        return ROWS[: len(batch.outputs)]

    def truncate(self, sequence: int, length: int) -> int:
        return length

    def mark(self, sequence: int) -> None: ...

    def fork(self, source: int, target: int, length: int) -> None: ...

    def take_over(self, source: int, target: int) -> None: ...


def seconds(tokens: list[int], *, drafts: bool) -> tuple[float, Drafter | None]:
    """Of the processor, a token."""
    known = {"1": 2e-3, "2": 3.4e-3, "4": 3.6e-3, "8": 5e-3, "16": 7e-3, "64": 22e-3}
    drafter = Drafter([NgramSource()], RowCosts(known)) if drafts else None
    history = tokens[:1]
    if drafter:
        drafter.begin(history)
    passes = Passes(Nothing(), drafter, 1, (1, 0.0), lambda: 0.0)  # type: ignore[arg-type]
    begun = time.process_time()
    for token in tokens[1:]:
        history.append(token)
        passes.row(history, 1000)
    return (time.process_time() - begun) / len(tokens), drafter


def main(count: int = 2000) -> None:
    draw = random.Random(1)
    words = [word for path in sorted(Path("docs").rglob("*.md")) for word in re.findall(r"\w+|\S", path.read_text())]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    texts = {
        "noise": [draw.randrange(49152) for _ in range(count)],
        "text": [numbers[word] for word in words][:count],
    }
    for name, tokens in texts.items():
        tally = Tally()
        spent: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(ROUNDS):
            for drafts in (True, False):
                found, drafter = seconds(tokens, drafts=drafts)
                spent[drafts].append(1e6 * found)
                tally = drafter.tally if drafter else tally
        with_drafter, without = (min(spent[drafts]) for drafts in (True, False))
        print(f"{name}: {with_drafter - without:.1f} us a token ({with_drafter:.1f} less {without:.1f})", end=", ")
        print(f"medians {statistics.median(spent[True]):.1f} less {statistics.median(spent[False]):.1f};", end=" ")
        print(f"{len(tokens)} tokens, {tally.drafted} guesses in {tally.passes} passes, {tally.accepted} right")
    begun = time.process_time()
    NgramSource().begin(texts["text"])
    print(f"a prompt: {1e6 * (time.process_time() - begun) / len(texts['text']):.1f} us a token")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
