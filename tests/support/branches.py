"""Branches of a tree in a whole model, against each way by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kinetic.loader import LoadedFile
from kinetic.types import Batch
from tests.support.backends import assert_same
from tests.support.whole_models import feed, program_of, tokens_of


def check_branches(file: LoadedFile, tokens: Sequence[int], lengths: Iterable[int], backend: str = "cpu") -> None:
    """Rows of the same positions see only those before them on their own way, across the end of a chunk too."""
    for length in lengths:
        stem, ways = tokens_of(120, 3), [tokens_of(121 + i, 6) for i in range(3)]
        expected = []
        with program_of(file, threads=1) as program:
            if length:
                feed(program, tokens[:length], [64])
            for way in ways:
                expected.append(feed(program, stem + way, [9], start=length))
                program.truncate(0, length)
        with program_of(file, backend, threads=2) as program:
            if length:
                feed(program, tokens[:length], [64])
            for branch in (1, 2):
                program.fork(0, -branch, length)
            rows, depths = [*stem, *ways[0], *ways[1], *ways[2]], [0, 1, 2] + [3, 4, 5, 6, 7, 8] * 3
            sequences = (0,) * 3 + (0,) * 6 + (-1,) * 6 + (-2,) * 6
            positions = tuple(length + depth for depth in depths)
            also = ((-1, -2),) * 3 + ((),) * 18
            found = program.run(Batch(tuple(rows), positions, sequences, tuple(range(21)), also))
            for i in range(3):
                assert_same(found[:3], expected[i][:3])
                assert_same(found[3 + 6 * i : 9 + 6 * i], expected[i][3:], f"branch {i} after {length}")
            program.take_over(-1, 0)
            program.truncate(-2, 0)
            rest = feed(program, stem + ways[1] + ways[2], [1], start=length)  # computed again, or gone on with
            program.truncate(0, length + 9)
            assert_same(rest[:9], expected[1])
            assert_same(feed(program, ways[2], [6], start=length + 9), rest[9:])
