"""Test vectors as data: where they lie, and how the bytes of a vector's file are put together.

A vector is one scenario, one JSON file; ``vectors/README.md`` describes the
fields. Needs the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "vectors" / "v1"
BASES = FOLDER / "receipts" / "base"
GROUPS = ("receipts", "trust")

Vector = dict[str, Any]


def read_vectors(group: str) -> Iterator[Vector]:
    """The vectors of one group in the order of their names."""
    for path in sorted((FOLDER / group).glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


@cache
def base(name: str) -> bytes:
    """One of the files that others are changed from."""
    return (BASES / name).read_bytes()


def file_bytes(recipe: dict[str, Any]) -> bytes:
    """The bytes that a recipe describes: ``lines``, ``hex``, ``parts``, or a ``base`` with replacements.

    Raises ValueError where what is to be replaced does not stand there exactly once.
    """
    if "lines" in recipe:
        return "\n".join(recipe["lines"]).encode("utf-8")
    if "hex" in recipe:
        return bytes.fromhex(recipe["hex"])
    if "parts" in recipe:
        return b"".join(_part(part) for part in recipe["parts"])
    data = base(recipe["base"])
    for old, new in recipe.get("replace", ()):
        data = _replace_once(data, old.encode("utf-8"), new.encode("utf-8"))
    for old, new in recipe.get("replace_hex", ()):
        data = _replace_once(data, bytes.fromhex(old), bytes.fromhex(new))
    return data


def _part(part: dict[str, Any]) -> bytes:
    data = file_bytes(part["file"]) if "file" in part else part["text"].encode("utf-8")
    return data * int(part.get("times", 1))


def _replace_once(data: bytes, old: bytes, new: bytes) -> bytes:
    if data.count(old) != 1:
        raise ValueError(f"{old!r} stands there {data.count(old)} times, not once")
    return data.replace(old, new)


def default_engine() -> dict[str, Any]:
    """The made-up engine that a vector's ``engine`` changes."""
    table: dict[str, Any] = json.loads(base("engine.json"))
    return table
