"""Time to the first token of a chat's second turn, cold and warm: ``python -m benchmarks.warm_start MODEL``.

A prompt of so many tokens is answered; then comes the same again with the answer and a short question. Measured is
from the call to the first step. *cold*: nothing is known. *memory*: the first turn was answered by the same engine.
*set aside*: another prompt came between. *disk*: a new engine, which has run a little. All in one run, in turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kinetic import store
from kinetic.engine import Engine
from kinetic.loader import LoadedFile, open_model_file
from kinetic.types import PrefixCache, Request, Sampling

ANSWER, QUESTION = 24, 16
"""Tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    with open_model_file(store.resolve(options.model)) as file, tempfile.TemporaryDirectory() as folder:
        times = measure(file, Path(folder), options.tokens, options.rounds, options.threads)
    print(f"{options.model}: second turn after {options.tokens} tokens, milliseconds to the first token")
    for name, found in times.items():
        ratios = [cold / own for cold, own in zip(times["cold"], found, strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        print(
            f"{name:10} {1000 * statistics.median(found):8.1f}   1/{middle:.1f} of cold (1/{low:.1f} to 1/{high:.1f})"
        )


def measure(file: LoadedFile, folder: Path, tokens: int, rounds: int, threads: int) -> dict[str, list[float]]:
    """Seconds of each round by name. Each has a prompt of its own."""
    times: dict[str, list[float]] = {"cold": [], "memory": [], "set aside": [], "disk": []}
    secret, known = bytes(32), "ab" * 32
    plain = _engine(file, threads, None)
    for number in range(rounds):
        place = folder / str(number)
        place.mkdir(mode=0o700)
        cache = PrefixCache(str(place), 1 << 30, secret, "model", known, lambda: known)
        dice = random.Random(number)
        first, other = ([dice.randrange(10, plain.vocab_size) for _ in range(tokens)] for _ in range(2))
        engine = _engine(file, threads, cache)
        answer = _ask(engine, first, ANSWER)[1]
        engine.keep()
        second = [*first, *answer, *other[:QUESTION]]
        times["memory"].append(_ask(engine, second, 1)[0])
        _ask(engine, other[:200], 1)
        times["set aside"].append(_ask(engine, second, 1)[0])
        engine.close()
        later = _engine(file, threads, cache)
        _ask(later, other[:20], 1)
        times["disk"].append(_ask(later, second, 1)[0])
        later.close()
        times["cold"].append(_ask(plain, second, 1)[0])
    plain.close()
    return times


def _engine(file: LoadedFile, threads: int, prefixes: PrefixCache | None) -> Engine:
    off = ("drafts",) if prefixes else ("drafts", "warm")
    return Engine(file.gguf, file.weights, threads=threads, prefixes=prefixes, off=off)


def _ask(engine: Engine, prompt: Sequence[int], count: int) -> tuple[float, list[int]]:
    """Seconds to the first step, and the tokens."""
    steps = engine.generate(Request(tuple(prompt), Sampling(temperature=0), count))
    begun = time.perf_counter()
    tokens = [next(steps).token]
    seconds = time.perf_counter() - begun
    tokens += [step.token for step in steps]
    return seconds, tokens


if __name__ == "__main__":
    main()
