"""Attention alone: every shape of heads, windows at every offset of a chunk, positions across 255, 256, 257.

Queries, keys and values are drawn apart and picked out of one row by products with a
matrix of ones and zeros, which pass a finite number through unchanged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.reference.attention import attend_row
from kinetic.bits import f32_to_f16
from kinetic.types import Batch
from tests.support.backends import assert_same, inputs, loaded, rows_of, run, run_both
from tests.support.blocks import float_weight, normals

POSITIONS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 100, 254, 255, 256, 257, 258, 271, 300, 510, 511, 512, 513, 519)
LENGTH = max(POSITIONS) + 1

# Group sizes 1, 2, 3, 4, 8, 17; head widths 16, 64, 80, 128, 256; windows that start at offsets 0, 1, 255 of a chunk.
SHAPES = [
    Attention(0, 2, 2, 16, 0.25),
    Attention(0, 4, 2, 16, 0.25, 64),
    Attention(0, 3, 1, 64, 0.125, 257),
    Attention(0, 6, 2, 80, 0.11, 255),
    Attention(0, 4, 1, 64, 0.125, 1),
    Attention(0, 8, 1, 128, 0.088388346, 2),
    Attention(0, 17, 1, 16, 0.25, 256),
    Attention(0, 34, 2, 16, 0.3),
    Attention(0, 2, 1, 256, 0.0625, 100),
    Attention(0, 5, 5, 20, 0.2, 31),
    Attention(0, 2, 2, 8, 1.7, 300),
    Attention(0, 4, 4, 32, 0.2, 0, 24),
    Attention(0, 17, 1, 40, 0.3, 100, 32),
    Attention(0, 3, 3, 20, 0.2, 31, 70),
]
"""The last three have values of another width than keys."""

SINKS = [
    Attention(0, 4, 2, 16, 0.25, 64),
    Attention(0, 34, 2, 40, 0.3, 0, 24),
    Attention(0, 5, 5, 20, 0.2, 257),
]


def shape_id(spec):
    return f"{spec.heads}q{spec.kv_heads}kv{spec.head_dim}w{spec.window}v{spec.value_width}"


def widths(spec):
    return spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.value_width


def drawn(spec, rows, seed=80, spread=1.0):
    """Rows of queries, keys and values side by side."""
    return normals(seed, rows, sum(widths(spec))) * np.float32(spread)


def picked(ops, x, spec):
    """Queries, keys and values of a row, by products with parts of the unit matrix."""
    q, k, v = widths(spec)
    one = np.eye(q + k + v, dtype=np.float32)
    parts = (one[:q], one[q : q + k], one[q + k :])
    return [ops.linear(x, float_weight(name, part)) for name, part in zip("qkv", parts, strict=True)]


def attention(values, spec, sinks=None):
    weight = None if sinks is None else float_weight("sinks", sinks)

    def forward(ops):
        return ops.outputs(ops.attend(*picked(ops, inputs(ops, values), spec), spec, weight))

    return forward


def split(values, spec):
    q, k, _ = widths(spec)
    queries = values[:, :q].reshape(len(values), spec.heads, spec.head_dim)
    keys = values[:, q : q + k].reshape(len(values), spec.kv_heads, spec.head_dim)
    weights = values[:, q + k :].reshape(len(values), spec.kv_heads, spec.value_width)
    return queries, f32_to_f16(keys), f32_to_f16(weights)


def expected_at(values, spec, position, sinks=None):
    """The reference for one row, from the keys and values before it as they are stored."""
    q, k, v = split(values, spec)
    return attend_row(q[position], k[: position + 1], v[: position + 1], position, spec, sinks).reshape(-1)


@pytest.mark.parametrize("spec", SHAPES, ids=shape_id)
def test_shapes_and_windows(spec):
    check_in_pieces(spec)


@pytest.mark.parametrize("spec", SINKS, ids=shape_id)
def test_sinks(spec):
    """Near the scores, far above them, far below, and none at all; also of rows whose chunks are computed apart."""
    sinks = normals(90, 1, spec.heads)[0] * np.float32(2)
    sinks[:3] = 200, -200, -np.inf
    check_in_pieces(spec, sinks)


def test_a_sink_is_a_key_without_a_value():
    """In plain terms: it takes its share of the weights, and the rest go to the values."""
    spec, sinks = Attention(0, 2, 1, 16, 0.25, 0, 8), np.array([0.5, -1.0], np.float32)
    values = drawn(spec, 40, seed=91)
    found = run(attention(values, spec, sinks), rows_of(40), (spec,)).reshape(40, 2, 8)
    q, k, v = (part.astype(np.float64) for part in split(values, spec))
    for position in (0, 7, 39):
        for head in range(2):
            scores = np.append(k[: position + 1, 0] @ q[position, head] * spec.scale, sinks[head])
            weights = np.exp(scores - scores.max())
            plain = weights[:-1] @ v[: position + 1, 0] / weights.sum()
            assert np.abs(found[position, head] - plain).max() < 1e-5


def check_in_pieces(spec, sinks=None):
    """One long batch, then the same rows fed in pieces whose edges lie around tiles and chunks."""
    values = drawn(spec, LENGTH)
    expected = np.stack([expected_at(values, spec, position, sinks) for position in POSITIONS])
    for threads, pieces in ((3, (LENGTH,)), (1, (1, 2, 13, 16, 223, 1, 1, 1, 254, LENGTH))):
        found = []
        with loaded(attention(values, spec, sinks), (spec,), threads=threads) as program:
            start = 0
            for size in pieces:
                found.append(program.run(rows(start, min(LENGTH, start + size))))
                start = min(LENGTH, start + size)
        assert_same(np.concatenate(found)[list(POSITIONS)], expected, f"in {len(pieces)} pieces")


def rows(start, end, sequence=0):
    """Rows start .. end - 1 at the positions of the same number."""
    numbers = tuple(range(start, end))
    return Batch(numbers, numbers, (sequence,) * len(numbers), tuple(range(len(numbers))))


@pytest.mark.parametrize("window", [0, 3])
def test_the_reference_operation_itself(window):
    """``ReferenceOps.attend`` stores and reads its cache as ``attend_row`` is given it here."""
    spec = Attention(0, 6, 2, 16, 0.25, window)
    values = drawn(spec, 21, seed=81)
    found = run_both(attention(values, spec), (spec,), rows_of(21))
    assert_same(found, np.stack([expected_at(values, spec, position) for position in range(21)]))


@pytest.mark.parametrize("offset", [0, 1, 254, 255])
def test_windows_that_start_at_an_offset_of_a_chunk(offset):
    """The first visible key of the last row lies ``offset`` keys into the second chunk."""
    spec = Attention(0, 2, 1, 16, 0.25, LENGTH - CHUNK - offset)
    values = drawn(spec, LENGTH, seed=82)
    found = run(attention(values, spec), rows_of(LENGTH), (spec,))
    for position in (LENGTH - 1, LENGTH - 2, LENGTH - 3, CHUNK + 1):
        assert_same(found[position], expected_at(values, spec, position), f"at {position}")


@pytest.mark.parametrize("spread", [1e-3, 30.0, 1e4, 1e18])
def test_scores_of_every_size(spread):
    """From nearly equal weights to a single key that takes all, past float16's largest value and to infinite scores."""
    spec = Attention(0, 3, 1, 16, 0.25)
    values = drawn(spec, 300, seed=83, spread=spread)
    found = run(attention(values, spec), rows_of(300), (spec,))
    for position in (0, 1, 40, 255, 256, 299):
        with np.errstate(all="ignore"):
            assert_same(found[position], expected_at(values, spec, position), f"at {position}")


