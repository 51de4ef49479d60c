"""Rates of single kernels, run as the engine runs them, beside what this machine could do.

One row: a product that streams a matrix from memory, GB/s of packed weights beside the read loop.
16 and 512 rows: a matrix that stays in the caches, GOPS beside the peak of int8 products (of
float32 ones for float formats). ``pytest benchmarks/test_kernels.py --benchmark-only``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import work
from benchmarks.conftest import THREADS, beyond_caches
from benchmarks.one_op import OneOp, attention, matrix, norm_and_quantise, one_sequence, product
from benchmarks.rates import Limits, Row, Work, counted
from kinetic.backends.base import Attention
from kinetic.backends.cpu import native, tape
from kinetic.backends.cpu.memory import address, allocate
from kinetic.formats import RUNNABLE
from tests.support.blocks import FORMATS

Measure = Callable[..., Row]

LARGE_WIDTH = 4096
LARGE = 128 << 20
"""Bytes of packed weights that one row streams at least."""

HOT = (2048, 2048)
"""Output and input width of a product for many rows: a layer of a model of a billion weights."""

DEPTHS = (256, 2048, 4096)
SPEC = Attention(0, heads=32, kv_heads=8, head_dim=64, scale=0.125)
"""The attention of a model of a billion weights."""

LAYERS = [replace(SPEC, layer=layer) for layer in range(8)]
"""Their keys and values together go beyond the caches at depth 4096, as a whole model's do."""

PROMPT_ROWS = 64


by_threads = pytest.mark.parametrize("threads", THREADS, ids=counted)
by_depth = pytest.mark.parametrize("depth", DEPTHS, ids=lambda depth: f"depth {depth}")

# --- products ---


@pytest.fixture(scope="module")
def large(request: pytest.FixtureRequest, isa: str) -> Iterator[tuple[str, OneOp, int]]:
    """Format, a program that streams a large matrix for one row, and its packed bytes."""
    kind: str = request.param
    group = work.packed_bytes(matrix(kind, 16, LARGE_WIDTH))
    weight = matrix(kind, 16 * (beyond_caches(LARGE) // group), LARGE_WIDTH)
    with OneOp(product(weight)) as op:
        op.prepare(one_sequence(1))
        op.choose(tape.MATMUL)
        yield kind, op, work.packed_bytes(weight)


@pytest.fixture(scope="module")
def hot(request: pytest.FixtureRequest, isa: str) -> Iterator[tuple[str, OneOp]]:
    kind: str = request.param
    with OneOp(product(matrix(kind, *HOT))) as op:
        yield kind, op


@by_threads
@pytest.mark.parametrize("large", FORMATS, indirect=True)
def test_product_one_row(measure: Measure, limits: Limits, large: tuple[str, OneOp, int], threads: int) -> None:
    kind, op, size = large
    op.use_threads(threads)
    name = f"product {kind}, 1 row, {counted(threads)}"
    measure(name, op.run, [Work(size, "GB/s")], lambda: limits.read(threads))


@pytest.mark.parametrize("rows", [16, 512], ids=lambda rows: f"{rows} rows")
@by_threads
@pytest.mark.parametrize("hot", FORMATS, indirect=True)
def test_product_rows(measure: Measure, limits: Limits, hot: tuple[str, OneOp], threads: int, rows: int) -> None:
    kind, op = hot
    op.use_threads(threads)
    op.choose_all()
    op.prepare(one_sequence(rows))
    op.choose(tape.MATMUL)
    peak, unit = (limits.int8, "GOPS") if FORMATS[kind].QUANTISED else (limits.float32, "GFLOP/s")
    operations = 2 * rows * HOT[0] * HOT[1]
    name = f"product {kind}, {rows} rows, {counted(threads)}"
    measure(name, op.run, [Work(operations, unit)], lambda: peak(threads))


# --- attention ---


@pytest.fixture(scope="module")
def caches(isa: str) -> Iterator[OneOp]:
    """Attention over caches that are filled up to the greatest depth."""
    with OneOp(attention(LAYERS), LAYERS) as op:
        op.leave_out(tape.ATTEND)
        for start in range(0, max(DEPTHS), 512):
            op.prepare(one_sequence(min(512, max(DEPTHS) - start), start))
        yield op


@by_depth
@by_threads
def test_attention_one_row(measure: Measure, limits: Limits, caches: OneOp, threads: int, depth: int) -> None:
    """All layers, as one token after ``depth`` - 1 others sees them."""
    caches.use_threads(threads)
    caches.leave_out(tape.STORE)
    caches.prepare(one_sequence(1, depth - 1))
    caches.choose(tape.ATTEND)
    positions = [depth - 1]
    done = [
        Work(len(LAYERS) * work.attention_bytes(SPEC, positions), "GB/s"),
        Work(len(LAYERS) * work.attention_operations(SPEC, positions), "GFLOP/s"),
    ]
    measure(f"attention, 1 row, depth {depth}, {counted(threads)}", caches.run, done, lambda: limits.read(threads))


@by_depth
@by_threads
def test_attention_prompt(measure: Measure, limits: Limits, caches: OneOp, threads: int, depth: int) -> None:
    """One layer, for the last rows of a prompt of ``depth`` tokens."""
    caches.use_threads(threads)
    caches.leave_out(tape.STORE)
    caches.prepare(one_sequence(PROMPT_ROWS, depth - PROMPT_ROWS))
    caches.choose(tape.ATTEND, most=1)
    positions = range(depth - PROMPT_ROWS, depth)
    done = [
        Work(work.attention_operations(SPEC, positions), "GFLOP/s"),
        Work(work.attention_bytes(SPEC, positions), "GB/s"),
    ]
    name = f"attention, {PROMPT_ROWS} rows, depth {depth}, {counted(threads)}"
    measure(name, caches.run, done, lambda: limits.float32(threads))


# --- rows ---


@by_threads
def test_norm_and_quantise(measure: Measure, limits: Limits, threads: int) -> None:
    rows, width = 512, HOT[1]
    with OneOp(norm_and_quantise(width)) as op:
        op.use_threads(threads)
        op.prepare(one_sequence(rows))
        op.choose(tape.NORM_QUANTISE)
        done = [Work(work.quantise_bytes(rows, width), "GB/s")]
        measure(f"norm+quantise, {rows} rows, {counted(threads)}", op.run, done)


def test_softmax(measure: Measure, limits: Limits, isa: str) -> None:
    """Weights of many keys from their scores, in place; bytes read and written once each."""
    count = 1 << 16
    kernels = native.Kernels(isa, RUNNABLE)  # the code lives as long as this
    softmax = kernels._function("softmax_row", 4)
    scores, sums = allocate(work.SINGLE * count), allocate(64)
    scores.view(np.float32)[:] = np.linspace(-20, 0, count)
    done = [Work(2 * work.SINGLE * count, "GB/s")]
    measure("softmax, 1 thread", lambda: softmax(address(scores), 0, count, address(sums)), done)
