"""exp, ln and sums over a vocabulary: against exact decimals, in the order that is written down."""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np
import pytest
from blake3 import blake3

from kinetic import softmax
from kinetic.errors import NonFinite
from kinetic.lanes import LANES, fold, lane_sum
from kinetic.softmax import ROWS, Workspace, exp_in_place, log_sums
from tests.support.blocks import integers, normals

EXACT = Context(prec=50)


def spread(low: float, high: float, count: int, stream: int) -> np.ndarray:
    """Numbers from low to high, with all bits in use."""
    return low + (high - low) * (integers(stream, 0, 1 << 53, count) / (1 << 53))


def units(x: float, found: float) -> Decimal:
    """How many units in the last place lie between ``found`` and exp(x)."""
    exact = EXACT.exp(Decimal(x))
    return abs(Decimal(found) - exact) / Decimal(float(np.spacing(float(exact))))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.0), (-30.0, 0.0), (-700.0, -30.0), (0.0, 3.0), (-1e-12, 1e-12)])
def test_exp_is_within_two_units_of_the_last_place(low, high):
    x = spread(low, high, 400, 1)
    found = exp_in_place(x.copy(), Workspace())
    assert max(map(units, x.tolist(), found.tolist())) < 2


def test_exp_at_its_ends():
    x = np.array([0.0, -0.0, -700.0, -701.0, -1e300, -np.inf])
    found = exp_in_place(x.copy(), Workspace())
    assert found[0] == found[1] == 1.0
    assert (found[3:] == found[2]).all() and 0 < found[2] < 1e-303


def test_exp_has_these_bits_everywhere():
    """Made once; another digest means another machine, NumPy or Python gives other bits."""
    x = np.concatenate([spread(-40.0, 0.0, 4000, 3), spread(-700.0, 0.0, 4000, 5)])
    found = exp_in_place(x, Workspace())
    assert blake3(found.astype("<f8").tobytes()).hexdigest()[:32] == "9c9e8e563d12d4588f711895716dfe3c"


@pytest.mark.parametrize("x", [1.0, 2.0, 1 + 2**-52, 49152.7, 1e300, 5e-324])
def test_ln_is_correctly_rounded(x):
    assert softmax.ln(x) == float(EXACT.ln(Decimal(x)))
    assert softmax.exp(-softmax.ln(x)) == pytest.approx(1 / x) if x > 1e-300 else True


@pytest.mark.parametrize("width", [1, 2, LANES - 1, LANES, LANES + 1, 2 * LANES + 7])
def test_a_row_is_summed_in_the_order_that_is_written_down(width):
    row = (3 * normals(7, width)).astype(np.float32)
    top = float(row.max())
    terms = [float(exp_in_place(np.array([float(x) - top]), Workspace())[0]) for x in row]
    lanes = [0.0] * LANES
    for i, term in enumerate(terms):
        lanes[i % LANES] += term
    n = LANES
    while n > 1:
        n //= 2
        lanes = [lanes[j] + lanes[j + n] for j in range(n)]
    assert log_sums(row[None]).tolist() == [top + softmax.ln(lanes[0])]


def test_lanes_are_added_in_the_order_that_is_written_down():
    lanes = normals(13, 3 * LANES).astype(np.float64).reshape(3, LANES) / 3
    rows = lanes.copy()
    expected, n = lanes.tolist(), LANES
    while n > 1:
        n //= 2
        expected = [[row[j] + row[j + n] for j in range(n)] for row in expected]
    assert [lane_sum(row) for row in rows] == [row[0] for row in expected]
    assert fold(lanes).tolist() == [row[0] for row in expected]


def test_log_sums_are_exact_to_the_last_digits():
    rows = (4 * normals(9, 3 * 300)).astype(np.float32).reshape(3, 300)
    for row, found in zip(rows, log_sums(rows), strict=True):
        exact = EXACT.ln(sum((EXACT.exp(Decimal(float(x))) for x in row), Decimal(0)))
        assert abs(Decimal(float(found)) - exact) < Decimal("4e-15")


def test_a_row_has_the_bits_that_it_has_alone():
    rows = (4 * normals(11, 3 * ROWS * 333)).astype(np.float32).reshape(-1, 333)
    alone = [log_sums(row[None])[0] for row in rows]
    for count in (1, ROWS - 1, ROWS, ROWS + 1, len(rows)):
        assert log_sums(rows[:count]).tolist() == alone[:count]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_give_no_probabilities(value):
    rows = np.zeros((2, 5), np.float32)
    rows[1, 3] = value
    with pytest.raises(NonFinite):
        log_sums(rows)
    with pytest.raises(NonFinite):
        log_sums(np.full((1, 4), -np.inf, np.float32))


def test_no_rows():
    assert log_sums(np.zeros((0, 5), np.float32)).shape == (0,)


@pytest.mark.parametrize("x", [709.0, 709.78, 709.79, 710.0, 711.0, 3e6, 1e300, np.inf, -746.0, -3e6, -1e30, -np.inf])
def test_exp_beyond_float64(x):
    """Infinity above, and 0 below."""
    with np.errstate(over="ignore"):
        assert softmax.exp(x) == pytest.approx(float(np.exp(x)), rel=1e-13)
