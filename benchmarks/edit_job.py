"""The edit job of ``kinetic bench --edit`` beside llama.cpp: its plain decoding and its speculation from n-grams.

    python -m benchmarks.edit_job MODEL.gguf --programs FOLDER [-t 1] [-r 3] [-n 256] [--check 512] [--wall]

FOLDER holds llama-completion, llama-lookup and llama-speculative-simple. All run in turn, greedily, on the
same prompt. Figures are ratios round by round of seconds a token: of the processor, which a loaded machine changes
least, or with ``--wall`` of the clock, which on a quiet one tells what two threads gain. What the start and the prompt
take is measured by a run that asks for two tokens, and taken off. In the first round several kinds of speculation are
tried; in the others the best of them. ``--check`` measures something else: text with nothing to copy, and how long an
answer takes to be checked beside llama.cpp's time to write one.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from kinetic.api.bench_edit import Job, first_difference, jobs
from kinetic.api.model import Model
from kinetic.types import Request, Sampling

GUESSERS = {
    "lookup, 16": ["llama-lookup", "--spec-draft-n-max", "16"],
    "ngram-simple": ["llama-speculative-simple", "--spec-type", "ngram-simple"],
    "ngram-simple 4": [
        "llama-speculative-simple", "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4",
        "--spec-ngram-simple-size-m", "24",
    ],
    "ngram-mod": ["llama-speculative-simple", "--spec-type", "ngram-mod"],
}  # fmt: skip

PLAIN = ["llama-completion", "-no-cnv"]

NOISE = {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

Ratios = dict[str, float]


class Clock:
    wall = False
    """Whether seconds are of the clock instead of the processor."""


class Ours(NamedTuple):
    seconds: float
    """A token."""
    tokens: tuple[int, ...]
    passes: int
    rows: int


def used(who: int) -> float:
    if Clock.wall:
        return time.perf_counter()
    times = resource.getrusage(who)
    return times.ru_utime + times.ru_stime


def ours(model: Model, job: Job, count: int, *, drafts: bool) -> Ours:
    engine = model._engine
    engine.drafter = engine.fresh_drafter() if drafts else None
    begun, tokens = 0.0, []
    with model.stream(job.prompt, raw=True, max_tokens=count, **job.options) as stream:
        for _ in stream:
            begun = begun or used(resource.RUSAGE_SELF)
        tokens = list(stream.completion.tokens)
    spent = used(resource.RUSAGE_SELF) - begun
    tally = engine.drafter.tally if engine.drafter else None
    passes, rows = (tally.passes, tally.rows) if tally else (0, 0)
    return Ours(spent / max(1, len(tokens) - 1), tuple(tokens), passes, rows)


def theirs(options: argparse.Namespace, words: list[str], prompt: Path, count: int) -> tuple[float, int]:
    """Seconds of the processor for a whole run, and the tokens made."""
    command = [str(options.programs / words[0]), *words[1:], "-m", str(options.model), "-f", str(prompt)]
    command += ["-n", str(count), "--temp", "0", "-t", str(options.threads), "-c", "2048", "-lv", "4", "--perf"]
    before = used(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        env=os.environ if Clock.wall else os.environ | {"OMP_WAIT_POLICY": "passive"},  # waiting is no work
    )  # fmt: skip
    spent = used(resource.RUSAGE_CHILDREN) - before
    text = done.stdout.decode(errors="replace")
    found = re.findall(r"decoded\s+(\d+) tokens", text) or re.findall(r" eval time .*?/\s*(\d+) runs", text)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{text[-2000:]}")
    return spent, int(found[-1])


def a_token(options: argparse.Namespace, words: list[str], prompt: Path, start: float) -> float:
    """Seconds of the processor a token; ``start`` of them are spent before the first two."""
    whole, tokens = theirs(options, words, prompt, options.tokens)
    return (whole - start) / max(1, tokens - 2)


def edit_round(options: argparse.Namespace, model: Model, prompt: Path, guessers: dict[str, list[str]]) -> Ratios:
    """Leaves the best of ``guessers``."""
    edit, _ = jobs()
    sped = ours(model, edit, options.tokens, drafts=True)
    plain = ours(model, edit, options.tokens, drafts=False)
    start, _ = theirs(options, PLAIN, prompt, 2)
    peer = a_token(options, PLAIN, prompt, start)
    guessed = {name: a_token(options, words, prompt, start) for name, words in guessers.items()}
    best = min(guessed, key=lambda name: guessed[name])
    for name in set(guessers) - {best}:
        del guessers[name]
    same = first_difference(sped.tokens, plain.tokens)
    print(f"edit {shown(sped)} ({sped.passes} passes, {sped.rows} rows, {len(sped.tokens)} tokens, {same}),", end=" ")
    print(f"plain {shown(plain)}; llama.cpp {1000 * peer:.2f}", *(f"{n} {1000 * t:.2f}" for n, t in guessed.items()))
    return {
        "edit, to our plain decoding": plain.seconds / sped.seconds,
        "edit, to llama.cpp's plain decoding": peer / sped.seconds,
        f"edit, to llama.cpp's best speculation ({best})": guessed[best] / sped.seconds,
    }


def other_round(
    options: argparse.Namespace, model: Model, prompt: Path, answer: tuple[int, ...], is_odd: bool
) -> Ratios:
    """Text with nothing to copy, and the check of an answer against llama.cpp's time to generate as much."""
    story = jobs()[1]
    noise = Job("noise", story.prompt, NOISE | {"seed": len(answer) + options.rounds})
    found = {drafts: ours(model, noise, options.tokens, drafts=drafts) for drafts in (is_odd, not is_odd)}
    sped, plain = found[True], found[False]
    request = Request(
        tuple(model.tokenizer.encode(story.prompt, add_special=True, parse_special=False)), Sampling(temperature=0)
    )
    begun = used(resource.RUSAGE_SELF)
    drawn = [step.token for step in model._engine.replay(request, answer)]
    checked = used(resource.RUSAGE_SELF) - begun
    start, _ = theirs(options, PLAIN, prompt, 2)
    peer = len(answer) * a_token(options, PLAIN, prompt, start)
    same = first_difference(drawn, answer)
    print(
        f"noise {shown(sped)} ({sped.rows - sped.passes} guesses, {first_difference(sped.tokens, plain.tokens)}),",
        end=" ",
    )
    print(f"plain {shown(plain)}; {len(answer)} tokens checked in {checked:.2f} s ({same}), llama.cpp {peer:.2f} s")
    return {"noise, to our plain decoding": plain.seconds / sped.seconds, "check, to llama.cpp's time": peer / checked}


