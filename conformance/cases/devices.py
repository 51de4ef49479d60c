"""The device gives what the reference gives, whose few hundred lines define every bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.case import Case, Evidence, require_rows, together
from conformance.setting import Setting, Subject

PROPERTY = "Every device gives the bits of the reference."
OF_MODELS = True

ROWS = {"quick": 12, "normal": 40, "full": 262}
OF_FILE = {"quick": 1, "normal": 3, "full": 12}
"""Of a model that the user names, which may be large: the reference takes seconds for a row."""


def cases(setting: Setting) -> Iterator[Case]:
    if setting.device == "reference":
        return
    for subject in setting.subjects:
        yield Case(f"{subject.name}/{setting.device}-reference", partial(_run, setting, subject))


def _run(setting: Setting, subject: Subject) -> Evidence:
    count = (ROWS if subject.recipe else OF_FILE)[setting.level]
    expected = subject.plain.rows
    passes = subject.probe(device="reference").feed(subject.tokens[:count], [count])
    found = require_rows(passes, expected, f"computed by the reference and by {setting.device}")
    return Evidence(f"{len(found)} rows of logits, bit for bit those of the reference", together(found))
