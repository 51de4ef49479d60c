"""The exceptions of ``ktc.errors`` under this package's name, and the table of verdicts."""

from __future__ import annotations

from collections.abc import Iterable

from ktc.errors import FileProblem, KtcError, LimitExceeded, Malformed, SignatureProblem, Unverifiable

__all__ = [
    "DIFFERS",
    "IDENTICAL",
    "VERDICTS",
    "FileProblem",
    "KtcError",
    "LimitExceeded",
    "Malformed",
    "SignatureProblem",
    "Unverifiable",
    "worst",
]

IDENTICAL, DIFFERS = 0, 10

VERDICTS = {
    0: "IDENTICAL",
    10: "DIFFERS",
    11: "MALFORMED",
    12: "SIGNATURE",
    13: "UNVERIFIABLE",
    14: "LIMIT",
    3: "UNREADABLE",
    1: "FAULT",
}
"""Exit code to the one word that stands for it."""

_WORST_FIRST = (12, 11, 10, 14, 1, 3, 13, 0)


def worst(codes: Iterable[int]) -> int:
    """The exit code of several files: the gravest of theirs; 0 for none."""
    return min(codes, key=_WORST_FIRST.index, default=0)
