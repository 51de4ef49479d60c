"""Runs forward passes on the reference and on the CPU, and compares them bit for bit.

NaNs are equal to each other whatever their payload: nothing may depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from kinetic.backends import open_backend
from kinetic.backends.base import Array, Attention, Forward, Ops, Program, State
from kinetic.backends.cpu import native, target
from kinetic.backends.cpu.quantise import QUANTISABLE, Quantisers
from kinetic.bits import F32
from kinetic.formats import RUNNABLE
from kinetic.types import Batch
from tests.support.blocks import float_weight

# Compiled kernels are kept from run to run, where the program itself would keep them.
os.environ.setdefault("KINETIC_HOME", str(Path(__file__).resolve().parents[2] / ".kinetic"))
os.environ.setdefault("KINETIC_KERNELS", str(Path(os.environ["KINETIC_HOME"]) / "kernels"))

ROW_COUNTS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 44, 45, 63, 64, 65, 255, 256, 257)
"""Numbers of rows at which other engines changed their bits: around tiles, chunks and vector widths."""

MANY = max(ROW_COUNTS)


def rows_of(count: int, start: int = 0, sequence: int = 0) -> Batch:
    """Rows 0 .. count - 1 of the embedding table at positions from ``start`` on, all of them wanted."""
    rows = range(count)
    return Batch(tuple(rows), tuple(start + i for i in rows), (sequence,) * count, tuple(rows))


@lru_cache(maxsize=8)
def compile_all(isa: str) -> None:
    """The kernels of every format at once: one compiler process instead of one for each test."""
    native.Kernels(isa, RUNNABLE)


@lru_cache(maxsize=1)
def quantisers_of_all() -> Quantisers:
    """The quantisers of every format for the instruction set in use."""
    return Quantisers(QUANTISABLE)


@contextmanager
def loaded(
    forward: Forward,
    layers: Sequence[Attention] = (),
    backend: str = "cpu",
    threads: int = 2,
    states: Sequence[State] = (),
) -> Iterator[Program]:
    """The program of ``forward`` on a backend, closed afterwards."""
    if backend == "cpu":
        compile_all(target.choose())
    program = open_backend(backend, threads=threads).load(forward, layers, None, None, states)
    try:
        yield program
    finally:
        program.close()


def run(
    forward: Forward, batch: Batch, layers: Sequence[Attention] = (), backend: str = "cpu", threads: int = 2
) -> F32:
    """One pass over ``batch`` with an empty cache."""
    with loaded(forward, layers, backend, threads) as program:
        return program.run(batch)


def run_both(forward: Forward, layers: Sequence[Attention], batch: Batch, threads: int = 2) -> F32:
    """What both backends give for ``batch``; fails where a bit differs."""
    expected = run(forward, batch, layers, "reference")
    assert_same(run(forward, batch, layers, "cpu", threads), expected)
    return expected


def check_row_counts(forward: Forward, rows: int = MANY, counts: Sequence[int] = ROW_COUNTS, threads: int = 2) -> F32:
    """For operations on single rows: the first T of ``rows`` rows, for every T, are the reference's first T."""
    expected = run(forward, rows_of(rows), backend="reference")
    with loaded(forward, threads=threads) as program:
        for count in counts:
            if count <= rows:
                assert_same(program.run(rows_of(count)), expected[:count], f"with {count} rows")
    return expected


def inputs(ops: Ops, values: F32, name: str = "inputs") -> Array:
    """``values`` float32 [rows, width] as the activation that a forward pass starts from."""
    return ops.embed(float_weight(name, values))


def same(x: F32, y: F32) -> np.ndarray:
    """Where two float32 arrays have the same bits, or a NaN both."""
    a, b = np.ascontiguousarray(x).view(np.uint32), np.ascontiguousarray(y).view(np.uint32)
    return (a == b) | (np.isnan(x) & np.isnan(y))


def assert_same(found: F32, expected: F32, where: str = "") -> None:
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    equal = same(found, expected)
    if not equal.all():
        first = tuple(int(i) for i in np.argwhere(~equal)[0])
        raise AssertionError(
            f"{np.count_nonzero(~equal)} of {equal.size} values differ {where}, first at {list(first)}: "
            f"{found[first]!r} where the reference has {expected[first]!r}"
        )
