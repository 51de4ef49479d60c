"""Rotation tables that grow: the rows that were asked for are those of the whole table, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends import rope_tables
from kinetic.backends.base import Rope
from kinetic.backends.rope_tables import Turned

ROPE = Rope(rope_tables.frequencies(10000.0, 8), False, 1.5)


@pytest.mark.parametrize(
    "asked",
    [[range(1)], [range(700)], [[2000], [3], range(255, 258)], [[1023, 1024], [0], [5000, 1]], [[511]] * 2],
)
def test_rows_are_those_of_the_whole_table(asked) -> None:
    whole = np.concatenate(rope_tables.table(ROPE, 0, 5120), axis=1)
    turned = Turned(ROPE)
    seen: set[int] = set()
    for positions in asked:
        seen |= set(positions)
        rows = turned.of(positions)
        for position in seen:
            assert rows[position].tobytes() == whole[position].tobytes()


def test_only_chunks_that_are_asked_for_are_computed(monkeypatch) -> None:
    made: list[int] = []
    real = rope_tables.table
    monkeypatch.setattr(rope_tables, "table", lambda rope, start, count: made.append(start) or real(rope, start, count))
    turned = Turned(ROPE)
    for positions in ([2047, 2048], [2050], range(2040, 2060), [7]):
        turned.of(positions)
    assert made == [1792, 2048, 0]
