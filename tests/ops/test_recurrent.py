"""Recurrences alone: their states go from row to row of a sequence, whatever else is in a batch, however it is cut."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import State
from kinetic.backends.reference import functions
from kinetic.errors import KineticError
from kinetic.types import Batch
from tests.support.backends import ROW_COUNTS, assert_same, inputs, loaded, rows_of
from tests.support.blocks import any_floats, float_weight, normals

ROWS = 257


def convolution(channels, taps, *, bias=False, activation="", values=None):
    """A forward pass of one short_conv over rows of an embedding table, and the states it has."""
    state = State(3, "conv", (taps - 1, channels))
    weight = float_weight("taps", normals(1, channels, taps))
    offsets = float_weight("bias", normals(2, channels)) if bias else None
    rows = normals(3, ROWS, channels) if values is None else values
    return lambda ops: ops.outputs(ops.short_conv(inputs(ops, rows), weight, offsets, state, activation)), (state,)


def by_hand(rows, weight, bias, activation):
    """All rows of one sequence at once, from the definition in docs/NUMERICS.md."""
    taps = weight.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, rows.shape[1]), np.float32), rows])
    y = np.zeros_like(rows)
    for k in range(taps):
        y = functions.fma32(padded[k : k + len(rows)], weight[:, k], y)
    y = y if bias is None else y + bias
    return functions.ACTIVATIONS[activation](y) if activation else y


@pytest.mark.parametrize("channels", [1, 5, 16, 50, 256, 300])
@pytest.mark.parametrize("taps, bias, activation", [(3, False, ""), (4, True, "silu"), (2, True, ""), (1, False, "")])
def test_short_conv(channels, taps, bias, activation):
    """One sequence in pieces of every size: the definition's rows, and the last K - 1 inputs as the state."""
    forward, states = convolution(channels, taps, bias=bias, activation=activation)
    rows = normals(3, ROWS, channels)
    expected = by_hand(rows, normals(1, channels, taps), normals(2, channels) if bias else None, activation)
    for backend, threads, counts in (("reference", 1, (ROWS,)), ("cpu", 1, ROW_COUNTS), ("cpu", 2, ROW_COUNTS)):
        with loaded(forward, (), backend, threads, states) as program:
            for count in counts:
                assert_same(program.run(rows_of(count)), expected[:count], f"with {count} rows")
                kept = program.snapshot(0).states[states[0]]
                padded = np.concatenate([np.zeros((taps - 1, channels), np.float32), rows[:count]])
                assert_same(kept, padded[len(padded) - (taps - 1) :])


@pytest.mark.parametrize("sizes", [[1], [2, 1], [7], [64, 1, 1], [255, 2]])
def test_pieces_of_one_sequence(sizes):
    forward, states = convolution(70, 4, bias=True, activation="silu")
    with loaded(forward, (), "cpu", 2, states) as program:
        whole = program.run(rows_of(ROWS))
        found, done = [], 0
        while done < ROWS:
            count = min(sizes[len(found) % len(sizes)], ROWS - done)
            rows = range(done, done + count)
            found.append(program.run(Batch(tuple(rows), tuple(rows), (0,) * count, tuple(range(count)))))
            done += count
        assert_same(np.concatenate(found), whole)


def test_rows_of_sequences_in_any_place():
    """Rows of four sequences are drawn from a hat; each keeps the bits that it has alone."""
    forward, states = convolution(40, 3)
    generator = np.random.default_rng(7)
    for backend in ("reference", "cpu"):
        with loaded(forward, (), backend, 2, states) as program:
            alone = program.run(rows_of(ROWS))
            reached = dict.fromkeys((5, 0, 2, 9), 0)
            for size in (1, 3, 40, 2, 90, 33):
                sequences = tuple(int(s) for s in generator.choice(list(reached), size))
                positions = []
                for sequence in sequences:
                    positions.append(reached[sequence])
                    reached[sequence] += 1
                batch = Batch(tuple(positions), tuple(positions), sequences, tuple(range(size)))
                assert_same(program.run(batch), alone[positions])


def test_any_floats():
    """Infinities and NaN stay in their channels, and leave them with the rows that hold them."""
    values = any_floats(4, ROWS, 33)
    forward, states = convolution(33, 3, bias=True, values=values)
    with loaded(forward, (), "reference", 1, states) as program:
        expected = program.run(rows_of(ROWS))
    with loaded(forward, (), "cpu", 2, states) as program:
        assert_same(program.run(rows_of(ROWS)), expected)


def test_ten_thousand_zeros():
    """After a last row of small numbers: nothing lingers, and nothing is ever subnormal."""
    values = np.zeros((2, 33), np.float32)
    values[0] = normals(6, 33) * np.float32(2.0**-100)
    forward, states = convolution(33, 4, values=values)
    with loaded(forward, (), "cpu", 2, states) as program:
        program.run(Batch((0,), (0,), (0,), (0,)))
        for start in range(1, 10_001, 500):
            positions = tuple(range(start, start + 500))
            found = program.run(Batch((1,) * 500, positions, (0,) * 500, (0, 1, 2, 3, 499)))
            state = program.snapshot(0).states[states[0]]
            assert not ((found != 0) & (np.abs(found) < np.finfo(np.float32).tiny)).any()
            assert not state.any() and not np.signbit(state).any()
            assert not found[3:].any()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_row_at_another_position_is_refused(backend):
    """With nothing changed: the right row still gives the right bits afterwards."""
    forward, states = convolution(20, 3)
    with loaded(forward, (), backend, 1, states) as program:
        alone = program.run(rows_of(8))
        for batch in (
            Batch((7,), (7,), (0,), (0,)),
            Batch((9,), (9,), (0,), (0,)),
            Batch((1,), (1,), (4,), (0,)),
            Batch((8, 10), (8, 10), (0, 0), (0,)),
            Batch((0, 0), (0, 0), (4, 4), (0,)),
        ):
            with pytest.raises(KineticError, match="position") as caught:
                program.run(batch)
            assert caught.value.name == "WRONG_POSITION"
        assert program.length(0) == 8
        program.run(Batch((8,), (8,), (0,), (0,)))
        assert_same(program.run(rows_of(8)), alone, "after a new start")


def test_a_state_that_was_not_announced():
    forward, _ = convolution(20, 3)
    with pytest.raises(KineticError, match="layer 3"), loaded(forward) as program:
        program.run(rows_of(1))


@pytest.mark.parametrize("activation", ["silu", "gelu", "sigmoid", "relu_sqr"])
def test_activations(activation):
    values = any_floats(5, 33, 50)

    def forward(ops):
        x = inputs(ops, values)
        return ops.outputs(ops.mul(ops.activate(x, activation), ops.gated(x, ops.scale(x, 0.5), activation)))

    with loaded(forward, (), "reference") as program:
        expected = program.run(rows_of(33))
    with np.errstate(all="ignore"):
        act = functions.ACTIVATIONS[activation](values)
        assert_same(expected, act * (act * (values * np.float32(0.5))))
    for threads in (1, 2):
        with loaded(forward, (), "cpu", threads) as program:
            for count in (1, 2, 9, 33):
                assert_same(program.run(rows_of(count)), expected[:count])
