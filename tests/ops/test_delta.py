"""Gated DeltaNet alone: the definition against plain sums, both backends, every way to cut a sequence into batches."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import Delta, State
from kinetic.types import Batch
from tests.support.backends import assert_same, inputs, loaded, rows_of
from tests.support.blocks import float_weight, normals

ROWS = 65
COUNTS = (1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65)


def delta(heads, key_heads, width, values=normals, decay=1.0):
    """A forward pass of one recurrence, the states it has, and its inputs, which are columns of one embedding table."""
    state = State(2, "delta", (heads, width // 16, width, 16))
    a = float_weight("a", -decay * np.abs(normals(1, heads)))
    spec = Delta(state, key_heads, a, float_weight("bias", normals(2, heads)), 1e-6)
    edges = np.cumsum([key_heads * width, key_heads * width, heads * width, heads, heads])
    rows = values(3, ROWS, edges[-1])
    picks = np.split(np.eye(edges[-1], dtype=np.float32), edges[:-1])
    pickers = [float_weight(f"pick{n}", pick) for n, pick in enumerate(picks)]

    def forward(ops):
        x = inputs(ops, rows)
        return ops.outputs(ops.delta(*(ops.linear(x, pick) for pick in pickers), spec))

    return forward, (state,), np.split(rows, edges[:-1], axis=1)


def by_hand(parts, heads, key_heads, width, decay=1.0):
    """The same in float64, from the paper's equations."""
    q, k, v, gate, beta = (part.astype(np.float64) for part in parts)
    a, bias = -decay * np.abs(normals(1, heads).astype(np.float64)), normals(2, heads).astype(np.float64)
    state = np.zeros((heads, width, width))  # [H, key element, value element]
    out = []
    for t in range(len(q)):
        heads_of = [np.tile(x[t].reshape(key_heads, width), (heads // key_heads, 1)) for x in (q, k)]
        query, key = (x / np.sqrt((x * x).sum(axis=1, keepdims=True) + 1e-6) for x in heads_of)
        state *= np.exp(a * np.log1p(np.exp(gate[t] + bias)))[:, None, None]
        news = v[t].reshape(heads, width) - np.einsum("hij,hi->hj", state, key)
        state += np.einsum("hi,hj->hij", key, news / (1 + np.exp(-beta[t]))[:, None])
        out.append(np.einsum("hij,hi->hj", state, query).reshape(-1) / np.sqrt(width))
    return np.array(out), state


SIZES = [(1, 1, 16), (2, 1, 48), (4, 2, 32), (3, 3, 64), (2, 1, 128)]


@pytest.mark.parametrize("heads, key_heads, width", SIZES)
def test_one_sequence(heads, key_heads, width):
    forward, states, parts = delta(heads, key_heads, width)
    with loaded(forward, (), "reference", 1, states) as program:
        expected = program.run(rows_of(ROWS))
        kept = program.snapshot(0).states[states[0]]
    exact, state = by_hand(parts, heads, key_heads, width)
    assert np.abs(expected - exact).max() < 2e-6
    in_order = kept.transpose(0, 2, 1, 3).reshape(heads, width, width)
    assert np.abs(in_order - state).max() < 4e-6
    for threads in (1, 2):
        with loaded(forward, (), "cpu", threads, states) as program:
            for count in COUNTS:
                assert_same(program.run(rows_of(count)), expected[:count], f"with {count} rows")
            assert_same(program.snapshot(0).states[states[0]], kept)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_rows_of_sequences_in_any_place(backend):
    """Rows of three sequences are drawn from a hat; each keeps the bits that it has alone."""
    forward, states, _ = delta(4, 2, 48)
    generator = np.random.default_rng(8)
    with loaded(forward, (), backend, 2, states) as program:
        alone = program.run(rows_of(ROWS))
        reached = dict.fromkeys((7, 1, 4), 0)
        for size in (1, 2, 40, 1, 60):
            sequences = tuple(int(s) for s in generator.choice(list(reached), size))
            positions = []
            for sequence in sequences:
                positions.append(reached[sequence])
                reached[sequence] += 1
            batch = Batch(tuple(positions), tuple(positions), sequences, tuple(range(size)))
            assert_same(program.run(batch), alone[positions])


def test_of_any_size():
    """States that overflow, and NaN, stay in their heads' columns; both backends agree."""

    def values(seed, rows, columns):
        return np.ldexp(normals(seed, rows, columns), (np.arange(rows) * 29 % 190 - 95)[:, None])

    forward, states, _ = delta(2, 1, 32, values, decay=-9.0)  # grows instead
    found = []
    for backend in ("reference", "cpu"):
        with loaded(forward, (), backend, 2, states) as program:
            found += [program.run(rows_of(ROWS)), program.snapshot(0).states[states[0]]]
    assert not np.isfinite(found[0]).all()
    assert_same(found[2], found[0])
    assert_same(found[3], found[1])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_state_fades_to_zero(backend):
    """Nothing new for many rows: no subnormal stays, and what is too small to matter is +0."""

    def values(seed, rows, columns):
        made = normals(seed, rows, columns)
        made[2:, :-2] = 0  # the gates go on
        return made

    forward, states, _ = delta(1, 1, 16, values, decay=8.0)
    least = np.inf
    with loaded(forward, (), backend, 1, states) as program:
        for t in range(ROWS):
            program.run(Batch((t,), (t,), (0,), (0,)))
            kept = program.snapshot(0).states[states[0]]
            if kept.any():
                least = min(least, np.abs(kept[kept != 0]).min())
    assert 2.0**-100 <= least < 2.0**-90
    assert not kept.any() and not np.signbit(kept).any()
