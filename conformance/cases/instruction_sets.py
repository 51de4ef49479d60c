"""Which instructions of the processor compute does not matter. Those it lacks are no cases: the report names them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.case import Case, Evidence, counted, require_rows, together
from conformance.setting import Setting, Subject
from kinetic.api.probe import instruction_sets

PROPERTY = "A row has the same bits with every instruction set of this processor."
OF_MODELS = True


def cases(setting: Setting) -> Iterator[Case]:
    if setting.device != "cpu":
        return
    # Kernels of another instruction set are compiled first, which takes longer than all else of a quick run.
    others = instruction_sets()[0][1:]
    for subject in setting.subjects[: 1 if setting.is_quick else None]:
        for isa in others[-1:] if setting.is_quick else others:
            yield Case(f"{subject.name}/{isa}", partial(_run, setting, subject, isa))


def _run(setting: Setting, subject: Subject, isa: str) -> Evidence:
    expected = subject.plain.rows
    passes = subject.probe(threads=setting.threads, isa=isa).feed(subject.tokens, [64, 1, 33])
    found = require_rows(passes, expected, f"computed with {isa}")
    return Evidence(counted(len(found)), together(found))
