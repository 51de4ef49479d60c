"""How a prompt is cut does not matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from conformance.case import Case, Evidence, counted, require_rows, together
from conformance.setting import Setting, Subject

PROPERTY = "A row has the same bits, whatever pieces its prompt is read in."
OF_MODELS = True

WAYS: dict[str, Sequence[int]] = {
    "at-once": [1 << 20],
    "7": [7],
    "255-1-1": [255, 1, 1, 3],
    "16": [16],
    "3-1-2-13": [3, 1, 2, 13] * 30,
    "100-1-1-5": [100, 1, 1, 5],
    "256": [256],
    "257": [257],
    "growing": range(1, 60),
}
QUICK = 3
"""The first ones."""


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.subjects:
        for name in [*WAYS][: QUICK if setting.is_quick else None]:
            yield Case(f"{subject.name}/{name}", partial(_run, setting, subject, name))


def _run(setting: Setting, subject: Subject, name: str) -> Evidence:
    expected = subject.plain.rows
    probe = subject.probe(threads=setting.threads)
    found = require_rows(probe.feed(subject.tokens, WAYS[name]), expected, f"of a prompt cut {name}")
    return Evidence(counted(len(found)), together(found))
