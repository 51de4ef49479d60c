"""Mutations that keep JSON and CBOR what they are, and change a value inside."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import cbor2

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**64, -(2**53), 0.5),
    *("", "0", "-1", "1", "0.5", "NaN", "-inf", "\u00e9", "\ud800", "\x1b[2J", "\n", "a" * 65, "b" * 1025),
    *("00" * 32, "AB" * 32, "00" * 8, "end", "stop", "context", "f32", "ed25519", "kinetic-receipt"),
    *([], {}, [[]], [0], [1, 2, 3, 0], ["a"], {"a": ""}, b"", b"\0" * 32),
]
"""What a value may turn into."""


def mutated(chance: random.Random, data: bytes) -> bytes | None:
    """The same document with one to three values changed; None if these bytes are no document."""
    try:
        value, write = _parse(data)
    except Exception:
        return None
    if not isinstance(value, (dict, list)) or not value:
        return None
    try:
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            _change(chance, value)
        return write(value)
    except Exception:  # CBOR holds what Python can't copy, and JSON can't say
        return None


def _parse(data: bytes) -> tuple[Any, Any]:
    if data[:1] > b"\x9f":
        return cbor2.loads(data), lambda value: cbor2.dumps(value, canonical=True)
    return json.loads(data), lambda value: json.dumps(value, default=str).encode("ascii")


def _change(chance: random.Random, table: Any) -> None:
    """Go down to some container, and change, remove, add or exchange something there."""
    while True:
        inner = [item for item in _items(table) if isinstance(item, (dict, list)) and item]
        if not inner or chance.random() < 0.25:
            break
        table = chance.choice(inner)
    places = list(table) if isinstance(table, dict) else list(range(len(table)))
    if not places:
        return
    place, kind = chance.choice(places), chance.randrange(6)
    if kind == 0:
        del table[place]
    elif kind == 1 and isinstance(table, dict):
        table[chance.choice(["seed", "crit", "x", ""])] = copy.deepcopy(chance.choice(VALUES))
    elif kind == 1 and isinstance(table, list):
        table.insert(place, copy.deepcopy(table[place]))
    elif kind == 2:
        table[place] = copy.deepcopy(table[chance.choice(places)])
    elif kind == 3:
        table[place] = _near(chance, table[place])
    else:
        table[place] = copy.deepcopy(chance.choice(VALUES))


def _items(table: Any) -> list[Any]:
    return list(table.values()) if isinstance(table, dict) else list(table)


def _near(chance: random.Random, value: Any) -> Any:
    """A value of the same type close by."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chance.choice((-1, 1, 255, 2**32))
    if isinstance(value, (str, bytes)) and value:
        at = chance.randrange(len(value))
        return value[:at] + value[at : at + 1] * chance.choice((0, 2, 40)) + value[at + 1 :]
    if isinstance(value, list):
        return chance.sample(value, len(value))
    return value
