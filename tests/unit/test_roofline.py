"""Rooflines: loops that read and compute what they say, work that is counted right, rates beside their limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import rates, work
from benchmarks.one_op import matrix
from benchmarks.rates import Work
from kinetic.api.roofline import Meter
from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.cpu import native, target
from kinetic.backends.cpu.dots import LANES
from kinetic.backends.cpu.memory import address, allocate
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.roof import PATTERNS, REPEATS, STEP, Loops, chains, read_size
from kinetic.backends.cpu.weights import WeightStore
from kinetic.backends.graph import GraphOps
from kinetic.backends.identity import engine_digest
from kinetic.errors import UsageError
from tests.support.backends import compile_all
from tests.support.blocks import FORMATS, float_weight, integers, normals, random_weight


@pytest.fixture(scope="module", params=target.available())
def loops(request):
    return Loops(request.param)


# --- the loops ---


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.symbol)
def test_a_read_loop_reads_all_of_the_memory(loops, pattern):
    size = 9 * 4 * STEP + 100
    memory = allocate(size).view(np.int32)
    memory[:] = integers(1, -(1 << 31), 1 << 31, len(memory))
    read = memory[: read_size(pattern, size) // 4]
    assert size - read.nbytes < pattern.streams * STEP
    assert loops.read[pattern](address(memory), size) == int(read.astype(np.int64).sum()) % (1 << 32)
    assert loops.read[pattern](address(memory), 0) == 0


def dot(total, weights):
    """Unsigned times signed bytes, summed by fours: vpdpbusd."""
    return total + (weights.view(np.uint8).astype(np.int32) * weights.view(np.int8)).reshape(-1, 4).sum(axis=1)


def saturated_dot(total, weights):
    """pmaddubsw, whose pairs saturate, of the weights and the sum; pmaddwd with ones; paddd."""
    products = weights.view(np.uint8).astype(np.int32) * total.view(np.int8)
    pairs = products.reshape(-1, 2).sum(axis=1).clip(-32768, 32767)
    return total + pairs.reshape(-1, 2).sum(axis=1).astype(np.int32)


@pytest.mark.parametrize("turns", [0, 1, 7])
def test_int8_chains_do_every_step(loops, turns):
    isa, lanes = loops.isa, LANES[loops.isa]
    if loops.int8 is None:
        assert isa == "plain"
        return
    assert loops.int8.operations == 8 * lanes * REPEATS * chains(isa)
    weights = np.full(lanes, turns + 0x01020304, np.int32)
    sums = [np.full(lanes, k, np.int32) for k in range(chains(isa))]
    for _ in range(turns * REPEATS):
        sums = [(saturated_dot if isa == "avx2" else dot)(total, weights).astype(np.int32) for total in sums]
    assert loops.int8.run(turns) == sum(int(total.sum()) for total in sums) % (1 << 32)


@pytest.mark.parametrize("turns", [0, 1, 100])
def test_float_chains_do_every_step(loops, turns):
    lanes, count = LANES[loops.isa], chains(loops.isa)
    assert loops.float32.operations == 2 * lanes * REPEATS * count
    values = np.arange(count, dtype=np.float64)
    for _ in range(turns * REPEATS):
        values = values * 0.5 + 1
    assert loops.float32.run(turns) == int(lanes * values.sum() + 1e-6)


def test_small_measurements_give_positive_numbers():
    isa = target.choose()
    meter = Meter(isa, 2, 1 << 20)
    try:
        for threads in (1, 2):
            peaks = meter.peaks(threads, rounds=1)
            assert 1e7 < peaks.read < 1e13 and 1e8 < peaks.float32 < 1e14
            assert peaks.int8 is None if isa == "plain" else peaks.int8 and 1e8 < peaks.int8 < 1e15
            assert peaks.pattern in PATTERNS and peaks.threads == threads
    finally:
        meter.close()


@pytest.mark.parametrize(("threads", "size"), [(0, 1 << 20), (1, 100)])
def test_nothing_to_measure_is_refused(threads, size):
    with pytest.raises(UsageError) as caught:
        Meter(target.choose(), threads, size)
    assert caught.value.name == "BAD_ROOFLINE"


def test_no_id_of_an_engine_depends_on_the_loops(monkeypatch):
    """They decide no answer: a change of them must not make receipts look like another engine's."""
    before = engine_digest.__wrapped__("cpu", "k"), native.kernel_digest.__wrapped__("plain")
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.parent.name == "roof"))
    assert (engine_digest.__wrapped__("cpu", "k"), native.kernel_digest.__wrapped__("plain")) == before


