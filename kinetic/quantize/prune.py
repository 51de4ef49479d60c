"""Leaving layers out: those that stay move up, and so do the names of their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kinetic.errors import UsageError

_LAYER: Final = re.compile(r"blk\.([0-9]+)\.")


def renamed(names: Iterable[str], layers: frozenset[int]) -> tuple[dict[str, str], int]:
    """Name -> name in the result, without the tensors of ``layers``; and how many layers are left (0 if none go).

    ``names`` come in the file's order. Raises UsageError for layers that aren't there, or if none would be left.
    """
    names = list(names)
    if not layers:
        return {name: name for name in names}, 0
    _check({int(found[1]) for found in map(_LAYER.search, names) if found}, layers)
    first = min(layers)
    numbers: dict[int, int] = {}
    left = 0
    kept: dict[str, str] = {}
    for name in names:
        found = _LAYER.search(name)
        if found is None:
            kept[name] = name
            continue
        layer = int(found[1])
        if layer not in layers:
            if layer not in numbers:
                numbers[layer] = layer if layer < first else left
                left = numbers[layer] + 1
            kept[name] = name[: found.start(1)] + str(numbers[layer]) + name[found.end(1) :]
    return kept, left


def _check(present: set[int], layers: frozenset[int]) -> None:
    missing = sorted(layers - present)
    if missing:
        there = f"its last is {max(present)}" if present else "it has none"
        raise UsageError(f"the model has no layer {missing[0]} to prune: {there}", name="MISSING_LAYER")
    if present == layers:
        raise UsageError("--prune-layers names every layer: leave one out of it", name="NO_LAYER_LEFT")
