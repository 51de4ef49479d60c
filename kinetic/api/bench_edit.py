"""What drafts are worth: jobs that are run with them and without, in turns, and must give the same tokens.

``edit`` writes a file of 60 lines again with one change, greedily: most of it has been said before. ``draw`` goes on
with a story at temperature 0.8, where nothing can be copied. What earlier rounds said is forgotten before each one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from kinetic import store
from kinetic.api import bench, bench_ngrams
from kinetic.api.answer import Completion
from kinetic.api.model import Model

FORM = "kinetic bench edit 1"


def file_of_60_lines() -> str:
    """A program that nobody has written before."""
    lines = ['"""A shelf of boxes, each of which holds things by name."""', "", "", "class Shelf:"]
    lines += ['    """Boxes with a limit of things."""', "", "    def __init__(self, limit):"]
    lines += ["        self.limit = limit", "        self.boxes = {}"]
    for name, verb, line in (
        ("add", "Put a thing into a box.", "self.boxes.setdefault(box, []).append(thing)"),
        ("remove", "Take a thing out of a box.", "self.boxes[box].remove(thing)"),
        ("count", "How often a thing is in a box.", "return self.boxes[box].count(thing)"),
        ("place", "Where in a box a thing lies.", "return self.boxes[box].index(thing)"),
        ("move_to_front", "Take a thing to the front of its box.", "self.boxes[box].insert(0, self.take(box, thing))"),
        ("take", "Remove a thing and return it.", "return self.boxes[box].pop(self.place(box, thing))"),
    ):
        lines += ["", f"    def {name}(self, box, thing):", f'        """{verb}"""']
        lines += ["        if len(self.boxes) > self.limit:", '            raise ValueError("too many boxes")']
        lines += [f"        {line}"]
    lines += ["", "", "def main():", "    shelf = Shelf(limit=12)", '    shelf.add("tools", "hammer")']
    lines += ['    shelf.add("tools", "saw")', '    shelf.add("garden", "rake")']
    lines += ['    print(shelf.count("tools", "saw"))', '    print(shelf.place("tools", "saw"))']
    lines += ['    shelf.move_to_front("tools", "saw")', "    print(shelf.boxes)", "", ""]
    lines += ['if __name__ == "__main__":', "    main()"]
    return "\n".join(lines) + "\n"


class Job(NamedTuple):
    name: str
    prompt: str
    options: Mapping[str, Any]


def jobs() -> list[Job]:
    file = file_of_60_lines()
    begun = "".join(file.splitlines(keepends=True)[:12])  # so that a small model sees what is wanted
    edit = f"```python\n{file}```\n\nThe same file again, with limit=20 instead of limit=12:\n\n```python\n{begun}"
    story = "The lighthouse keeper had not spoken to anyone for eleven weeks when the boat came. On it there was"
    return [
        Job("edit", edit, {"temperature": 0.0}),
        Job("draw", story, {"temperature": 0.8, "seed": 1}),
    ]


class Round(NamedTuple):
    """Tokens a second, and of the drafts how many were made and how many were right."""

    sped_up: float
    plain: float
    drafted: int
    accepted: int
    same: str
    """"identical", or which token differs first."""


def measure(
    path: Path,
    *,
    threads: int = 0,
    repetitions: int = 3,
    tokens: int = bench.DECODE,
    peer: bench.Peer | None = None,
    news: Callable[[str], None] | None = None,
    progress: store.Progress | None = None,
) -> dict[str, Any]:
    """A record of all jobs: plain values, as in FORM. ``peer`` decodes plainly in the same rounds, behind as many
    tokens as each job's prompt has; where it has programs that guess from n-grams, the fastest of them does the first
    job in each round as well.

    One round comes before, to warm up. Raises whatever opening and running the model raises.
    """
    with Model(path, threads=threads, off=("warm",), progress=news) as model:
        rounds: dict[str, list[Round]] = {job.name: [] for job in jobs()}
        speeds: dict[str, list[float]] = {job.name: [] for job in jobs()} if peer else {}
        trials = {job.name: bench.Trial("tg", bench.DECODE, _length(model, job)) for job in jobs()}
        guessing = _Guessing(bench_ngrams.beside(peer), path, model, tokens, news)
        for number in range(repetitions + 1):
            for job in jobs():
                found = _round(model, job, tokens, number)
                if number:
                    rounds[job.name].append(found)
            if number and peer:
                used = model._engine.identity.threads
                for name, trial in trials.items():
                    speeds[name].append(peer.run(path, [trial], used)[trial])
            guessing.run(number)
            if progress:
                progress(number, repetitions)
        about = bench._about(model, path) | {"format": FORM, "threads": model._engine.identity.threads}
    results = [_row(name, found, speeds.get(name, [])) for name, found in rounds.items()]
    if guessing.speeds:
        results[0]["ngram_ratio"] = _beside(rounds[results[0]["job"]], guessing.speeds)
    return about | {
        "machine": bench.here("cpu"),
        "repetitions": repetitions,
        "tokens": tokens,
        "peer": peer.name if peer else "",
        "peer_speeds": {name: [round(speed, 3) for speed in found] for name, found in speeds.items()},
        "peer_ngrams": guessing.record(),
        "results": results,
    }


class _Guessing:
    """The first job by another program's guesses; nothing where it has none, or none that runs."""

    def __init__(
        self,
        programs: bench_ngrams.Speculation | None,
        path: Path,
        model: Model,
        tokens: int,
        news: Callable[[str], None] | None,
    ) -> None:
        self._programs, self._news, self.speeds = programs, news, list[float]()
        job = jobs()[0]
        self._asked = path, job.prompt, _length(model, job), tokens, model._engine.identity.threads

    def run(self, number: int) -> None:
        """Of all kinds in round 0, then of the best."""
        if self._programs is None:
            return
        if number:
            self.speeds.append(self._programs.speed(*self._asked))
        elif not self._programs.choose(*self._asked, self._news):
            self._programs = None

    def record(self) -> dict[str, Any] | None:
        if self._programs is None:
            return None
        speeds = [round(speed, 3) for speed in self.speeds]
        return {"kind": self._programs.kind, "speeds": speeds, "answer": self._programs.answer}