# --- work ---


def test_operations_are_twice_the_weights_that_rows_pass_through():
    ops = GraphOps()
    x = ops.embed(float_weight("table", normals(1, 5, 96)))
    hidden = ops.linear(x, random_weight("hidden", "Q8_0", 64, 96, 2))
    ops.linear(ops.outputs(hidden), random_weight("output", "Q4_0", 50, 64, 3))
    found = work.products(ops.nodes)
    assert work.product_operations(found, rows=10, outputs=3) == 2 * (10 * 64 * 96 + 3 * 50 * 64)
    assert work.product_operations(found, rows=10, outputs=0) == 2 * 10 * 64 * 96
    assert work.weight_bytes(found) == sum(map(work.packed_bytes, [product.weight for product in found]))


@pytest.mark.parametrize("kind", FORMATS)
def test_bytes_are_those_that_are_packed(kind):
    isa = target.choose()
    compile_all(isa)
    weight = matrix(kind, 50, 768)
    store = WeightStore(Kernels(isa, [FORMATS[kind].TYPE_ID]), [weight], 1)
    assert work.packed_bytes(weight) == store.packed(weight).data.nbytes
    store.close()


@pytest.mark.parametrize("window", [0, 3, 100])
def test_attention_is_counted_key_by_key(window):
    spec = Attention(0, 6, 2, 16, 0.25, window)
    positions = range(5, 12)
    seen = [[key for key in range(p + 1) if not window or key > p - window] for p in positions]
    multiplied = sum(len(keys) for keys in seen) * spec.heads * spec.head_dim * 2
    assert work.attention_operations(spec, positions) == 2 * multiplied
    touched = len({key for keys in seen for key in keys}) * spec.kv_heads * spec.head_dim
    assert work.attention_bytes(spec, positions) == 2 * 2 * touched
    assert work.attention_bytes(spec, [CHUNK]) == 4 * (min(window, CHUNK + 1) if window else CHUNK + 1) * 32


def test_a_norm_writes_a_record_of_64_bytes_for_every_32_values():
    assert work.quantise_bytes(3, 96) == 3 * (96 * 4 + 3 * 64)


# --- rates ---


def test_a_rate_is_compared_with_the_limit_of_its_own_round():
    """The machine was half as fast in the second half: shares stay, though the rates don't."""
    row = rates._row("x", [1.0, 1.0, 2.0, 2.0, 2.0], [4e9, 4e9, 2e9, 2e9, 2e9], [Work(2e9, "GB/s"), Work(6, "tok/s")])
    assert row.share == 0.5 and row.roof == 2 and row.seconds == 2
    assert row.rates == [(1.0, "GB/s"), (3.0, "tok/s")] and row.best == 2
    assert rates._row("y", [1.0, 2.0, 4.0], [1e9, 4e9, 2e9], [Work(2e9, "GB/s")]).share == 0.25
    assert rates._row("z", [1.0, 2.0, 4.0], [4e9, 2e9, 8e9], [Work(2e9, "GB/s")]).best_share == 0.25


def test_a_table_shows_what_has_no_limit():
    row = rates._row("norm", [0.5, 0.25], [None, None], [Work(1e9, "GB/s")])
    lines = list(rates.table([row, row._replace(name="a long name", share=0.61, roof=20.0)]))
    assert lines[1].split() == ["norm", "375.00", "ms", "2.7", "GB/s", "-", "-", "4.0", "-"]
    assert lines[2].split()[-4:] == ["20.0", "61%", "4.0", "-"] and len({len(line) for line in lines}) == 1
