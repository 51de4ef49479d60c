"""How many rows are computed at once does not matter: sizes at which other engines changed their bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.case import Case, Evidence, Skipped, counted, require_rows, together
from conformance.setting import Setting, Subject

PROPERTY = "A row of a batch has the bits that it has alone, however many rows are in the batch."
OF_MODELS = True

GROUPS = ((1, 2), (7, 8, 9), (31, 32, 33), (44, 45), (63, 64, 65), (255, 256, 257))
"""Around tiles, chunks and widths of vectors."""


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.subjects:
        for sizes in GROUPS:
            if subject.rows >= sizes[-1]:
                yield Case(f"{subject.name}/{sizes[0]}-{sizes[-1]}", partial(_run, setting, subject, sizes))


def _run(setting: Setting, subject: Subject, sizes: tuple[int, ...]) -> Evidence:
    expected = subject.plain.rows
    if len(subject.tokens) < sizes[-1]:
        raise Skipped(f"the model's context holds fewer than {sizes[-1]} tokens")
    found = []
    for size in sizes:
        probe = subject.probe(threads=setting.threads)
        found += require_rows(probe.feed(subject.tokens[:size], [size]), expected, f"in a batch of {size}")
    return Evidence(counted(len(found)), together(found))
