"""What a case is, and how one passes, fails or is skipped.

A module in ``cases`` is one property: ``PROPERTY`` is it in a sentence, ``cases(setting)`` yields its cases, and
``OF_MODELS`` says whether they are about a model, and so are run on one that the user names. Its file's name and a
case's name together, ``rows/llama-mixed/7-9``, name the case for good: reports, certificates and ``--only`` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

F32 = NDArray[np.float32]

LEVELS = ("quick", "normal", "full")


class Evidence(NamedTuple):
    """What a case that holds has compared."""

    text: str
    digest: str = ""
    """BLAKE3 in hex of what was computed: the same on every machine. "" where there is nothing to digest."""


class Case(NamedTuple):
    """One thing to try. Building a case must cost nothing; ``run`` returns evidence or raises."""

    name: str
    run: Callable[[], Evidence]


class DoesNotHold(Exception):
    """The property is violated; the message says where."""


class Skipped(Exception):
    """The case can't be tried here; the message says why. A case that is skipped has not passed."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise DoesNotHold(message)


# --- rows of logits ---


def row_digests(rows: F32) -> list[bytes]:
    """BLAKE3 of each row float32 [V], little-endian."""
    little = np.ascontiguousarray(rows, "<f4")
    return [blake3(row.view("u1").data).digest() for row in little]


def together(digests: Iterable[bytes]) -> str:
    """One digest of several, hex."""
    hasher = blake3()
    for digest in digests:
        hasher.update(digest)
    return hasher.hexdigest()


def require_rows(passes: Iterable[F32], expected: Sequence[bytes], how: str, first: int = 0) -> list[bytes]:
    """The digests of all rows of some passes, if they are those ``expected`` from row ``first`` on."""
    found: list[bytes] = []
    for rows in passes:
        for digest in row_digests(rows):
            place = first + len(found)
            require(digest == expected[place], f"row {place} {how} has other bits than it has alone")
            found.append(digest)
    return found


def counted(rows: int, what: str = "bit for bit those of one row at a time") -> str:
    return f"{rows:,} row{'' if rows == 1 else 's'} of logits, {what}"
