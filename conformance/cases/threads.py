"""How many threads compute does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.case import Case, Evidence, counted, require_rows, together
from conformance.setting import Setting, Subject

PROPERTY = "A row has the same bits on any number of threads."
OF_MODELS = True

SIZES = (64, 1, 33)
"""Rows of the passes; the last repeats."""


def cases(setting: Setting) -> Iterator[Case]:
    if setting.device != "cpu":
        return
    counts = {"quick": (2, 3), "normal": (2, 3, 4), "full": (2, 3, 4, 5, 9)}[setting.level]
    for subject in setting.subjects:
        for threads in sorted({*counts, setting.threads} - {1}):
            yield Case(f"{subject.name}/{threads}", partial(_run, subject, threads))


def _run(subject: Subject, threads: int) -> Evidence:
    expected = subject.plain.rows
    passes = subject.probe(threads=threads).feed(subject.tokens, SIZES)
    found = require_rows(passes, expected, f"on {threads} threads")
    return Evidence(counted(len(found)), together(found))