def _length(model: Model, job: Job) -> int:
    """Tokens of its prompt."""
    return len(model.tokenizer.encode(job.prompt, add_special=True, parse_special=False))


def _round(model: Model, job: Job, tokens: int, number: int) -> Round:
    """Both ways; which of them begins changes from round to round."""
    found: dict[bool, Completion] = {}
    for drafts in (True, False) if number % 2 else (False, True):
        found[drafts] = _run(model, job, tokens, drafts=drafts)
    sped_up, plain = found[True], found[False]
    return Round(
        sped_up.stats.decode_speed,
        plain.stats.decode_speed,
        sped_up.stats.drafted,
        sped_up.stats.accepted,
        first_difference(sped_up.tokens, plain.tokens),
    )


def _run(model: Model, job: Job, tokens: int, *, drafts: bool) -> Completion:
    engine = model._engine
    kept = engine.drafter
    engine.drafter = engine.fresh_drafter() if drafts else None
    try:
        return model.generate(job.prompt, raw=True, max_tokens=tokens, **job.options)
    finally:
        engine.drafter = kept


def first_difference(found: Sequence[int], expected: Sequence[int]) -> str:
    for number, (one, other) in enumerate(zip_longest(found, expected)):
        if one != other:
            return f"token {number} differs"
    return "identical"


def _beside(rounds: Sequence[Round], theirs: Sequence[float]) -> dict[str, Any]:
    return bench._rounded([one.sped_up / other for one, other in zip(rounds, theirs, strict=True)], 4)


def _row(name: str, rounds: Sequence[Round], peer: Sequence[float]) -> dict[str, Any]:
    """One job's part of a record."""
    ratios = [one.sped_up / one.plain for one in rounds if one.plain]
    row: dict[str, Any] = {
        "job": name,
        "speed": bench._rounded([one.sped_up for one in rounds], 3),
        "plain": bench._rounded([one.plain for one in rounds], 3),
        "ratio": bench._rounded(ratios or [0.0], 4),
        "drafted": rounds[-1].drafted,
        "accepted": rounds[-1].accepted,
        "same": next((one.same for one in rounds if one.same != "identical"), "identical"),
    }
    if peer:
        row["peer_ratio"] = _beside(rounds, peer)
    return row
