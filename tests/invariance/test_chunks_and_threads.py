"""The bits of every row are the same, however a prompt is cut, beside whatever rows, on however many threads."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from kinetic.backends.cpu.pages import Pages
from kinetic.backends.cpu.workers import Workers
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.support.backends import assert_same
from tests.support.tiny_models import write_tiny_gemma3
from tests.support.tiny_recurrent import RECURRENT
from tests.support.whole_models import LENGTH, feed, program_of, prompt_then_decode, tokens_of

CHUNKINGS = {
    "all at once": [LENGTH],
    "16": [16],
    "7": [7],
    "3 1 2 13": [3, 1, 2, 13] * 30,
    "100 1 1 5": [100, 1, 1, 5],
    "255 1 1": [255, 1, 1, 3],
    "256": [256],
    "257": [257],
    "growing": range(1, 60),
}


def test_the_models_say_something(tiny):
    """Rows differ from each other, logits within a row too, and nothing is out of hand."""
    assert np.isfinite(tiny.expected).all()
    assert len(np.unique(tiny.expected.argmax(axis=1))) > 25
    assert 1 < tiny.expected.std() < 10
    assert len(np.unique(tiny.expected, axis=0)) == LENGTH


def test_the_reference_agrees(tiny):
    """As far as its patience goes: 40 rows, then some more in other pieces."""
    with program_of(tiny.file, "reference") as program:
        assert_same(feed(program, tiny.tokens[:40], [40]), tiny.expected[:40])
        assert_same(feed(program, tiny.tokens[40:48], [1, 5, 2], start=40), tiny.expected[40:48])


@pytest.mark.slow
def test_the_reference_agrees_beyond_the_first_chunk(tiny):
    with program_of(tiny.file, "reference") as program:
        assert_same(feed(program, tiny.tokens[:270], [270]), tiny.expected[:270])


@pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=CHUNKINGS)
def test_chunks(tiny, sizes):
    with program_of(tiny.file, threads=2) as program:
        assert_same(prompt_then_decode(program, tiny.tokens, sizes), tiny.expected)


def test_every_number_of_rows(tiny):
    with program_of(tiny.file, threads=1) as program:
        for size in range(1, 18):
            assert_same(prompt_then_decode(program, tiny.tokens, [size]), tiny.expected, f"{size} rows at once")


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 9])
def test_threads(tiny, threads):
    """Nine are more than this needs, and more than there are cores on many machines."""
    with program_of(tiny.file, threads=threads) as program:
        assert_same(prompt_then_decode(program, tiny.tokens, [64, 1, 33]), tiny.expected)


def test_waiting_without_the_system(tiny, monkeypatch):
    """As where there is no sched_yield."""
    monkeypatch.setenv("KINETIC_PORTABLE_WAIT", "1")
    with program_of(tiny.file, threads=2) as program:
        assert_same(prompt_then_decode(program, tiny.tokens, [200, 31]), tiny.expected)


# --- several sequences ---


def together(pending: dict[int, list[int]], order: list[int], shares: list[int]) -> Batch:
    """Takes ``shares[i]`` rows of sequence ``order[i]`` in turn until all are gone; positions ascend within each."""
    place = dict.fromkeys(pending, 0)
    rows: list[tuple[int, int, int]] = []
    while any(place[s] < len(pending[s]) for s in pending):
        for sequence, share in zip(order, shares, strict=True):
            for _ in range(min(share, len(pending[sequence]) - place[sequence])):
                rows.append((pending[sequence][place[sequence]], place[sequence], sequence))
                place[sequence] += 1
    tokens, positions, sequences = zip(*rows, strict=True)
    return Batch(tokens, positions, sequences, tuple(range(len(rows))))


@pytest.mark.parametrize("order, shares", [((0, 1, 2), (1, 1, 1)), ((2, 0, 1), (5, 1, 17)), ((1, 2, 0), (300, 3, 40))])
def test_sequences_in_one_batch(tiny, order, shares):
    """Three sequences, longer and shorter than a chunk, mixed row by row: each as if alone."""
    pending = {0: tiny.tokens[:280], 1: tokens_of(101, 70), 2: tokens_of(102, 258)}
    alone = {0: tiny.expected[:280]}
    with program_of(tiny.file, threads=2) as program:
        for sequence in (1, 2):
            alone[sequence] = feed(program, pending[sequence], [19], sequence=sequence)
            program.truncate(sequence, 0)
        batch = together(pending, list(order), list(shares))
        found = program.run(batch)
        for sequence in pending:
            rows = np.array(batch.sequences) == sequence
            assert_same(found[rows], alone[sequence], f"of sequence {sequence}")
        decoded = feed(program, tiny.tokens[280:], [1], start=280, sequence=0)
        assert_same(decoded, tiny.expected[280:], "decoded after the mix")


def test_the_order_of_rows(tiny):
    """Neighbours change places; each keeps its bits. Repeating one prompt in two sequences gives it twice."""
    with program_of(tiny.file, threads=3) as program:
        prompt = {0: tiny.tokens[:50], 4: tiny.tokens[:50]}
        for shares in ([1, 1], [4, 3], [50, 50]):
            found = program.run(together(prompt, [4, 0], shares))
            sequences = np.array(together(prompt, [4, 0], shares).sequences)
            for sequence in (0, 4):
                assert_same(found[sequences == sequence], tiny.expected[:50])
            program.truncate(0, 0)
            program.truncate(4, 0)


# --- memory ---


@pytest.mark.parametrize("length", [0, 1, 37, 63, 64, 255, 256, 257])
def test_truncate_and_grow_again(tiny, length):
    """What was forgotten leaves no trace, in the same page or in one given back."""
    with program_of(tiny.file, threads=2) as program:
        feed(program, tiny.tokens[:length] + tokens_of(103, 20), [64])
        kept = program.truncate(0, length)
        assert kept == length or (kept == 0 and tiny.name in RECURRENT)
        assert_same(feed(program, tiny.tokens[kept:], [50], start=kept), tiny.expected[kept:])


def test_memory_full_of_nan(tiny, monkeypatch):
    """Pages, buffers and scratch hold NaN wherever nothing was stored: none of it reaches a result."""
    made = Pages._new_page
    filled = []

    def poisoned(self):
        page = made(self)
        page[:] = 0xFF
        filled.append(page)
        return page

    monkeypatch.setattr(Pages, "_new_page", poisoned)
    with program_of(tiny.file, threads=2) as program:

        def poison():
            program._scratch[:] = 0xFF
            for memory in buffers(program):
                memory[:] = 0xFF

        poison()
        found = [feed(program, tiny.tokens[:250], [250])]
        for start in range(250, LENGTH, 9):
            poison()
            found.append(feed(program, tiny.tokens[start : start + 9], [9], start=start))
        assert_same(np.concatenate(found), tiny.expected)
    assert len(filled) == 2


def buffers(program):
    """The memory of all activations of a program."""
    return [buffer.data for held in program._tape.keep if isinstance(held, list) for buffer in held]


def test_a_table_of_pages_that_grows_within_a_batch(tmp_path):
    """Past 4,096 positions a sequence's table moves to larger memory; rows before it in the batch must follow."""
    path = write_tiny_gemma3(tmp_path / "long.gguf", layers=6, context=8192)
    tokens = tokens_of(107, 4300)
    with open_model_file(path) as file:
        found = []
        for sizes in ([4000, 300], [256], [4096, 1, 203]):
            with program_of(file, threads=2) as program:
                found.append(feed(program, tokens, sizes)[3990:])
        assert_same(found[1], found[0])
        assert_same(found[2], found[0])


