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
from kinetic.api import bench
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
    """A record of all jobs: plain values, as in FORM. ``peer`` decodes plainly in the same rounds.

    One round comes before, to warm up. Raises whatever opening and running the model raises.
    """
    trial = bench.Trial("tg", bench.DECODE)
    with Model(path, threads=threads, off=("warm",), progress=news) as model:
        rounds: dict[str, list[Round]] = {job.name: [] for job in jobs()}
        speeds: list[float] = []
        for number in range(repetitions + 1):
            for job in jobs():
                found = _round(model, job, tokens, number)
                if number:
                    rounds[job.name].append(found)
            if number and peer:
                used = model._engine.identity.threads
                speeds.append(peer.run(path, [trial], used)[trial])
            if progress:
                progress(number, repetitions)
        about = bench._about(model, path) | {"format": FORM, "threads": model._engine.identity.threads}
    return about | {
        "machine": bench.here("cpu"),
        "repetitions": repetitions,
        "tokens": tokens,
        "peer": peer.name if peer else "",
        "peer_speeds": [round(speed, 3) for speed in speeds],
        "results": [_row(name, found, speeds) for name, found in rounds.items()],
    }


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
        beside = [one.sped_up / theirs for one, theirs in zip(rounds, peer, strict=True)]
        row["peer_ratio"] = bench._rounded(beside, 4)
    return row
