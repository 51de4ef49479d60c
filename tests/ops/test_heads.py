"""Heads cut out, joined, multiplied by their matrices, and rotated in part: for every number of rows, as alone."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import Rope, Weight
from kinetic.backends.rope_tables import frequencies
from tests.support.backends import assert_same, check_row_counts, inputs, loaded, rows_of, run_both
from tests.support.blocks import FORMATS, float_weight, normals, random_rows

COUNTS = (1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65)


def of_heads(kind, heads, rows, columns, name="heads"):
    """A weight [heads, rows, columns]."""
    fmt = FORMATS[kind]
    data = random_rows(fmt, heads * rows, columns, 21, 1.5 / np.sqrt(columns))
    return Weight(name, fmt.TYPE_ID, (heads, rows, columns), data)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F32", "BF16"])
@pytest.mark.parametrize("heads, rows, columns", [(3, 32, 64), (5, 20, 32), (1, 7, 96)])
def test_matrices_of_heads(kind, heads, rows, columns, threads):
    """Also where a head's columns are no whole groups of 16, and others write right beside them."""
    weight, values = of_heads(kind, heads, rows, columns), normals(20, 65, heads * columns)
    expected = check_row_counts(lambda ops: ops.linear_heads(inputs(ops, values), weight), 65, COUNTS, threads)
    assert expected.shape == (65, heads * rows)
    if kind == "F32":
        plain = np.einsum("thk,hnk->thn", values.reshape(65, heads, columns), as_floats(weight)).reshape(65, -1)
        assert np.abs(expected - plain).max() < 1e-4


def as_floats(weight):
    return weight.data.view(np.float32).reshape(weight.shape)


def test_superblocks_and_odd_widths():
    for weight in (of_heads("Q4_K", 2, 33, 256), of_heads("F16", 3, 5, 21)):
        values = normals(22, 17, weight.shape[0] * weight.shape[2])

        def forward(ops, values=values, weight=weight):
            return ops.linear_heads(inputs(ops, values), weight)

        check_row_counts(forward, 17, (1, 2, 16, 17))


@pytest.mark.parametrize("first, count", [(0, 5), (5, 35), (3, 16), (39, 1), (0, 40)])
def test_cut(first, count):
    values = normals(23, 33, 3 * 40)
    expected = check_row_counts(lambda ops: ops.cut(inputs(ops, values), 3, first, count), 33, (1, 2, 17, 33), 3)
    plain = values.reshape(33, 3, 40)[:, :, first : first + count].reshape(33, -1)
    assert_same(expected, np.ascontiguousarray(plain))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("width, other", [(16, 8), (21, 33), (1, 64)])
def test_join(width, other, shared):
    heads = 3
    values = normals(24, 33, heads * (width + other))

    def forward(ops):
        x = inputs(ops, values)
        y = ops.cut(x, 1, heads * width, other if shared else heads * other)
        return ops.join(ops.cut(x, 1, 0, heads * width), y, heads, shared)

    expected = check_row_counts(forward, 33, (1, 2, 17, 33), 3)
    x, y = values[:, : heads * width].reshape(33, heads, width), values[:, heads * width :]
    y = np.repeat(y[:, None, :other], heads, axis=1) if shared else y.reshape(33, heads, other)
    assert_same(expected, np.concatenate([x, y], axis=2).reshape(33, -1))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_of_a_part_of_each_head(interleaved):
    """The elements before and behind it stay, and those of it are what a rotation of them alone gives."""
    rope = Rope(frequencies(10000.0, 8), interleaved, first=11)
    values = normals(25, 21, 2 * 24)
    found = run_both(lambda ops: ops.rope(inputs(ops, values), rope, 24), (), rows_of(21)).reshape(21, 2, 24)
    heads = values.reshape(21, 2, 24)
    assert_same(found[..., :11].copy(), heads[..., :11].copy())
    assert_same(found[..., 19:].copy(), heads[..., 19:].copy())
    part = np.ascontiguousarray(heads[..., 11:19]).reshape(21, 16)
    alone = run_both(lambda ops: ops.rope(inputs(ops, part), Rope(rope.frequencies, interleaved), 8), (), rows_of(21))
    assert_same(np.ascontiguousarray(found[..., 11:19]).reshape(21, 16), alone)


def test_norm_and_rotation_of_a_part():
    """Done in one instruction: the norm is of the whole head."""
    rope, norm = Rope(frequencies(10000.0, 8), True, first=16), float_weight("norm", normals(27, 24))
    values = normals(26, 9, 3 * 24)
    run_both(lambda ops: ops.rope(ops.rms_norm(inputs(ops, values), norm, 1e-5), rope, 24), (), rows_of(9), 3)


def test_memory_taken_over_in_the_same_pass():
    """Parts that are read twice, and buffers that the next step takes again, with three threads."""
    weight = of_heads("Q8_0", 4, 32, 32)

    def forward(ops):
        x = inputs(ops, normals(28, 40, 128))
        for _ in range(3):
            left, right = ops.cut(x, 4, 0, 16), ops.cut(x, 4, 16, 16)
            x = ops.add(x, ops.linear_heads(ops.join(right, left, 4), weight))
        return ops.outputs(x)

    expected = run_both(forward, (), rows_of(40), 3)
    with loaded(forward, threads=3) as program:
        for count in (1, 2, 40, 1):
            assert_same(program.run(rows_of(count)), expected[:count])
