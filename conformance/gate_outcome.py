"""What a gate found: one outcome for each thing that its baseline promises, and the exit code of them all.

An outcome is ``passed``, ``failed`` or ``skipped``, and each but the first has a reason. What was
skipped was not judged, so it never counts as passed: if nothing passed, the gate is shut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from receipts.errors import IDENTICAL
from receipts.report.rows import Row

PASSED, FAILED, SKIPPED = STATUSES = ("passed", "failed", "skipped")

SLOWER, UNJUDGED = 7, 13
"""Exit codes of a loss of speed beyond the noise, and of what can't be judged here."""

WORST_FIRST = (12, 11, 10, 14, 1, 3, SLOWER, UNJUDGED)
"""The order of ``receipts.errors.worst``, with speed after everything that is wrong with an answer."""


class Outcome(NamedTuple):
    """What became of one promise."""

    subject: str
    """A receipt's file, or a test of a model's speed; may hold anything that a file name can."""
    group: str
    """The model's file name, or ``BENCH``."""
    status: str
    name: str
    """A stable identifier: IDENTICAL, DIFFERS, RECEIPT_CHANGED, MODEL_MISSING, SLOWER, ..."""
    sentence: str
    exit_code: int = IDENTICAL
    """What it stands for alone; 0 where it passed."""
    diff: tuple[str, ...] = ()
    """Lines that begin with "@@ ", "- ", "+ " or two spaces, and hold nothing that acts or hides."""
    notes: tuple[str, ...] = ()
    row: Row | None = None
    """Of a receipt: the same for reports."""
    seconds: float = 0.0

    @property
    def is_speed(self) -> bool:
        return self.row is None


BENCH = "bench"


class Result(NamedTuple):
    """Outcomes in the order of the baseline, and what stands above them."""

    outcomes: list[Outcome]
    facts: list[tuple[str, str]]
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """The gravest of what failed. 13 if nothing passed, or where ``is_strict`` and something was skipped."""
        codes = [one.exit_code for one in self.outcomes if one.status == FAILED]
        if self.of(SKIPPED) and (self.is_strict or not self.of(PASSED)):
            codes.append(UNJUDGED)
        return min(codes, key=WORST_FIRST.index, default=IDENTICAL)

    def of(self, status: str) -> list[Outcome]:
        return [one for one in self.outcomes if one.status == status]

    @property
    def headline(self) -> str:
        """The counts in one sentence, and why the gate is shut if nothing failed."""
        counted = [f"{len(self.of(status)):,} {status}" for status in STATUSES]
        sentence = f"{len(self.outcomes):,} checks: {', '.join(counted)}"
        if self.exit_code == UNJUDGED and not self.of(FAILED):
            why = "nothing may be skipped" if self.of(PASSED) else "nothing was judged"
            return f"{sentence}; {why}, so the gate is shut."
        return f"{sentence}."


def reasons(outcomes: Sequence[Outcome]) -> dict[tuple[str, str, str], list[Outcome]]:
    """Outcomes of one group, name and sentence together: six receipts that lack one model are one line."""
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    for one in outcomes:
        found.setdefault((one.group, one.name, one.sentence), []).append(one)
    return found
