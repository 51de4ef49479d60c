"""The best logits without the others: what is left out can't be one of them, whatever the matrix and the row are."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from kinetic.backends import cpu
from kinetic.backends.base import Weight
from kinetic.backends.cpu import shortlist
from kinetic.errors import NonFinite
from kinetic.formats import by_type
from kinetic.types import Batch
from tests.support.backends import assert_same, inputs, loaded, run
from tests.support.blocks import integers, normals

Q8_0 = by_type(8, "Q8_0")

VOCABULARY = 777
"""48 whole groups of 16 rows, and one that is not."""


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    monkeypatch.setattr(shortlist, "SMALLEST", 0)
    monkeypatch.setattr(shortlist, "AFTER", 0)
    monkeypatch.setattr(shortlist, "LEADERS", 8)


def table(q, d):
    """Q8_0 of integers [N, K] and scales [N, K / 32]."""
    rows, width = q.shape
    data = np.zeros((rows, width // 32, Q8_0.BYTES), np.uint8)
    data[..., :2] = np.ascontiguousarray(d, np.float16)[..., None].view(np.uint8)
    data[..., 2:] = np.ascontiguousarray(q, np.int8).reshape(rows, -1, 32).view(np.uint8)
    return Weight("output.weight", Q8_0.TYPE_ID, q.shape, data.reshape(rows, -1))


def random_table(width, seed, rows=VOCABULARY):
    q = integers(seed, -128, 127, rows, width)
    return q, np.abs(normals(seed + 1, rows, width // 32)) * 0.01 + 0.001


def one(row, sequence=0):
    return Batch((row,), (0,), (sequence,), (0,))


@contextmanager
def program_of(weight, values, threads=2):
    with loaded(lambda ops: ops.linear(inputs(ops, values), weight), threads=threads) as program:
        yield program


def check(weight, values, threads=2, bests=(1, 2, 3, 8)):
    """Each row of ``values``: the best logits are those of the plain way. Returns the groups left, by row."""
    left = []
    plain = run(
        lambda ops: ops.linear(inputs(ops, values), weight),
        Batch(tuple(range(len(values))), (0,) * len(values), tuple(range(len(values))), tuple(range(len(values)))),
        backend="reference",
    )
    with program_of(weight, values, threads) as program:
        for number, expected in enumerate(plain):
            for best in bests:
                (found,) = program.run(one(number), best=best)
                kept = ~(found == -np.inf)
                assert_same(found[kept], expected[kept])
                check_bounds(program, expected)
                for k in range(1, best + 1):
                    assert drawn(program, found, k) == drawn(program, expected, k)
                if best == 2:
                    left.append(program._shortlist.left)
            assert_same(program.run(one(number))[0], expected)
        if program._shortlist._copy is not None:
            check_halves(program, plain)
    return left


def check_halves(program, plain):
    """Half of the packed matrix is left, and all logits of any number of rows are still the same."""
    assert program._shortlist._rest is not None and program.weights._weights == {}
    for rows in (1, 2, 7, 16, 33):
        numbers = tuple(row % len(plain) for row in range(rows))
        batch = Batch(numbers, (0,) * rows, tuple(range(rows)), tuple(range(rows)))
        assert_same(program.run(batch), plain[list(numbers)])


def drawn(program, row, k):
    try:
        ids, values = program.candidates(row, k, np.inf)
        return ids.tolist(), values.view(np.int32).tolist()
    except NonFinite as error:
        return str(error)


def check_bounds(program, expected):
    """Every bound is reached by no logit of its group, or is +inf; where a logit is NaN or +inf it is +inf."""
    groups = np.full(len(program._shortlist._bounds) * 16, -np.inf, np.float32)
    groups[: len(expected)] = np.where(expected < np.inf, expected, np.inf)
    assert (groups.reshape(-1, 16).max(axis=1) <= program._shortlist._bounds).all()


@pytest.mark.parametrize("width, threads", [(32, 1), (64, 2), (288, 3), (640, 2), (1024, 1)])
def test_random_tables(width, threads):
    q, d = random_table(width, width)
    values = normals(width + 5, 3, width)
    left = check(table(q, d), values, threads)
    # A row that is like one of the table is far better there than anywhere else.
    close = (q * np.repeat(d, 32, axis=1))[[0, 400, 776]].astype(np.float32)
    left = check(table(q, d), close, threads)
    if width >= 640:
        assert max(left) < 40, "groups that can't win are left out"


def test_ties():
    q, d = random_table(640, 3)
    q[700], d[700] = q[5], d[5]
    q[776], d[776] = q[5], d[5]
    left = check(table(q, d), (q[[5]] * np.repeat(d[[5]], 32, axis=1)).astype(np.float32))
    assert left[0] < 40
    q[:], d[:] = q[5], d[5]
    assert check(table(q, d), normals(1, 2, 640)) == [49, 49]


def test_margins_of_one_step():
    """Rows that differ from the best one by one integer of one block, up and down, all over the table."""
    q, d = random_table(640, 9)
    best = q[100].copy()
    for number, row in enumerate(range(0, 770, 11)):
        q[row], d[row] = best, d[100]
        q[row, 9 * number % 640] += 1 if number % 2 else -1
    check(table(np.clip(q, -128, 127), d), (best * np.repeat(d[[100]], 32, axis=1)).astype(np.float32))


def test_lower_halves_that_all_point_one_way():
    """What was left out of the copy adds all that it can: nothing less than the bound would do."""
    signs = np.where(integers(4, 0, 1, 640) == 1, 1, -1)
    q = np.tile(np.where(signs > 0, 15, 0), (VOCABULARY, 1)) + 16 * integers(5, -8, 7, VOCABULARY, 640)
    d = np.full((VOCABULARY, 20), 0.01)
    check(table(q, d), np.stack([signs, -signs]).astype(np.float32))


def test_scales_of_every_size():
    q, d = random_table(640, 11)
    d *= np.exp2(integers(12, -12, 9, *d.shape))
    d[::5] = 0
    d[3::50] = -0.0
    d[7::9, 3] = 6e-8
    check(table(q, d), np.ldexp(normals(13, 4, 640), np.repeat(integers(14, -9, 9, 4, 20), 32, axis=1)))


@pytest.mark.parametrize("spikes", [1, 20, 200])
def test_rows_with_large_elements(spikes):
    """What most of a row lies in is bounded by itself: fewer groups are left than by lengths alone."""
    q, d = random_table(640, 31)
    values = normals(32, 2, 640)
    values[:, integers(33, 0, 639, spikes)] *= 12
    values[1] = -values[0]
    check(table(q, d), values)
    lower = np.where(values[0] < 0, -128, 112) + np.where(values[0] < 0, 0, 15)
    q[::3] = np.clip(lower, -128, 127)  # halves that add all that they can
    check(table(q, d), values)


def test_zeros():
    q, d = random_table(640, 15)
    nothing = np.zeros((2, 640), np.float32)
    nothing[1, ::2] = -0.0
    assert check(table(q, d), nothing) == [49, 49]
    assert check(table(0 * q, d), normals(1, 1, 640)) == [49]
    assert check(table(q, 0 * d), normals(1, 1, 640)) == [49]


def test_numbers_that_are_not_finite_are_refused_alike():
    q, d = random_table(640, 17)
    values = normals(18, 6, 640)
    values[0, 3] = np.nan
    values[1, 3] = np.inf
    values[2] *= np.float32(1e38)  # sums beyond every float
    values[3] = np.float32(3e38)
    values[4, 33] = -np.inf
    d[500:] = 60000
    check(table(q, d), values)
    q[...], values[3] = -np.abs(q), np.abs(values[3])
    check(table(q, d), values)  # where all logits are -inf


def test_a_scale_below_zero_has_no_bound():
    q, d = random_table(640, 19)
    d[VOCABULARY - 1, 19] = -1e-4
    values = normals(20, 1, 640)
    with program_of(table(q, d), values) as program:
        expected = program.run(one(0))
        for _ in range(3):
            assert_same(program.run(one(0), best=2), expected)
        assert program._shortlist._is_impossible


def test_only_one_row_of_a_batch_asked_for():
    """Prompts end with one row of logits; two have all of them."""
    q, d = random_table(640, 21)
    values = (q[:40] * np.repeat(d[:40], 32, axis=1)).astype(np.float32)
    with loaded(lambda ops: ops.linear(ops.outputs(inputs(ops, values)), table(q, d))) as program:
        rows = tuple(range(40))
        expected = program.run(Batch(rows, rows, (0,) * 40, rows))
        (found,) = program.run(Batch(rows, rows, (0,) * 40, (17,)), best=2)
        assert_same(found, expected[17], "no token behind a prompt waits for a copy")
        program.run(one(0), best=2)
        (found,) = program.run(Batch(rows, rows, (0,) * 40, (17,)), best=2)
        assert (found == -np.inf).any()
        assert drawn(program, found, 2) == drawn(program, expected[17], 2)
        assert_same(program.run(Batch(rows, rows, (0,) * 40, (17, 18)), best=2), expected[17:19])


def test_the_copy_is_made_when_it_was_missed_often_enough(monkeypatch):
    monkeypatch.setattr(shortlist, "AFTER", 3)
    q, d = random_table(640, 23)
    values = (q[:1] * np.repeat(d[:1], 32, axis=1)).astype(np.float32)
    with program_of(table(q, d), values) as program:
        seen = [bool((program.run(one(0), best=best) == -np.inf).any()) for best in (2, 2, 0, 2, 9, 2, 0, 2)]
    assert seen == [False, False, False, False, False, True, False, True]


def test_it_rests_where_too_many_groups_are_left(monkeypatch):
    monkeypatch.setattr(shortlist, "TRIAL", 2)
    monkeypatch.setattr(shortlist, "PAUSE", 3)
    q, d = random_table(640, 25)
    values = np.zeros((2, 640), np.float32)  # of the first row nothing can be left out
    values[1] = q[1] * np.repeat(d[1], 32)
    with program_of(table(q, d), values) as program:
        for _ in range(2):
            program.run(one(0), best=2)
        seen = [bool((program.run(one(1), best=2) == -np.inf).any()) for _ in range(5)]
    assert seen == [False, False, False, True, True]


def test_a_small_matrix_has_no_copy(monkeypatch):
    monkeypatch.setattr(shortlist, "SMALLEST", 1 << 20)
    q, d = random_table(640, 27)
    with program_of(table(q, d), normals(1, 1, 640)) as program:
        assert program._shortlist is None


def test_a_matrix_that_others_read_stays_whole():
    """Another program of the device, or a pack that is being written."""
    q, d = random_table(640, 37)
    weight, values = table(q, d), normals(38, 2, 640)

    class Writing:
        is_idle = False

    device = cpu.open_backend(threads=1)
    first, second = (device.load(lambda ops: ops.linear(inputs(ops, values), weight), ()) for _ in range(2))
    third = cpu.open_backend(threads=1).load(lambda ops: ops.linear(inputs(ops, values), weight), ())
    third.weights._written = Writing()
    expected = first.run(one(0))
    for program in (first, second, third):
        program.run(one(0), best=2)
        assert program._shortlist._copy is not None and program._shortlist._rest is None
        assert_same(program.run(one(0)), expected)
    later = device.load(lambda ops: ops.linear(inputs(ops, values), weight), ())
    assert_same(later.run(one(0)), expected)
    for program in (first, second, third, later):
        program.close()


def test_a_matrix_that_was_halved_is_packed_anew_for_others():
    q, d = random_table(640, 39)
    weight, values = table(q, d), normals(40, 2, 640)
    device = cpu.open_backend(threads=1)
    first = device.load(lambda ops: ops.linear(inputs(ops, values), weight), ())
    expected = first.run(one(0))
    first.run(one(0), best=2)
    assert first._shortlist._rest is not None
    second = device.load(lambda ops: ops.linear(inputs(ops, values), weight), ())
    assert_same(second.run(one(0)), expected)
    assert_same(first.run(one(0)), expected)
    for program in (first, second):
        program.close()
