"""Receipts that hold are accepted, others refused with the right exit code: all vectors of receipts and trust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial

from conformance.case import Case, Evidence, require
from conformance.run_vector import run_vector
from conformance.setting import Setting
from conformance.vector_files import GROUPS, Vector, read_vectors
from conformance.vector_groups import by_word, digest_of

PROPERTY = "A receipt is believed if and only if its form, its digests, its signatures and its answer hold."
OF_MODELS = False


def cases(setting: Setting) -> Iterator[Case]:
    for group in GROUPS:
        for word, vectors in _vectors(group).items():
            yield Case(f"{group}/{word}", partial(_run, vectors))


@cache
def _vectors(group: str) -> dict[str, list[Vector]]:
    return by_word(read_vectors(group))


def _run(vectors: Sequence[Vector]) -> Evidence:
    for vector in vectors:
        found, expect = run_vector(vector), vector["expect"]
        require(
            (found.exit_code, found.name) == (expect["exit_code"], expect["name"]),
            f"{vector['id']} gives {found.exit_code} {found.name}, not {expect['exit_code']} {expect['name']}",
        )
        for name in ("receipt_id", "question_id", "position"):
            require(getattr(found, name) == expect.get(name, getattr(found, name)), f"{vector['id']}: another {name}")
    return Evidence(f"{len(vectors)} files with the verdicts of their vectors", digest_of(vectors))
