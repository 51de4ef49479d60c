"""Vectors of files, put together into cases by the first word of their names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from blake3 import blake3

from conformance.vector_files import Vector


def by_word(vectors: Iterable[Vector]) -> dict[str, list[Vector]]:
    groups: dict[str, list[Vector]] = {}
    for vector in vectors:
        groups.setdefault(vector["id"].partition("-")[0], []).append(vector)
    return groups


def digest_of(vectors: Sequence[Vector]) -> str:
    """BLAKE3 of what vectors expect, hex."""
    said = [[vector["id"], vector["expect"]] for vector in vectors]
    return blake3(json.dumps(said, sort_keys=True).encode()).hexdigest()
