"""Prompt and decode speed beside llama.cpp's, on the same file, the two taking turns in one run.

    python -m benchmarks.compare_llama_cpp MODEL.gguf --llama-bench PATH [--threads 1 2] [--rounds 5]

Like llama-bench: the prompt is 512 tokens from an empty context, decoding 128
tokens from an empty context. A machine that drifts hits both alike; the
figures are medians of the rounds, the ratios medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from typing import NamedTuple

from kinetic.engine import Engine
from kinetic.loader import open_model_file
from kinetic.types import Batch

PROMPT, DECODE = 512, 128


class Speed(NamedTuple):
    """Tokens per second."""

    prompt: float
    decode: float


def kinetic_speed(engine: Engine) -> Speed:
    program = engine._program
    tokens = tuple(1 + (7919 * i) % (engine.vocab_size - 1) for i in range(PROMPT))
    program.truncate(0, 0)
    start = time.perf_counter()
    program.run(Batch(tokens, tuple(range(PROMPT)), (0,) * PROMPT, (PROMPT - 1,)))
    middle = time.perf_counter()
    program.truncate(0, 0)
    for position, token in enumerate(tokens[:DECODE]):
        program.run(Batch((token,), (position,), (0,), (0,)))
    return Speed(PROMPT / (middle - start), DECODE / (time.perf_counter() - middle))


def llama_speed(program: str, model: str, threads: int) -> Speed:
    command = [program, "-m", model, "-p", str(PROMPT), "-n", str(DECODE), "-t", str(threads), "-r", "1", "-o", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    speeds = {bool(row["n_prompt"]): float(row["avg_ts"]) for row in rows}
    return Speed(speeds[True], speeds[False])


def compare(model: str, program: str, threads: int, rounds: int) -> str:
    pairs = []
    with open_model_file(model) as file:
        engine = Engine(file.gguf, file.weights, threads=threads)
        kinetic_speed(engine)
        for _ in range(rounds):
            pairs.append((kinetic_speed(engine), llama_speed(program, model, threads)))
        engine.close()
    cells = [str(threads)]
    for name in Speed._fields:
        ours, theirs = ([getattr(speed, name) for speed in column] for column in zip(*pairs, strict=True))
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        cells += [f"{statistics.median(ours):.0f}", f"{statistics.median(theirs):.0f}"]
        cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-bench", default="llama-bench")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| threads | prompt | llama.cpp | ratio | decode | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|")
    for threads in options.threads:
        print(compare(options.model, options.llama_bench, threads, options.rounds), flush=True)


if __name__ == "__main__":
    main()
