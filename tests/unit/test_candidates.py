"""The candidates op against a plain sort in Python."""

import math

import numpy as np
import pytest

from kinetic.backends.reference.candidates import GROUP, candidates
from kinetic.errors import NonFinite

SIZES = (1, 2, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP, 40 * GROUP - 1, 40 * GROUP, 40 * GROUP + 1)
COUNTS = (0, 1, 2, 39, 40, 41, 5000)


def expected(row, k, floor):
    threshold = np.float32(max(row) - np.float32(floor))
    order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))
    kept = [i for i in order if row[i] >= threshold and row[i] > -math.inf]
    return kept[: k or None]


def rows(size):
    generator = np.random.default_rng(size)
    spread = (generator.standard_normal(size) * 4).astype(np.float32)
    yield spread
    yield np.round(spread)  # many ties, and -0 beside +0
    yield np.zeros(size, np.float32)
    yield np.where(np.arange(size) % 3 == 1, np.float32(-np.inf), spread)
    yield np.sort(spread)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", COUNTS)
@pytest.mark.parametrize("floor", [0.0, 2.5, 28.0, math.inf])
def test_equals_a_plain_sort(size, k, floor):
    for row in rows(size):
        ids, values = candidates(row, k, floor)
        assert ids.dtype == np.int32
        assert ids.tolist() == expected(row, k, floor)
        assert values.tobytes() == row[ids].tobytes()


def test_minus_zero_equals_zero():
    row = np.array([-0.0, 0.0, -1.0, -0.0, 0.0], np.float32)
    assert candidates(row, 0, math.inf)[0].tolist() == [0, 1, 3, 4, 2]


def test_subnormals_are_told_apart():
    row = np.array([0.0, 1e-45, -1e-45, 3e-45], np.float32)
    assert candidates(row, 0, 1.0)[0].tolist() == [3, 1, 0, 2]


def test_extremes_of_float32():
    most = np.finfo(np.float32).max
    row = np.array([-most, most, 0.0], np.float32)
    assert candidates(row, 0, math.inf)[0].tolist() == [1, 2, 0]
    assert candidates(row, 0, 28.0)[0].tolist() == [1]
    assert candidates(np.array([-most, -most], np.float32), 0, float(most))[0].tolist() == [0, 1]


@pytest.mark.parametrize("k", [0, 2])
def test_a_vocabulary_of_ties(k):
    ids, _ = candidates(np.full(262_144, -3.5, np.float32), k, 28.0)
    assert ids.tolist() == list(range(k or 262_144))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("size", [5, 2000])
def test_a_number_that_is_not_finite_is_named(bad, size):
    row = np.full(size, -1.0, np.float32)
    row[0] = -np.inf
    row[3:5] = bad
    with pytest.raises(NonFinite, match=r"token 3 is (nan|inf)"):
        candidates(row, 2, 28.0)


def test_nan_is_found_beside_infinity():
    with pytest.raises(NonFinite, match="token 1 is inf"):
        candidates(np.array([0, np.inf, np.nan], np.float32), 0, 28.0)
    with pytest.raises(NonFinite, match="token 1 is nan"):
        candidates(np.array([0, np.nan, np.inf], np.float32), 0, 28.0)


def test_nothing_left_to_draw():
    with pytest.raises(NonFinite, match="every logit is -inf"):
        candidates(np.full(7, -np.inf, np.float32), 2, 28.0)


def test_minus_infinity_is_never_a_candidate():
    row = np.full(100, -np.inf, np.float32)
    row[70] = -3e38
    assert candidates(row, 2, math.inf)[0].tolist() == [70]
