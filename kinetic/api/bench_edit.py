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

COUNTRIES = (
    "Austria Belgium Chile Denmark Egypt Finland Ghana Hungary India Japan Kenya Latvia Mexico Norway Oman Peru Qatar"
    " Rwanda Spain Turkey"
).split()


def file_of_60_lines() -> str:
    """A program that nobody has written before."""
    lines = [
        '"""Parcels by country: what sending one costs, and how long it takes."""',
        "",
        'CURRENCY = "EUR"',
        "",
        "PRICES = {",
    ]
    lines += [f'    "{name}": ({3 * n + 4}.{n % 10}0, {n % 7 + 1}),' for n, name in enumerate(COUNTRIES)]
    lines += ["}", "", ""]
    for name, what, index in (("price", "euros", 0), ("days", "working days", 1)):
        lines += [
            f"def {name}_of(country):",
            f'    """What a parcel to this country takes, in {what}."""',
            "    if country not in PRICES:",
            '        raise ValueError(f"no parcels are sent to {country}")',
            f"    return PRICES[country][{index}]",
            "",
            "",
        ]
    lines += [
        "def total(parcels):",
        '    """The sum of the prices of several parcels."""',
        "    amount = 0.0",
        "    for country, count in parcels:",
        "        amount += count * price_of(country)",
        "    return round(amount, 2)",
        "",
        "",
        "def slowest(parcels):",
        '    """The country whose parcel arrives last."""',
        "    return max(parcels, key=lambda parcel: days_of(parcel[0]))[0]",
        "",
        "",
        'if __name__ == "__main__":',
        '    print(price_of("India"), CURRENCY)',
        '    print(days_of("India"), "working days")',
        '    order = [("Peru", 2), ("Spain", 1)]',
        '    print(f"{total(order)} euros, {slowest(order)} is last")',
    ]
    return "\n".join(lines) + "\n"


class Job(NamedTuple):
    name: str
    prompt: str
    options: Mapping[str, Any]


def jobs() -> list[Job]:
    edit = (
        f"Here is parcels.py.\n\n```python\n{file_of_60_lines()}```\n\nRepeat the whole file in a code block."
        " Change only one line: the price for Japan becomes 30.0."
    )
    story = "The lighthouse keeper had not spoken to anyone for eleven weeks when the boat came. On it there was"
    return [
        Job("edit", edit, {"temperature": 0.0}),
        Job("draw", story, {"temperature": 0.8, "seed": 1, "raw": True}),
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
        return model.generate(job.prompt, max_tokens=tokens, **job.options)
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