def shown(one: Ours) -> str:
    return f"{1000 * one.seconds:.2f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("-n", "--tokens", type=int, default=256)
    parser.add_argument("--check", type=int, default=0, metavar="N", help="noise and a check of N tokens instead")
    parser.add_argument("--wall", action="store_true", help="seconds of the clock, not of the processor")
    options = parser.parse_args()
    Clock.wall = options.wall
    edit, story = jobs()
    ratios: dict[str, list[float]] = {}
    guessers = dict(GUESSERS)
    with tempfile.TemporaryDirectory() as folder, Model(options.model, threads=options.threads) as model:
        prompt = Path(folder) / "prompt.txt"
        prompt.write_text((story if options.check else edit).prompt, encoding="utf-8")
        for drafts in (True, False):  # to warm up
            ours(model, edit, 32, drafts=drafts)
        greedy = Job("answer", story.prompt, {"temperature": 0.0})
        answer = ours(model, greedy, options.check, drafts=True).tokens if options.check else ()
        for number in range(options.rounds):
            if options.check:
                found = other_round(options, model, prompt, answer, number % 2 == 1)
            else:
                found = edit_round(options, model, prompt, guessers)
            for name, ratio in found.items():
                ratios.setdefault(name, []).append(ratio)
            sys.stdout.flush()
    for name, each in ratios.items():
        print(f"{name}: {statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
