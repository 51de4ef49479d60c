"""Speed-ups on a device: branches of a tree, and what was computed before, give the bits of plain decoding."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.base import CHUNK, Attention, Snapshot
from kinetic.backends.gpu import GpuBackend
from kinetic.backends.gpu import attention as attention_module
from kinetic.backends.reference import ReferenceBackend
from kinetic.engine.drafts import Drafter
from kinetic.errors import KineticError
from kinetic.loader import open_model_file
from kinetic.types import Batch, Request
from tests.invariance.conftest import Tiny
from tests.invariance.test_drafts import KINDS, PROMPT, SETTINGS, Free, Guesses
from tests.support.backends import assert_same, inputs
from tests.support.blocks import float_weight
from tests.support.branches import check_branches
from tests.support.warm import A, B, ask, cache, cold, digest, engine_of
from tests.support.whole_models import WRITERS, program_of, tokens_of

SPECS = {
    "grouped": Attention(0, 8, 2, 16, 0.25),
    "alone": Attention(0, 3, 3, 20, 0.3, softcap=2.5),
    "window": Attention(0, 4, 1, 24, 0.3, window=9),
    "wide window": Attention(0, 10, 2, 8, 0.3, window=CHUNK + 7),
    "latent": Attention(0, 20, 1, 72, 0.2, value_dim=66),
}
"""More heads to a key head than a tile has room for, heads that are no whole pieces, or longer than a slab."""

STEM, WAYS = 3, 6


def drawn(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def begun(spec: Attention, length: int) -> Snapshot:
    """A sequence of that length of which nobody computed anything."""
    sides = [drawn(length, spec.kv_heads, width, seed=length) for width in (spec.head_dim, spec.value_width)]
    keys, values = (side.astype(np.float16) for side in sides)
    return Snapshot(length, {0: keys}, {0: values}, {})


def kept_of(snapshot: Snapshot, length: int | None = None) -> list[bytes]:
    return [side[0][:length].tobytes() for side in (snapshot.keys, snapshot.values)]


def attending(spec: Attention, rows: int):
    """A graph of one attention; token t is row t of queries, keys and values."""
    sides = [("q", spec.heads * spec.head_dim), ("k", spec.kv_heads * spec.head_dim)]
    sides.append(("v", spec.kv_heads * spec.value_width))
    values = {name: drawn(rows, width, seed=seed) for seed, (name, width) in enumerate(sides)}
    sinks = float_weight("sinks", drawn(spec.heads, seed=9))

    def forward(ops):
        return ops.attend(*(inputs(ops, values[name], name) for name in "qkv"), spec, sinks)

    return forward


def rows_of(tokens, start: int, sequence: int = 0) -> Batch:
    count = len(tokens)
    return Batch(tuple(tokens), tuple(range(start, start + count)), (sequence,) * count, tuple(range(count)))


def tree(length: int) -> Batch:
    """A stem and three ways from it, of which the rows lie one way after the other; then a row of somebody else."""
    depths = [*range(STEM), *(STEM + i for _ in range(3) for i in range(WAYS))]
    sequences = (*(0,) * (STEM + WAYS), *(-1,) * WAYS, *(-2,) * WAYS)
    also = ((-1, -2),) * STEM + ((),) * (3 * WAYS + 1)
    tokens = tuple(range(len(depths) + 1))
    return Batch(tokens, (*(length + depth for depth in depths), 0), (*sequences, 5), tokens, also)


CASES = [(name, CHUNK - 4) for name in SPECS]
CASES += [("grouped", 0), ("grouped", CHUNK), ("alone", 5), ("window", 2 * CHUNK - 9), ("wide window", 2 * CHUNK - 9)]


@pytest.mark.parametrize(("name", "length"), CASES)
def test_rows_of_branches(device, name, length):
    """Against the reference, across the ends of chunks; the way that is taken goes on."""
    spec = SPECS[name]
    forward = attending(spec, 30)
    programs = [backend.load(forward, (spec,)) for backend in (GpuBackend(device), ReferenceBackend())]
    ends = length + STEM + WAYS
    made = []
    for program in programs:
        assert program.can_branch and program.can_keep
        program.restore(0, begun(spec, length))
        program.fork(0, -1, length)
        program.fork(0, -2, length)
        rows = [program.run(tree(length))]
        program.take_over(-1, 0)
        program.truncate(-2, 0)
        assert [program.length(sequence) for sequence in (0, -1, -2, 5)] == [ends, 0, 0, 1]
        program.truncate(0, ends - 2)
        rows.append(program.run(rows_of([23, 24, 25, 26, 27], ends - 2)))
        made.append((np.concatenate(rows), program.snapshot(0)))
    assert_same(made[0][0], made[1][0])
    assert kept_of(made[0][1]) == kept_of(made[1][1])


def test_a_fork_shares_whole_pages(device):
    """What it borrows stays its source's; pages that are given back are taken again."""
    spec = SPECS["grouped"]
    program = GpuBackend(device).load(attending(spec, 9), (spec,))
    program.restore(0, begun(spec, 2 * CHUNK + 3))
    pages = program._pages._pages
    program.fork(0, -1, 2 * CHUNK + 3)
    program.fork(0, -2, CHUNK)
    assert pages[-1][:2] == pages[0][:2] and pages[-1][2] != pages[0][2] and pages[-2] == pages[0][:1]
    mine, theirs = pages[0][2], pages[-1][2]
    program.take_over(-1, 0)
    program.truncate(-2, 0)
    assert pages.keys() == {0} and pages[0][2] == theirs and mine in program._pages._free
    everything = [*pages[0], *program._pages._free]
    assert sorted(everything) == list(range(len(everything)))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_what_is_kept(device, spec):
    """Piece by piece into another program, whose pages were others' before: the same bytes there, and the same rows."""
    forward, length = attending(spec, 9), 2 * CHUNK + 37
    ours, theirs = (GpuBackend(device).load(forward, (spec,)) for _ in range(2))
    ours.restore(0, begun(spec, length))
    theirs.restore(8, begun(spec, 3 * CHUNK))
    theirs.truncate(8, 0)
    pieces = [(start, min(CHUNK, length - start)) for start in range(0, length, CHUNK)]
    for start, count in pieces:
        kept = ours.read_kept(0, start, count)
        assert kept.dtype == np.uint8 and len(kept) == ours.kept_bytes(count)
        theirs.write_kept(3, start, count, kept)
        assert np.array_equal(theirs.read_kept(3, start, count), kept)
    theirs.stand(3, length - 1)
    assert theirs.length(3) == length - 1 and ours.state_bytes == len(ours.read_states(0)) == 0
    assert kept_of(theirs.snapshot(3)) == kept_of(begun(spec, length), length - 1)
    batch = rows_of([1, 2, 3], length - 1)
    assert ours.truncate(0, length - 1) == length - 1
    assert_same(theirs.run(rows_of([1, 2, 3], length - 1, 3)), ours.run(batch))
    assert ours.kept_bytes(1) * CHUNK == ours.kept_bytes(CHUNK)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_how_rows_are_grouped_changes_no_bit(device, spec, monkeypatch):
    """One at a time, together, and in as many launches as there are tiles; rows that lie far apart."""
    program = GpuBackend(device).load(attending(spec, 70), (spec,))
    program.restore(0, begun(spec, CHUNK - 30))
    expected = program.run(rows_of(range(70), CHUNK - 30))
    for counts in ([1] * 70, [2] * 35, [7, 8, 9, 31, 15], [33, 37]):
        program.truncate(0, CHUNK - 30)
        found, start = [], 0
        for count in counts:
            found.append(program.run(rows_of(range(start, start + count), CHUNK - 30 + start)))
            start += count
        assert_same(np.concatenate(found), expected, f"in passes of {counts[0]}")
    monkeypatch.setattr(attention_module, "PARTIAL_BYTES", 1)
    program.truncate(0, CHUNK - 30)
    assert_same(program.run(rows_of(range(70), CHUNK - 30)), expected, "in launches of a tile")
    program.truncate(0, CHUNK - 30)
    program.restore(7, begun(spec, 2))
    alone = program.run(rows_of(range(5), 2, 7))
    program.truncate(7, 2)
    both = [(0, CHUNK - 30, range(40)), (7, 2, range(5)), (0, CHUNK + 10, range(40, 70))]
    batches = [rows_of(tokens, start, sequence) for sequence, start, tokens in both]
    tokens, positions, sequences = (
        sum((getattr(batch, name) for batch in batches), ()) for name in ("tokens", "positions", "sequences")
    )
    mixed = program.run(Batch(tokens, positions, sequences, tuple(range(75))))
    assert_same(mixed, np.concatenate([expected[:40], alone, expected[40:]]))


