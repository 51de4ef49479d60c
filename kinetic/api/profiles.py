"""Execution profiles of bundles: which one fits this machine, and how one is measured.

A profile says how many threads and how many rows of a prompt at once are fastest on a
kind of machine. It cannot change an answer, and it can only restrict: never more threads
than cores, never longer passes than the engine's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic.engine import Engine
    from kinetic.store import Progress

Profile: TypeAlias = Mapping[str, Any]
"""The plain values of ktc.manifest.PROFILE."""

ROWS = (64, 128, 256, 512)
"""Rows of a pass over a prompt that are tried."""

DECODED, REPEATS = 16, 3
"""Tokens that are decoded for one measurement, and measurements of which the best counts: the others were disturbed."""


def fitting(profiles: Sequence[Profile], device: str) -> Profile | None:
    """The first profile for this machine: its device, its cores, and its instruction set rather than any."""
    if not profiles or device != "cpu":
        return None
    isa, cores = _machine()
    here = [profile for profile in profiles if (profile["device"], profile["cores"]) == (device, cores)]
    exact = [profile for profile in here if profile["isa"] == isa]
    return next(iter(exact + [profile for profile in here if profile["isa"] == "any"]), None)


class Plan(NamedTuple):
    """How a model is run; 0 where the backend or the engine chooses."""

    threads: int
    prompt_rows: int
    note: str
    """What of it the bundle's profile decided, in a few words, or ""."""


def plan(profiles: Sequence[Profile], device: str, threads: int) -> Plan:
    """What the profile for this machine says, if there is one. ``threads`` is the user's word, 0 if there is none."""
    profile = fitting(profiles, device)
    if profile is None:
        return Plan(threads, 0, "")
    from kinetic.engine.engine import PROMPT_ROWS

    rows, most = min(profile["prompt_rows"], PROMPT_ROWS), min(profile["threads"], profile["cores"])
    own = f"{most} thread{'' if most == 1 else 's'}, " if not threads else ""
    return Plan(threads or most, rows, f"profile of the bundle: {own}{rows} rows of a prompt at once")


def _machine() -> tuple[str, int]:
    """Instruction set and cores of this machine, as the CPU backend sees them."""
    from kinetic.backends.cpu import target
    from kinetic.backends.cpu.system import available_cores

    return target.choose(), available_cores()


# --- measuring ---


def measure(path: str | os.PathLike[str], progress: Progress | None = None) -> dict[str, Any]:
    """The profile of this machine for a model file: the fastest threads for decoding, then the fastest rows.

    ``progress`` is told (measurements done, in all). Raises whatever opening and
    running the model raises, and UsageError for a context too short to measure in.
    """
    from kinetic.api.model import Model

    isa, cores = _machine()
    counts = _thread_counts(cores)
    tell = _counter(progress, (len(counts) + len(ROWS)) * REPEATS)
    decoding: dict[int, float] = {}
    for threads in counts:
        with Model(path, threads=threads, off=("warm",)) as model, model._held() as engine:
            decoding[threads] = min(_decode_seconds(engine) for _ in tell())
    best = min(decoding, key=lambda threads: decoding[threads])
    with Model(path, threads=best, off=("warm",)) as model, model._held() as engine:
        reading = {rows: min(_prompt_seconds(engine, rows) for _ in tell()) for rows in ROWS}
    rows = min(reading, key=lambda rows: reading[rows])
    return {"device": "cpu", "isa": isa, "cores": cores, "threads": best, "prompt_rows": rows}


def _thread_counts(cores: int) -> list[int]:
    """All up to 8, then those that a large machine is likely to be fastest with."""
    return sorted({*range(1, min(cores, 8) + 1), *(n for n in (12, 16, 24, 32, 48, 64, 96, 128) if n < cores), cores})


def _counter(progress: Progress | None, total: int) -> Callable[[], Iterator[int]]:
    done = 0

    def repeat() -> Iterator[int]:
        nonlocal done
        for number in range(REPEATS):
            yield number
            done += 1
            if progress:
                progress(done, total)

    return repeat


def _decode_seconds(engine: Engine) -> float:
    """Time of DECODED tokens after as many, each in a pass of its own."""
    return _timed(engine, "tg", DECODED, DECODED)


def _prompt_seconds(engine: Engine, rows: int) -> float:
    """Time of a prompt of up to the longest of ROWS."""
    engine.prompt_rows = rows
    return _timed(engine, "pp", min(max(ROWS), engine.context - 1), 0)


def _timed(engine: Engine, kind: str, tokens: int, depth: int) -> float:
    from kinetic.api.bench import Runner, Trial

    if engine.context < 2 * DECODED:
        raise UsageError(f"a context of {engine.context} tokens is too short to measure in", name="SHORT_CONTEXT")
    return Runner(engine).seconds(Trial(kind, tokens, depth))