def test_ties_and_far_maxima():
    """Equal scores, and a maximum that moves from chunk to chunk by more than exp can tell."""
    spec = Attention(0, 1, 1, 16, 1.0)
    values = drawn(spec, 520, seed=84)
    values[:, :16] = 1
    values[:, 16:32] = 0
    for position, score in ((3, 40.0), (200, 5.0), (256, -60.0), (300, 127.5), (511, 127.5), (512, 40.6), (515, 200.0)):
        values[position, 16] = score
    found = run(attention(values, spec), rows_of(520), (spec,))
    for position in (0, 2, 3, 199, 255, 256, 299, 300, 510, 511, 512, 514, 515, 519):
        assert_same(found[position], expected_at(values, spec, position), f"at {position}")


def test_values_that_overflow_are_clamped_and_infinities_stay_in_their_row():
    """Keys and values are held to +-65504; a NaN reaches exactly the rows that can see it."""
    spec = Attention(0, 2, 1, 16, 0.25, 50)
    values = drawn(spec, 300, seed=85)
    values[10, -16:] = 3e38
    values[20, -3] = np.inf  # spoils the row: 0 * inf is NaN in the products that pick it
    values[260, 33] = np.nan
    found = run(attention(values, spec), rows_of(300), (spec,))
    clean = values.copy()
    clean[[20, 260]] = normals(86, 2, values.shape[1])
    alone = run(attention(clean, spec), rows_of(300), (spec,))
    spoiled = np.isnan(found).any(axis=1)
    assert [i for i in range(300) if spoiled[i]] == [*range(20, 70), *range(260, 300)]
    assert_same(found[~spoiled], alone[~spoiled])
    assert np.abs(found[10]).max() > 1000  # 65504 through its weight


