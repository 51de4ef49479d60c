"""The compiled candidates against the reference: ties, signs of zero, -inf, every k and floor, every length."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinetic.backends.reference.candidates import candidates
from kinetic.errors import NonFinite
from tests.support.backends import inputs, loaded
from tests.support.blocks import float_weight, integers, normals, words

LARGE = 262_144
NEGATIVE_INFINITY = np.float32(-np.inf)


@pytest.fixture(scope="module")
def program():
    """Any model with a vocabulary this large will do."""
    head = float_weight("head", np.zeros((LARGE, 1), np.float32))
    with loaded(lambda ops: ops.linear(inputs(ops, normals(90, 1, 1)), head)) as made:
        yield made


def check(program, row, k, floor):
    ids, values = program.candidates(row, k, floor)
    expected_ids, expected_values = candidates(row, k, floor)
    assert ids.tolist() == expected_ids.tolist(), (len(row), k, floor)
    assert values.tobytes() == expected_values.tobytes(), (len(row), k, floor)
    assert ids.dtype == expected_ids.dtype


def rows():
    yield "spread", normals(91, 1000) * np.float32(5)
    yield "ties", integers(92, -3, 4, 1000).astype(np.float32)
    yield "all equal", np.full(1000, -2.5, np.float32)
    yield "zeros", np.where(words(93, 1000) & np.uint64(1), np.float32(-0.0), np.float32(0))
    yield "some banned", np.where(words(94, 1000) % 3 == 0, NEGATIVE_INFINITY, normals(95, 1000))
    yield "all banned but one", np.where(np.arange(1000) == 777, np.float32(-3e38), NEGATIVE_INFINITY)
    yield "ascending", np.arange(1000, dtype=np.float32)
    yield "descending", -np.arange(1000, dtype=np.float32)
    yield "extremes", np.resize(np.array([3.4e38, -3.4e38, 1e-45, -1e-45], np.float32), 1000)


@pytest.mark.parametrize("name, row", list(rows()), ids=[name for name, _ in rows()])
def test_every_k_and_floor(program, name, row):
    for k in (0, 1, 2, 3, 39, 40, 41, 999, 1000, 1001, 5000):
        for floor in (math.inf, 0.0, 1.0, 28.0, 22.4, 1e30):
            check(program, row, k, floor)


def test_every_length(program):
    row = np.round(normals(96, 300) * np.float32(4))
    for length in (*range(1, 70), 255, 256, 257, 300):
        for k in (0, 1, 40):
            check(program, row[:length], k, 28.0)


@pytest.mark.parametrize("kind", ["spread", "ties", "zeros"])
def test_a_large_vocabulary(program, kind):
    row = {
        "spread": normals(97, LARGE) * np.float32(4),
        "ties": np.full(LARGE, 1.5, np.float32),
        "zeros": np.where(words(98, LARGE) & np.uint64(1), np.float32(-0.0), np.float32(0)),
    }[kind]
    for k in (1, 2, 40, 0):
        check(program, row, k, 28.0)


@pytest.mark.parametrize("place", [0, 1, 15, 16, 17, 998, 999])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_refused_wherever_it_stands(program, place, value):
    row = normals(99, 1000)
    row[place] = value
    for find in (program.candidates, candidates):
        for k in (0, 1, 40):
            with pytest.raises(NonFinite, match=rf"token {place}\b"):
                find(row, k, 28.0)


def test_nothing_left_to_draw_is_refused(program):
    for find in (program.candidates, candidates):
        with pytest.raises(NonFinite):
            find(np.full(1000, NEGATIVE_INFINITY), 40, 28.0)


def test_what_lies_behind_a_row_does_not_count(program):
    """The kernel reads whole lines: an earlier, longer row must not shine through."""
    program.candidates(np.full(1000, 50, np.float32), 0, math.inf)
    for length in (1, 17, 31):
        check(program, normals(100, length), 0, math.inf)
