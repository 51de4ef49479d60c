"""The selective scan alone: its state goes from row to row, whatever else is in a batch, however it is cut."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import Scan, State
from kinetic.backends.reference.scan import scan_row
from kinetic.types import Batch
from tests.support.backends import ROW_COUNTS, assert_same, inputs, loaded, rows_of
from tests.support.blocks import any_floats, float_weight, normals

ROWS = 257
SHAPES = [(1, 1, 1, 4), (2, 5, 1, 8), (3, 16, 3, 4), (4, 17, 2, 12), (8, 32, 2, 16), (2, 40, 1, 64)]
"""Heads, width of one, groups, elements of state."""


def scanning(heads, width, groups, size, *, values=None, spread=1.0):
    """A forward pass of one scan over rows of an embedding table, and the states it has."""
    spec = Scan(
        heads, width, groups, size,
        float_weight("a", -np.abs(normals(1, heads, 1)) * np.float32(spread)),
        float_weight("d", normals(2, heads, 1)),
        float_weight("dt", normals(3, heads)),
    )  # fmt: skip
    state = State(2, "scan", (heads, -(-width // 16), size, 16))
    x = normals(4, ROWS, heads * width + 2 * groups * size) if values is None else values
    step = float_weight("steps", normals(5, heads, x.shape[1]) * np.float32(0.3))

    def forward(ops):
        inner = inputs(ops, x)
        return ops.outputs(ops.scan(inner, ops.linear(inner, step), spec, state))

    return forward, (state,)


def pieces(program, sizes):
    """All rows of one sequence, in pieces of these sizes, over and over."""
    found, done = [], 0
    while done < ROWS:
        count = min(sizes[len(found) % len(sizes)], ROWS - done)
        rows = range(done, done + count)
        found.append(program.run(Batch(tuple(rows), tuple(rows), (0,) * count, tuple(range(count)))))
        done += count
    return np.concatenate(found)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_of_rows(shape):
    forward, states = scanning(*shape)
    with loaded(forward, (), "reference", 1, states) as program:
        expected = program.run(rows_of(ROWS))
        kept = program.snapshot(0).states[states[0]]
    assert np.isfinite(expected).all()
    for threads in (1, 2):
        with loaded(forward, (), "cpu", threads, states) as program:
            for count in ROW_COUNTS:
                assert_same(program.run(rows_of(count)), expected[:count], f"with {count} rows")
            assert_same(program.snapshot(0).states[states[0]], kept)


@pytest.mark.parametrize("sizes", [[1], [2, 1], [7], [64, 1, 1], [255, 2]], ids=str)
def test_pieces_of_one_sequence(sizes):
    forward, states = scanning(4, 17, 2, 12)
    with loaded(forward, (), "cpu", 2, states) as program:
        assert_same(pieces(program, sizes), program.run(rows_of(ROWS)))


def test_rows_of_sequences_in_any_place():
    """Rows of three sequences are drawn from a hat; each keeps the bits that it has alone."""
    forward, states = scanning(3, 16, 3, 4)
    generator = np.random.default_rng(7)
    with loaded(forward, (), "cpu", 2, states) as program:
        alone = program.run(rows_of(ROWS))
        reached = dict.fromkeys((5, 0, 2), 0)
        for size in (1, 3, 40, 2, 90, 33):
            sequences = tuple(int(s) for s in generator.choice(list(reached), size))
            positions = []
            for sequence in sequences:
                positions.append(reached[sequence])
                reached[sequence] += 1
            batch = Batch(tuple(positions), tuple(positions), sequences, tuple(range(size)))
            assert_same(program.run(batch), alone[positions])


def test_any_floats():
    """Infinities and NaN reach only the head, and the group, that they are in."""
    values = any_floats(4, ROWS, 2 * 5 + 2 * 8)
    forward, states = scanning(2, 5, 1, 8, values=values)
    with loaded(forward, (), "reference", 1, states) as program:
        expected = program.run(rows_of(ROWS))
    with loaded(forward, (), "cpu", 2, states) as program:
        assert_same(program.run(rows_of(ROWS)), expected)


def test_a_state_fades_to_nothing():
    """With no input it becomes +0 below 2^-100, in the same row on both backends, and never a subnormal number."""
    values = np.zeros((ROWS, 2 * 5 + 2 * 8), np.float32)
    values[0] = 1
    forward, states = scanning(2, 5, 1, 8, values=values, spread=8)
    kept = []
    for backend in ("reference", "cpu"):
        with loaded(forward, (), backend, 1, states) as program:
            for t in range(ROWS):
                program.run(Batch((t,), (t,), (0,), (0,)))
                kept.append(program.snapshot(0).states[states[0]])
    assert_same(np.array(kept[ROWS:]), np.array(kept[:ROWS]))
    sizes = np.abs(np.array(kept))
    assert (sizes[0, :, 0, :, :5] > 0).all()
    assert not sizes[:, :, 0, :, 5:].any()
    assert ((sizes == 0) | (sizes >= 2.0**-100)).all()
    assert (np.array(kept)[[ROWS - 1, -1]].view(np.uint32) == 0).all()


def test_a_row_by_hand():
    """The definition in float64, from a state that is not empty."""
    heads, width, groups, size = 4, 3, 2, 8
    x, b, c = normals(1, heads, width), normals(2, groups, size), normals(3, groups, size)
    dt, a, d = normals(4, heads) * 3, -np.abs(normals(5, heads)), normals(6, heads)
    dt[0] = 25
    old = np.zeros((heads, 1, size, 16), np.float32)
    old[:, 0, :, :width] = normals(7, heads, size, width)
    state = old.copy()
    y = scan_row(x, b, c, dt, state, a, d)
    step = np.where(dt > 20, dt, np.log1p(np.exp(dt.astype(np.float64))))
    for h in range(heads):
        g = h // (heads // groups)
        for p in range(width):
            new = old[h, 0, :, p] * np.exp(step[h] * a[h]) + b[g] * x[h, p] * step[h]
            assert np.allclose(state[h, 0, :, p], new, rtol=1e-5, atol=1e-6)
            assert np.isclose(y[h, p], new @ c[g].astype(np.float64) + d[h] * x[h, p], rtol=1e-5, atol=1e-5)