# --- whole models ---


@pytest.fixture
def tiny(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    WRITERS[request.param](path)
    with open_model_file(path) as file:
        yield Tiny(request.param, path, file, tokens_of(100), np.zeros(0))


@pytest.mark.parametrize("tiny", ["gemma3", "gpt-oss", "deepseek2"], indirect=True)
def test_branches_of_models(device, tiny):
    """A window, sinks, and values of another width than keys; the other side is the CPU."""
    check_branches(tiny.file, tiny.tokens, (250,), "opencl")


@pytest.mark.parametrize("tiny", ["lfm2"], indirect=True)
def test_states_do_not_branch(device, tiny):
    with program_of(tiny.file, "opencl") as program:
        assert not program.can_branch and program.can_keep
        with pytest.raises(KineticError, match="forked"):
            program.fork(0, -1, 0)


@pytest.mark.parametrize(("tiny", "name"), [("llama", "drawn"), ("lfm2", "greedy")], indirect=["tiny"])
def test_drafts_on_a_device(device, tiny, name):
    """Right ones, trees and hostile ones: the steps and digests of plain decoding on the CPU."""
    request = Request(tuple(tiny.tokens[:PROMPT]), SETTINGS[name], 14)
    plain, engine = engine_of(tiny, off=("drafts",)), engine_of(tiny, backend="opencl", off=("drafts",))
    expected = list(plain.generate(request, digest=digest))
    answer = [step.token for step in expected]
    for kind in ("right", "tree", "hostile"):
        can_branch = engine._program.can_branch
        engine.drafter = Drafter([Guesses(answer, KINDS[kind])], Free(), can_branch=can_branch)
        assert list(engine.generate(request, digest=digest)) == expected, kind
        assert (engine.drafter.tally.accepted == 0) == (kind == "hostile")
        assert not can_branch or engine._program._pages._pages.keys() == {0}
    plain.close()
    engine.close()


@pytest.mark.parametrize("tiny", ["gemma3", "lfm2"], indirect=True)
def test_warm_starts_on_a_device(device, tiny, tmp_path):
    """What was set aside in memory, then, after a restart, what is in files: the steps of a cold run on the CPU."""
    prompts = [A[:300], B[:290], A[:300] + B[:20]]
    expected, known = cold(tiny, prompts, count=2), []
    for _ in range(2):
        engine = engine_of(tiny, cache(tmp_path / "kept"), backend="opencl")
        for prompt, steps in zip(prompts, expected, strict=True):
            assert ask(engine, prompt, count=2) == steps
            known.append(engine.reused)
        engine.close()
        assert engine._warm.disk.dropped == 0
    assert known == {"gemma3": [0, 0, 300, 299, 289, 300], "lfm2": [0, 0, 288, 288, 272, 288]}[tiny.name]


def test_what_one_backend_keeps_no_other_takes_up(device, tmp_path):
    """Its bytes lie otherwise: engine ids keep them apart."""
    path = WRITERS["floats"](tmp_path / "floats.gguf")
    with open_model_file(path) as file:
        tiny = Tiny("floats", path, file, tokens_of(100), np.zeros(0))
        (expected,) = cold(tiny, [A[:280]], count=2)
        for backend, least in (("opencl", 0), ("cpu", 0), ("opencl", 279)):
            engine = engine_of(tiny, cache(tmp_path / "kept"), backend=backend)
            assert ask(engine, A[:280], count=2) == expected
            assert engine.reused == least
            engine.close()
