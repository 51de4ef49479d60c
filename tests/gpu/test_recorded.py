"""Passes that a device replays have the bits of passes that are run kernel by kernel, and a pass that breaks off leaves
nothing that could be replayed wrongly."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from kinetic.backends import open_backend
from kinetic.backends.gpu import GpuBackend
from kinetic.backends.gpu import recordings as recordings_module
from kinetic.backends.gpu.executor import Executor
from kinetic.backends.gpu.inputs import Inputs, Layout
from kinetic.backends.gpu.recordings import Recordings, Stretch
from kinetic.backends.reference import ReferenceBackend
from kinetic.errors import KineticError, OutOfMemory
from kinetic.types import Batch
from tests.support.backends import assert_same, inputs
from tests.support.blocks import integers
from tests.support.split_models import load, rows

BORDER = 256
"""Positions of a chunk of keys."""


def recordings(program):
    return program._executor._recordings


def pair(device, family):
    """A program that replays, and one that never does."""
    recorded, plain = (load(GpuBackend(device), family) for _ in range(2))
    recordings(plain)._works = False
    return recorded, plain


def of(family, seed: int, count: int) -> list[int]:
    return [int(token) for token in integers(seed, 0, family.vocab_size, count)]


def run_both(recorded, plain, batch: Batch, where: str = "") -> None:
    assert_same(recorded.run(batch), plain.run(batch), where)


@pytest.mark.parametrize("family", ["gemma3", "qwen3moe", "lfm2", "nemotron_h", "qwen35"], indirect=True)
def test_replayed_tokens_have_the_bits_of_plain_ones(device, family):
    """Over the end of a chunk, by sequences in turn, after going back, and when the memory has grown."""
    recorded, plain = pair(device, family)
    texts, replayed = [of(family, seed, BORDER + 4) for seed in (1, 2)], recordings(recorded)
    start = BORDER - 4
    quick = load(open_backend("cpu", threads=1), family)
    for number, text in enumerate(texts):
        quick.run(rows(text[:start], 0, number, wanted=False))
        for program in (recorded, plain):
            program.restore(number, quick.snapshot(number))
    quick.close()
    for t in range(start, BORDER + 3):
        for number, text in enumerate(texts):
            run_both(recorded, plain, rows(text[t : t + 1], t, number), f"position {t} of sequence {number}")
    assert replayed.replayed == 2 * (BORDER - start) - 2 + 2 * 3 - 2  # the first two of each number of chunks are not

    assert recorded.truncate(0, start) == plain.truncate(0, start) == start
    for t in range(start, BORDER - 1):
        run_both(recorded, plain, rows(texts[1][t : t + 1], t), f"position {t} again")
    before = replayed.replayed
    for number in range(2, 7):  # more pages, states and activations than there was room for
        run_both(recorded, plain, rows(texts[0][:9], 0, number), f"sequence {number}")
    run_both(recorded, plain, rows(texts[0][:33], 0, 7), "more rows")
    assert replayed.replayed > before  # the last of the five: nothing grew any more
    before = replayed.replayed
    run_both(recorded, plain, rows(texts[1][BORDER + 3 :], BORDER + 3, 1), "after growth")
    for t in range(9, 13):
        run_both(recorded, plain, rows(texts[0][t : t + 1], t, 6), "another sequence")
    assert replayed.replayed == before + 2


@pytest.mark.parametrize("family", ["floats"], indirect=True)
def test_a_launch_that_knows_its_batch_is_seen(device, family, monkeypatch):
    """The comparison above would find a scalar that a recording keeps from an earlier token."""
    step = Executor._norm

    def norm(self, node, about):
        kept = node.values["eps"]
        node.values["eps"] = float(about.layout.host["rows"][0, 0])
        step(self, node, about)
        node.values["eps"] = kept

    monkeypatch.setattr(Executor, "_norm", norm)
    recorded, plain = pair(device, family)
    with pytest.raises(AssertionError):
        for t in range(6):
            run_both(recorded, plain, rows([t + 1], t))


def counted(asked, name, ask, *arguments):
    asked.append(name)
    return ask(*arguments)


@pytest.mark.parametrize("family", ["lfm2"], indirect=True)
def test_a_token_is_one_transfer_each_way(device, family, monkeypatch):
    """States stay on the device; one that was marked is read once."""
    program, asked = load(GpuBackend(device), family), []
    for name in ("memory", "write", "send", "read", "copy", "launch", "replay"):
        monkeypatch.setattr(device, name, partial(counted, asked, name, getattr(device, name)))
    for t in range(6):
        asked.clear()
        program.run(rows([t + 1], t))
    assert asked == ["send", "replay", "read"]
    for expected in (["read"], []):
        asked.clear()
        program.mark(0)
        program._states.copies(0)
        assert asked == expected
    asked.clear()
    program.run(rows([7], 6))
    assert asked == ["send", "replay", "read"]
    assert program.truncate(0, 6) == 6
    asked.clear()
    program.run(rows([7], 6))
    assert asked == ["write", "send", "replay", "read"]


def test_what_is_watched_is_not_recorded(device):
    """A pass is stretches between what the host reads."""
    values = np.linspace(-3, 3, 5 * 32, dtype=np.float32).reshape(5, 32)

    def forward(ops):
        x = inputs(ops, values)
        y = ops.tap(ops.activate(ops.tap(x, "x"), "silu"), "y")
        return ops.outputs(ops.add(ops.scale(y, 0.7), x))

    ours, theirs = (backend.load(forward, ()) for backend in (GpuBackend(device), ReferenceBackend()))
    for t in range(5):
        batch = Batch((t, 4 - t), (t, t), (0, 1), (1,))
        assert_same(ours.run(batch), theirs.run(batch))
        for name, found in theirs.taps().items():
            assert_same(ours.taps()[name], found, name)
    assert recordings(ours).replayed == 3
    (kept,) = recordings(ours)._kept.values()
    assert [recording is None for recording in kept] == [True, False, True, False]


@pytest.mark.parametrize(
    ("family", "failing"),
    [("floats", "replay"), *(("lfm2", failing) for failing in ("launch", "record", "replay", "memory"))],
    indirect=["family"],
)
def test_a_pass_that_breaks_off(device, family, monkeypatch, failing):
    """Its sequence is at no position that it has not; what was recorded is forgotten; then all goes on."""
    program, expected = load(GpuBackend(device), family), load(ReferenceBackend(), family)
    tokens = of(family, 3, 12)
    for t in range(1 if failing == "record" else 4):
        assert_same(program.run(rows(tokens[t : t + 1], t)), expected.run(rows(tokens[t : t + 1], t)))
        if failing == "replay":
            program.run(rows(tokens[:2], 0, 1))  # another shape, recorded too
    start = expected.length(0)

    def fail(*arguments):
        raise OutOfMemory("no memory left")

    real = device.launch
    with monkeypatch.context() as patched:
        if failing == "record":  # what can't be recorded is run
            patched.setattr(device, "launch", lambda *a: real(*a) if device._recording is None else fail())
            found = program.run(rows(tokens[start : start + 1], start))
            assert_same(found, expected.run(rows(tokens[start : start + 1], start)))
            assert recordings(program)._kept == {} and not recordings(program)._works
        else:
            patched.setattr(device, failing, fail)
            broken = rows(tokens[start : start + 1], start) if failing == "replay" else rows(tokens[start:], start)
            with pytest.raises(OutOfMemory, match=r"^no memory left: a shorter context, or fewer layers .* less$"):
                program.run(broken)
            assert program.length(0) == (0 if family.states else start)
            assert recordings(program)._kept == {} or failing == "memory"
    again = 0 if family.states else expected.length(0)
    expected.truncate(0, again)
    for t in range(again, 12):
        assert_same(program.run(rows(tokens[t : t + 1], t)), expected.run(rows(tokens[t : t + 1], t)), str(t))


@pytest.mark.parametrize("family", ["floats"], indirect=True)
def test_recordings_are_few(device, family, monkeypatch):
    """The one that was used longest ago goes first."""
    monkeypatch.setattr(recordings_module, "MOST", 3)
    program, plain = pair(device, family)
    token = [1]
    for _ in range(3):
        for count in range(1, 6):
            run_both(program, plain, rows(token * count, 0))
        run_both(program, plain, rows(token, 0))
    assert len(recordings(program)._kept) == 3
    assert [layout.host["rows"].shape[0] for layout in recordings(program)._kept][-1] == 1
    assert recordings(program).replayed == 2  # of one row, right after it was recorded


@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ([0, 0, 0, 0], ["abc", "AbC", "AbC", "AbC"]),
        ([0, 0, 1, 0], ["abc", "AbC", "Abc", "AbC"]),  # while it is replayed
        ([1, 1, 0, 0], ["abc", "Abc", "AbC", "AbC"]),  # while it is recorded
    ],
)
def test_memory_that_is_taken_makes_recordings_void(takes, expected):
    """Steps behind the one that took it run plainly (small letters), and are recorded the next time."""
    done: list[str] = []
    device = SimpleNamespace(allocations=0, replay=lambda recording: done.append(recording.upper()))

    def record(work):
        work()
        return done.pop()

    device.record = record

    def middle() -> None:
        device.allocations += next(left)
        done.append("b")

    steps = [Stretch(True, partial(done.append, "a")), Stretch(False, middle), Stretch(True, partial(done.append, "c"))]
    kept, layout, left = Recordings(device), Layout({}, {}, 0), iter(takes)
    for letters in expected:
        done.clear()
        kept.run(layout, steps)
        assert "".join(done) == letters


def test_memory_taken_in_a_recording_makes_it_void():
    """Its steps run plainly."""
    done: list[str] = []
    device = SimpleNamespace(allocations=0, replay=lambda recording: done.append(recording.upper()))

    def record(work):
        work()
        device.allocations += 1
        return done.pop()

    device.record = record
    kept, layout = Recordings(device), Layout({}, {}, 0)
    for _ in range(3):
        kept.run(layout, [Stretch(True, partial(done.append, "a"))])
    assert done == ["a", "a", "a"]


def test_what_is_on_its_way_is_not_overwritten(device):
    """After a pass that nothing was read of, the next one waits before it writes."""
    asked: list[str] = []
    ask = SimpleNamespace(
        alignment=device.alignment, memory=device.memory, part=device.part, pinned=device.pinned,
        send=lambda memory, values: asked.append("send"), finish=lambda: asked.append("finish"),
    )  # fmt: skip
    laid = Inputs(ask)
    small, large = ({"x": ((size,), np.int32)} for size in (3, 3000))
    for shapes in (small, small, large):
        laid.send(laid.lay(shapes))
    laid.arrived()
    assert laid.lay(large) is laid.lay(large)
    assert asked == ["send", "finish", "send", "finish", "send"]


def test_memory_of_the_host_is_in_no_recording(device):
    memory = device.memory(64)
    values = np.arange(16, dtype=np.float32)
    for work in (lambda: device.write(memory, values), lambda: device.read(memory, values)):
        assert device.record(work) is None
    other = device.memory(64)
    recording = device.record(lambda: device.copy(other, memory, 64))
    for factor in (1, 2):  # what is there when it is replayed
        device.write(memory, values * factor)
        device.replay(recording)
        found = np.zeros(16, np.float32)
        device.read(other, found)
        assert_same(found, values * np.float32(factor))


def test_a_device_that_fails_says_so(device):
    kernel = device.kernel("__kernel void nothing(int n) {}", "nothing")
    with pytest.raises(KineticError, match=f"^OpenCL device '{re.escape(device.name)}' failed: "):
        device.launch(kernel, 1, 1 << 30, np.int32(1))
