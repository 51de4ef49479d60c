"""Bundles that are whole are accepted, and others are refused with the right exit code: all vectors of bundles."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from conformance.bundle_vectors import GROUP, run_vector
from conformance.case import Case, Evidence, require
from conformance.setting import Setting
from conformance.vector_files import Vector, read_vectors
from conformance.vector_groups import by_word, digest_of

PROPERTY = "A bundle is believed if and only if every byte of it is accounted for and every digest and signature holds."
OF_MODELS = False


def cases(setting: Setting) -> Iterator[Case]:
    for word, vectors in _vectors().items():
        yield Case(word, partial(_run, setting, vectors))


@cache
def _vectors() -> dict[str, list[Vector]]:
    return by_word(read_vectors(GROUP))


def _run(setting: Setting, vectors: Sequence[Vector]) -> Evidence:
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        for vector in vectors:
            found, expect = run_vector(vector, Path(folder)), vector["expect"]
            require(
                (found.exit_code, found.name) == (expect["exit_code"], expect["name"]),
                f"{vector['id']} gives {found.exit_code} {found.name}, not {expect['exit_code']} {expect['name']}",
            )
            for name in ("manifest_digest", "signers", "passed_over", "leaf"):
                same = getattr(found, name) == expect.get(name, getattr(found, name))
                require(same, f"{vector['id']}: another {name.replace('_', ' ')}")
    return Evidence(f"{len(vectors)} files with the verdicts of their vectors", digest_of(vectors))
