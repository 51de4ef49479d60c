"""Marks, rollback and snapshots: a sequence that went back has the bits of one that never went on."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from kinetic.backends.base import State
from kinetic.backends.states import BROKEN, MARK_BYTES, MOST_MARKS, StateStore
from kinetic.engine.token_sequence import TokenSequence
from kinetic.errors import KineticError, UsageError
from kinetic.types import Batch
from tests.support.backends import assert_same
from tests.support.tiny_recurrent import RECURRENT
from tests.support.whole_models import feed, program_of, tokens_of

STATEFUL = (*RECURRENT, "granitehybrid")
MODELS = ("gemma3", *STATEFUL)
OTHERS = tokens_of(108)


only_these = pytest.mark.parametrize("tiny", MODELS, indirect=True)


def rows_of(sequence, tokens):
    return sequence.feed(tokens, range(len(tokens)))


@only_these
@pytest.mark.parametrize("marked", [(), (40,), (1, 40, 256, 257)])
def test_roll_back(tiny, marked):
    """To before, at and behind marks, in the same page and in an earlier one; then on with the right tokens."""
    with program_of(tiny.file, threads=2) as program:
        for length in (0, 1, 39, 40, 41, 255, 256, 257, 260):
            sequence = TokenSequence(program)
            for start, end in zip((0, *marked), (*marked, 260), strict=True):
                sequence.feed(tiny.tokens[start:end])
                sequence.mark()
            sequence.feed(OTHERS[:20])
            sequence.roll_back(length)
            assert sequence.tokens == tuple(tiny.tokens[:length])
            assert_same(rows_of(sequence, tiny.tokens[length:280]), tiny.expected[length:280], f"after {length}")


@only_these
def test_what_truncate_returns(tiny):
    """The length wanted if keys and values are all, else the newest mark at or below it."""
    recurrent = tiny.name in STATEFUL
    with program_of(tiny.file) as program:
        for length, kept in ((60, 60), (59, 50), (50, 50), (49, 20), (20, 20), (19, 0), (70, 60), (60, 60), (0, 0)):
            sequence = TokenSequence(program)
            for start, end in ((0, 20), (20, 50), (50, 60)):
                sequence.feed(tiny.tokens[start:end])
                sequence.mark()
            found = program.truncate(0, length)
            assert found == program.length(0) == (kept if recurrent else min(length, 60))
            assert_same(feed(program, tiny.tokens[found:70], [33], start=found), tiny.expected[found:70])


@only_these
def test_resume(tiny):
    with program_of(tiny.file, threads=2) as program:
        sequence = TokenSequence(program)
        sequence.feed(tiny.tokens[:30])
        sequence.mark()
        sequence.feed(OTHERS[:30])
        there = sequence.resume(tiny.tokens[:99])
        assert there == len(sequence) >= 30
        assert_same(rows_of(sequence, tiny.tokens[there:]), tiny.expected[there:])
        assert sequence.resume(OTHERS) == 0


@only_these
@pytest.mark.parametrize("length", [0, 37, 256, 259])
def test_a_snapshot_goes_anywhere(tiny, length):
    """Into another sequence, another program, the other backend, and back: plain arrays, and the same bits after."""
    with program_of(tiny.file, threads=2) as cpu, program_of(tiny.file, "reference") as reference:
        whole = TokenSequence(cpu, 3)
        if length:
            whole.feed(tiny.tokens[:length])
        saved = whole.save()
        assert saved.snapshot.length == length
        for kept in (saved.snapshot.keys, saved.snapshot.values):
            assert all(array.dtype == np.float16 and len(array) == length for array in kept.values())
        assert all(a.dtype == np.float32 and a.shape == state.shape for state, a in saved.snapshot.states.items())
        whole.feed(OTHERS[:9])
        for program in (cpu, reference, cpu):
            sequence = TokenSequence(program, 5)
            sequence.feed(OTHERS[:3])
            sequence.restore(saved)
            again = sequence.save()
            assert again.tokens == saved.tokens == sequence.tokens
            for name in ("keys", "values", "states"):
                before, after = (getattr(one.snapshot, name) for one in (saved, again))
                assert before.keys() == after.keys()
                assert all(before[key].tobytes() == after[key].tobytes() for key in before)
            end = length + (3 if program is reference else 12)  # which is slow
            assert_same(rows_of(sequence, tiny.tokens[length:end]), tiny.expected[length:end])
            sequence.roll_back(length)
            assert_same(rows_of(sequence, tiny.tokens[length : length + 1]), tiny.expected[length : length + 1])
            saved = again


@only_these
def test_steps_in_any_order(tiny):
    """Two sequences are fed, marked, rolled back, saved and restored as the dice say; both are always as if alone."""
    dice = random.Random(20)
    with program_of(tiny.file, threads=2) as program:
        sequences = [TokenSequence(program, number) for number in (0, 1)]
        saved = sequences[0].save()
        for _ in range(150):
            sequence = dice.choice(sequences)
            at, step = len(sequence), dice.random()
            if step < 0.45:
                count = min(dice.choice((1, 1, 2, 7, 33)), len(tiny.tokens) - at)
                found = rows_of(sequence, tiny.tokens[at : at + count])
                assert_same(found, tiny.expected[at : at + count], f"{count} from {at} on")
            elif step < 0.55:
                sequence.feed(OTHERS[: dice.randrange(1, 9)])
                sequence.roll_back(at)
            elif step < 0.7:
                sequence.mark()
            elif step < 0.85:
                sequence.roll_back(dice.randrange(at + 1))
            elif step < 0.92:
                saved = sequence.save()
            else:
                sequence.restore(saved)
            if at > 280:
                sequence.roll_back(dice.randrange(200))


@only_these
def test_a_pass_broken_off(tiny, monkeypatch):
    """States are nowhere then: back to a mark, or to the start, and nothing else."""
    with program_of(tiny.file) as program:
        sequence = TokenSequence(program)
        sequence.feed(tiny.tokens[:30])
        sequence.mark()
        sequence.feed(tiny.tokens[30:40])
        workers_run = program._workers.run

        def interrupted():
            workers_run()
            raise KeyboardInterrupt

        monkeypatch.setattr(program._workers, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sequence.feed(OTHERS[:5])
        monkeypatch.undo()
        if tiny.name in STATEFUL:
            assert program.length(0) == 0
            with pytest.raises(KineticError, match="position"):
                program.run(Batch((5,), (40,), (0,), (0,)))
        sequence.roll_back(40)
        assert_same(rows_of(sequence, tiny.tokens[40:60]), tiny.expected[40:60])


@only_these
def test_lengths_that_never_were(tiny):
    with program_of(tiny.file) as program:
        sequence = TokenSequence(program)
        sequence.feed(tiny.tokens[:5])
        for length in (-1, 6):
            with pytest.raises(UsageError, match="go back"):
                sequence.roll_back(length)


@pytest.mark.parametrize("tiny", ["lfm2"], indirect=True)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_another_models_snapshot(tiny, backend):
    """Is refused, and leaves everything as it was."""
    with program_of(tiny.file, backend) as program:
        sequence = TokenSequence(program)
        sequence.feed(tiny.tokens[:9])
        snapshot = sequence.save().snapshot
        state = next(iter(snapshot.states))
        wrong = [
            replace(snapshot, states={}),
            replace(snapshot, states={**snapshot.states, state: np.zeros((1, 2), np.float32)}),
            replace(snapshot, states={**snapshot.states, State(99, "other", (2,)): np.zeros(2, np.float32)}),
            replace(snapshot, keys={}),
            replace(snapshot, length=8),
            replace(snapshot, values={layer: a[:, :1] for layer, a in snapshot.values.items()}),
        ]
        for one in wrong:
            with pytest.raises(KineticError, match="snapshot was taken") as caught:
                program.restore(0, one)
            assert caught.value.name == "WRONG_SNAPSHOT"
        assert_same(rows_of(sequence, tiny.tokens[9:20]), tiny.expected[9:20])


# --- marks alone ---


def test_marks_are_bounded_and_spread():
    """However many are set: the first and the last stay, and the older the wider apart."""
    store = StateStore((State(0, "s", (4,)),))
    for position in range(1000):
        store.end(store.begin(Batch((0,), (position,), (0,), ())))
        store.mark(0)
        lengths = [mark.length for mark in store._marks[0]]
        assert len(lengths) <= MOST_MARKS
        assert lengths[0] == 1 and lengths[-1] == position + 1
    gaps = np.diff(lengths)
    assert gaps[-1] <= 4
    assert lengths[1] < 900 and max(gaps) < 900
    assert len(store._spare) <= MOST_MARKS


def test_marks_of_large_states():
    """Never more than a quarter of a gigabyte, but for the two that a draft needs."""
    assert StateStore((State(0, "s", (MARK_BYTES // 16,)),)).most_marks == 4
    assert StateStore((State(0, "s", (MARK_BYTES,)),)).most_marks == 2
    assert StateStore(()).most_marks == MOST_MARKS
    assert BROKEN < 0