def test_a_page_that_another_sequence_used(tiny):
    """Pages go from hand to hand with their contents."""
    with program_of(tiny.file, threads=1) as program:
        feed(program, tokens_of(104, 300), [128], sequence=5)
        program.truncate(5, 0)
        assert_same(prompt_then_decode(program, tiny.tokens, [90]), tiny.expected)


def test_an_interrupted_pass(tiny, monkeypatch):
    """Ctrl-C when the other threads have begun and this one has not: they must not be half a pass ahead ever after."""

    wake = Workers._wake

    def interrupted(self):
        monkeypatch.setattr(Workers, "_wake", wake)
        raise KeyboardInterrupt

    with program_of(tiny.file, threads=3) as program:
        for pause in (0.0, 0.1):  # while the other threads spin, and when they have gone to sleep
            feed(program, tokens_of(105, 40), [40])
            time.sleep(pause)
            monkeypatch.setattr(Workers, "_wake", interrupted)
            with pytest.raises(KeyboardInterrupt):
                feed(program, tokens_of(106, 40), [40], start=40)
            assert_same(prompt_then_decode(program, tiny.tokens, [60]), tiny.expected)


def test_programs_beside_each_other(tiny):
    """Several programs in several threads of Python at once."""
    found: dict[int, object] = {}

    def work(index: int) -> None:
        try:
            with program_of(tiny.file, threads=1 + index % 2) as program:
                found[index] = prompt_then_decode(program, tiny.tokens, [40 + index, 1, 1, 9])
        except Exception as error:
            found[index] = error

    runners = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    for index in range(4):
        assert isinstance(found[index], np.ndarray), found[index]
        assert_same(found[index], tiny.expected)