def test_several_layers_and_sequences_keep_apart():
    """Two layers of different shape, three sequences interleaved in one batch, at positions around a page's end."""
    first, second = Attention(0, 4, 2, 16, 0.25), Attention(1, 8, 8, 8, 0.3, 10)
    values = drawn(first, 300, seed=87)

    def forward(ops):
        q, k, v = picked(ops, inputs(ops, values), first)
        y = ops.attend(q, k, v, first)
        z = ops.attend(y, ops.scale(y, 0.5), ops.scale(y, -1.0), second)
        return ops.outputs(z)

    layers = (first, second)
    alone = run(forward, rows_of(300), layers)
    with loaded(forward, layers, threads=3) as program:
        for sequence, length in ((0, 250), (7, 3), (2, 256)):
            program.run(rows(0, length, sequence))
        batch = interleaved({0: (250, 262), 7: (3, 9), 2: (256, 259)})
        found = program.run(batch)
        assert_same(found, alone[list(batch.positions)])
        again = program.run(rows(262, 270, 0))
    assert_same(again, alone[262:270])


def interleaved(spans):
    """One row of each sequence in turn, as long as there are any."""
    pending = {sequence: list(range(*span)) for sequence, span in spans.items()}
    out = []
    while any(pending.values()):
        out += [(sequence, left.pop(0)) for sequence, left in pending.items() if left]
    positions = tuple(position for _, position in out)
    return Batch(positions, positions, tuple(sequence for sequence, _ in out), tuple(range(len(out))))


def test_heads_do_not_depend_on_their_number():
    """A head among many, and alone: the tile of query rows it shares cannot matter."""
    spec = Attention(0, 17, 1, 16, 0.25)
    values = drawn(spec, 70, seed=88)
    found = run(attention(values, spec), rows_of(70), (spec,)).reshape(70, 17, 16)
    for head in (0, 5, 16):
        single = replace(spec, heads=1)
        columns = np.concatenate([np.arange(head * 16, head * 16 + 16), np.arange(17 * 16, 19 * 16)])
        alone = run(attention(values[:, columns], single), rows_of(70), (single,))
        assert_same(np.ascontiguousarray(found[:, head]), alone)
