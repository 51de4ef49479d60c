"""Operations of models that make vectors: layer norms, rows of tables, averages, attention both ways."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import Attention
from kinetic.backends.cpu.program import CAPACITY
from kinetic.backends.reference.attention import attend_row, visible
from kinetic.errors import KineticError
from kinetic.types import Batch
from tests.ops.test_attend import attention, drawn, shape_id, split
from tests.ops.test_rows import COUNTS, ROWS, wide
from tests.support.backends import assert_same, check_row_counts, inputs, loaded, rows_of, run, run_both
from tests.support.blocks import float_weight, normals, random_weight

LENGTHS = (1, 2, 7, 16, 33, 64, 3, 257)
"""Of the sequences in one batch."""


def batch_of(lengths, outputs=None):
    """Whole sequences side by side; token t is row t. Wanted are the last rows, or these."""
    positions = [i for length in lengths for i in range(length)]
    sequences = [number for number, length in enumerate(lengths) for _ in range(length)]
    ends = tuple(np.cumsum(lengths) - 1) if outputs is None else outputs
    return Batch(tuple(range(len(positions))), tuple(positions), tuple(sequences), tuple(int(end) for end in ends))


@pytest.mark.parametrize("width", [1, 15, 16, 17, 50, 96, 256, 576])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm(width, has_bias):
    weight, bias = float_weight("norm", normals(32, width)), float_weight("bias", normals(33, width))
    values = wide(34, ROWS, width)

    def forward(ops):
        return ops.outputs(ops.layer_norm(inputs(ops, values), weight, bias if has_bias else None, 1e-12))

    check_row_counts(forward, ROWS, COUNTS)


def test_layer_norm_of_zeros_and_extremes():
    weight, bias = float_weight("norm", normals(36, 40)), float_weight("bias", normals(37, 40))
    numbers = [0, -0.0, 1e-30, 1e19, 3e38, np.inf, np.nan]
    values = np.stack([np.full(40, value, np.float32) for value in numbers])
    values[:5, 7] *= np.float32(-0.75)
    for eps in (1e-5, 0.0):
        run_both(lambda ops: ops.outputs(ops.layer_norm(inputs(ops, values), weight, bias, eps)), (), rows_of(7))  # noqa: B023


def test_layer_norm_is_what_it_says():
    """Against float64; a mean far from 0 takes digits away, and no more than that."""
    weight, bias = normals(38, 96), normals(39, 96)
    values = normals(40, 20, 96) + np.float32(3)
    found = run(
        lambda ops: ops.outputs(
            ops.layer_norm(inputs(ops, values), float_weight("w", weight), float_weight("b", bias), 1e-5)
        ),
        rows_of(20),
    )
    x = values.astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    assert np.abs(found - expected).max() < 2e-6


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_rows_of_tables(kind):
    """Positions and a row that is the same for all; their memory is written before anything is computed."""
    tables = [random_weight(name, kind, 70, 64, seed) for seed, name in enumerate(("a", "b"))]

    def forward(ops):
        x = ops.scale(inputs(ops, normals(41, 99, 64)), 0.5)
        y = ops.add(ops.add(x, ops.first_row(tables[0])), ops.positions(tables[1]))
        return ops.outputs(ops.scale(ops.add(y, ops.positions(tables[0])), 2.0))

    run_both(forward, (), batch_of((33, 1, 65), outputs=range(99)))


def test_average():
    values = wide(42, sum(LENGTHS), 50)
    values[-1] = 1

    def forward(ops):
        return ops.scale(ops.average(ops.scale(inputs(ops, values), 1.5)), 3.0)

    batch = batch_of(LENGTHS)
    found = run_both(forward, (), batch, threads=3)
    start = 0
    for number, length in enumerate(LENGTHS):
        tokens = tuple(range(start, start + length))
        alone = run(forward, Batch(tokens, tuple(range(length)), (0,) * length, (length - 1,)))
        assert_same(found[number : number + 1], alone, f"of sequence {number} alone")
        start += length


def test_average_is_what_it_says():
    values = normals(43, 30, 20)
    found = run(lambda ops: ops.average(inputs(ops, values)), batch_of((13, 17)))
    expected = np.stack([part.astype(np.float64).mean(axis=0) for part in (values[:13], values[13:])])
    assert np.abs(found - expected).max() < 1e-6


# --- attention both ways ---

SHAPES = [
    Attention(0, 2, 2, 16, 0.25, causal=False),
    Attention(0, 4, 1, 64, 0.125, 24, causal=False),
    Attention(0, 3, 1, 64, 0.125, 1, causal=False),
    Attention(0, 6, 2, 80, 0.11, 257, causal=False),
    Attention(0, 17, 1, 16, 0.25, 512, causal=False),
    Attention(0, 5, 5, 20, 0.2, 31, causal=False),
]
LONG = CAPACITY + 59
"""More rows than a pass has at first."""

POSITIONS = (0, 1, 12, 13, 15, 16, 100, 128, 129, 243, 244, 254, 255, 256, 257, 300, 511, 512, 558, LONG - 1)


@pytest.mark.parametrize("spec", SHAPES, ids=shape_id)
def test_both_ways(spec):
    values = drawn(spec, LONG)
    q, k, v = split(values, spec)
    expected = np.stack([attend_row(q[at], k, v, at, spec).reshape(-1) for at in POSITIONS])
    for threads in (1, 3):
        with loaded(attention(values, spec), (spec,), threads=threads) as program:
            for _ in range(2):
                found = program.run(rows_of(LONG))
                assert_same(found[list(POSITIONS)], expected)
                program.truncate(0, 0)


def test_what_is_seen():
    assert [visible(at, 9, Attention(0, 1, 1, 8, 1.0, 4, causal=False)) for at in (0, 2, 5, 8)] == [
        (0, 3),
        (0, 5),
        (3, 8),
        (6, 9),
    ]
    assert visible(5, 9, Attention(0, 1, 1, 8, 1.0, causal=False)) == (0, 9)
    assert visible(5, 9, Attention(0, 1, 1, 8, 1.0, 4)) == (2, 6)


@pytest.mark.parametrize("window", [0, 6])
def test_sequences_beside_each_other(window):
    """Each has the bits that it has alone, by either definition; keys that another left behind are not seen."""
    spec = Attention(0, 3, 1, 8, 0.25, window, causal=False)
    values = drawn(spec, sum(LENGTHS), seed=81)
    forward, everything = attention(values, spec), range(sum(LENGTHS))
    found = run_both(forward, (spec,), batch_of(LENGTHS, everything), threads=3)
    start = 0
    with loaded(forward, (spec,), threads=2) as program:
        for length in LENGTHS:
            rows = tuple(range(start, start + length))
            batch = Batch(rows, tuple(range(length)), (0,) * length, tuple(range(length)))
            assert_same(program.run(batch), found[start : start + length], f"of {length} rows alone")
            start += length


@pytest.mark.parametrize("positions", [(1, 2), (0, 2), (0, 1, 0)])
def test_half_a_sequence_is_refused(positions):
    spec = Attention(0, 2, 2, 16, 0.25, causal=False)
    rows = tuple(range(len(positions)))
    with (
        loaded(attention(drawn(spec, 3), spec), (spec,)) as program,
        pytest.raises(KineticError, match="whole") as caught,
    ):
        program.run(Batch(rows, positions, (0,) * len(rows), rows))
    assert caught.value.name == "NOT_WHOLE"
