"""Rows that see those behind them, of a model that is given rows and goes on behind earlier ones: block drafters."""

from __future__ import annotations

from kinetic.backends import open_backend
from kinetic.backends.base import Attention
from kinetic.backends.gpu import GpuBackend
from kinetic.types import Batch
from tests.support.backends import assert_same
from tests.support.blocks import normals

SPEC = Attention(0, 4, 2, 16, 0.25, causal=False)
WIDTHS = (64, 32, 32)


def forward(ops):
    rows, at, parts = ops.given(sum(WIDTHS)), 0, []
    for width in WIDTHS:
        parts.append(ops.cut(rows, 1, at, width))
        at += width
    return ops.outputs(ops.attend(*parts, SPEC))


def passes(program, given):
    """Of 5, 8 and 260 rows; the last eight once more, as a block that was taken back."""
    found, start = [], 0
    for count in (5, 8, 260, 8):
        if count == 8 and start == 273:
            start = program.truncate(0, 265)
        rows = tuple(range(count))
        places = tuple(start + row for row in rows)
        found.append(program.run(Batch((0,) * count, places, (0,) * count, rows), given[start : start + count]))
        start += count
    return found


def test_a_block_goes_on_behind_what_is_there(device):
    given = normals(5, 273, sum(WIDTHS))
    programs = [backend.load(forward, (SPEC,), None) for backend in (GpuBackend(device), open_backend("cpu"))]
    ours, theirs = (passes(program, given) for program in programs)
    for found, expected in zip(ours, theirs, strict=True):
        assert_same(found, expected)
    for program in programs:
        program.close()
