"""Whatever was computed before and is taken up again, steps are those of a cold run: tokens, runners-up, gaps, digests."""

from __future__ import annotations

import errno
import math
import os
import threading
from itertools import pairwise

import numpy as np
import pytest

from kinetic.backends.base import CHUNK
from kinetic.engine import Engine
from kinetic.engine.warm import MemoryStore, blocks, disk, files, warm
from kinetic.engine.warm.blocks import ROOT, Block, Contents, blocks_of, common, longest_way
from kinetic.types import SPEED_UPS, PrefixCache, Request, Sampling
from ktc.digest import logits_digest
from tests.support.tiny_recurrent import RECURRENT
from tests.support.whole_models import tokens_of

SETTINGS = (
    Sampling(temperature=0, repeat_penalty=1.5, repeat_last_n=-1),
    Sampling(temperature=0.8, seed=7, presence_penalty=0.2, logit_bias=((17, 1.5), (40, -math.inf))),
)
STATEFUL = (*RECURRENT, "granitehybrid")
A, B = tokens_of(100, 700), tokens_of(101, 500)
PROMPTS = (A[:600], B, A[:600] + B[:40], A[:300] + B[:40], A[:300] + B[:40], A, B, [A[0], *B])
"""Unrelated ones, those that go on, that fork in an earlier block, the same again, one that has nothing of an earlier."""

KNOWN = [0, 0, 600, 300, 339, 600, 499, 0]
KNOWN_LATER = [599, 499, 639, 339, 339, 699, 499, 500]
STATES = [0, 0, 592, 0, 320, 592, 480, 0]
STATES_LATER = [592, 480, 624, 320, 320, 688, 480, 480]
"""Of each prompt, what was known: in one go, and after a restart. Recurrent states are there at multiples of 512, and
at the last one of 16 so much before the end that it is likely to stay."""

SECRET = b"k" * 32


def digest(row):
    return logits_digest(row.astype("<f4", copy=False).view("u1").data, b"")


def cache(folder, limit=1 << 30, secret=SECRET, known="ab"):
    folder.mkdir(mode=0o700, exist_ok=True)
    return PrefixCache(str(folder), limit, secret, "tiny", known * 32, lambda: known * 32)


def engine_of(tiny, prefixes=None, **options):
    return Engine(tiny.file.gguf, tiny.file.weights, prefixes=prefixes, **{"threads": 2, **options})


def ask(engine, tokens, settings=SETTINGS[1], count=12, keep=True):
    steps = list(engine.generate(Request(tuple(tokens), settings, count), digest=digest))
    if keep:
        engine.keep()
    return steps


def cold(tiny, prompts, settings=SETTINGS[1], count=12):
    engine = engine_of(tiny, threads=1, off=SPEED_UPS)
    found = [ask(engine, prompt, settings, count) for prompt in prompts]
    assert engine.reused == 0 and engine._warm is None
    engine.close()
    return found


only = pytest.mark.parametrize("tiny", ["llama", "gemma3", "lfm2", "granitehybrid"], indirect=True)
one = pytest.mark.parametrize("tiny", ["llama"], indirect=True)
two = pytest.mark.parametrize("tiny", ["llama", "lfm2"], indirect=True)


@only
@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "drawn"])
def test_steps_are_those_of_a_cold_run(tiny, tmp_path, settings):
    expected = cold(tiny, PROMPTS, settings)
    for start, off in enumerate(((), ("drafts",))):
        engine = engine_of(tiny, cache(tmp_path / "kept"), off=off)
        known = []
        for prompt, steps in zip(PROMPTS, expected, strict=True):
            assert ask(engine, prompt, settings) == steps, (start, len(prompt))
            known.append(engine.reused)
        engine.close()
        assert engine._warm.disk.dropped == 0
        kinds = ([KNOWN, KNOWN_LATER], [STATES, STATES_LATER])[tiny.name in STATEFUL]
        assert known == kinds[start]


@pytest.mark.parametrize("tiny", ["lfm2", "qwen3"], indirect=True)
def test_the_reference_takes_up_too(tiny, tmp_path):
    prompt = A[:270]
    expected = cold(tiny, [prompt, prompt[:262] + B[:9]], count=2)
    for known in (0, 256):
        engine = engine_of(tiny, cache(tmp_path / "kept"), backend="reference")
        assert ask(engine, prompt, count=2) == expected[0]
        assert engine.reused >= known
        assert ask(engine, prompt[:262] + B[:9], count=2) == expected[1]
        assert engine.reused == (262, 256)[tiny.name in STATEFUL]
        engine.close()


@two
def test_one_token_too_far(tiny, monkeypatch):
    """What the test above would say if a prefix were believed beyond its end."""
    expected = cold(tiny, PROMPTS[:4])
    sound = blocks.common
    for place in (blocks, warm):
        monkeypatch.setattr(place, "common", lambda a, b: min(sound(a, b) + 1, len(a), len(b)))
    engine = engine_of(tiny)
    assert [ask(engine, prompt) for prompt in PROMPTS[:4]] != expected or tiny.name in STATEFUL
    engine.close()


# --- the live sequence ---


@only
def test_prefill(tiny):
    """A draft that grows, is edited in the middle, and is asked at last; then computed ahead once more."""
    drafts = [A[:40], A[:70], A[:60] + B[:30], A[:60] + B[:33], A[:64], A[:100]]
    expected = cold(tiny, [A[:101], A[:50] + B[:4]])
    engine, cut = engine_of(tiny), tiny.name in STATEFUL
    known = []
    for draft in drafts:
        assert engine.prefill(draft) == len(draft)
        known.append(engine.reused)
    assert known == ([0, 40, 48, 90, 48, 64] if cut else [0, 40, 60, 90, 60, 64])
    assert engine.prefill(A[:100]) == 100 == engine.reused
    assert ask(engine, A[:101]) == expected[0] and engine.reused == 100
    assert engine.prefill(A[:50]) == 50
    assert ask(engine, A[:50] + B[:4]) == expected[1] and engine.reused == 50
    plain = engine_of(tiny, off=("warm",))
    assert plain.prefill(A[:100]) == 0
    engine.close()
    plain.close()


@two
def test_a_run_that_is_broken_off(tiny, monkeypatch):
    """Stopped while the prompt is read, closed between two tokens, failed in a pass: the next answer is as ever."""
    expected = cold(tiny, [A, A[:650]])
    engine = engine_of(tiny)
    engine.prompt_rows = 100
    asked = iter([False, False, True])
    request = Request(tuple(A), SETTINGS[1], 12)
    assert list(engine.generate(request, should_stop=lambda: next(asked))) == []
    assert ask(engine, A) == expected[0] and engine.reused in (300, 0)
    steps = engine.generate(request, digest=digest)
    assert [next(steps), next(steps)] == expected[0][:2]
    steps.close()
    assert ask(engine, A[:650]) == expected[1] and engine.reused > 500
    run, calls = engine._program._workers.run, []

    def fails():
        run()
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt

    for prompt in (B, A[:650] + B[:300]):
        calls.clear()
        monkeypatch.setattr(engine._program._workers, "run", fails)
        with pytest.raises(KeyboardInterrupt):
            ask(engine, prompt)
        monkeypatch.undo()
        assert ask(engine, A) == expected[0]
    engine.close()


@one
def test_checks_take_nothing_up(tiny, monkeypatch):
    """Replays and rows of logits begin anew, and what they leave in the sequence is nobody's."""
    expected = cold(tiny, [A[:300], B[:300]])
    engine = engine_of(tiny)
    answer = ask(engine, A[:300])
    request = Request(tuple(A[:300]), SETTINGS[1], 12)
    monkeypatch.setattr(engine._warm, "begin", lambda tokens: pytest.fail("taken up"))
    assert list(engine.replay(request, [step.token for step in answer], digest=digest)) == expected[0]
    engine.logits(B[:300])
    monkeypatch.undo()
    assert ask(engine, B[:300]) == expected[1] and engine.reused == 0
    engine.close()


# --- memory ---


def some_blocks(tokens, size=100):
    kept = np.zeros(size, np.uint8)
    return [(block, Contents(kept, None)) for block, _ in blocks_of(tokens, None, ROOT)]


def test_memory_is_bounded():
    store = MemoryStore(1000)
    for stream in range(40):
        for block, contents in some_blocks(tokens_of(stream, 600)):
            store.put(block, contents)
            assert store.size <= 1000 and len(store) <= 10
    assert store.size == 1000
    for stream, length in ((39, 600), (37, 600), (10, 0)):
        assert longest_way([store], tokens_of(stream, 700), ROOT, with_states=False).length == length
    store.put(*some_blocks(tokens_of(50, 100), 1001)[0])
    assert store.size == 1000


def test_the_longest_way():
    """Into the middle of a block, over several, and the better of two that begin alike."""
    store = MemoryStore(1 << 20)
    for tokens in (A[:600], A[:300] + B[:300], A[:280], B[:10]):
        for block, contents in some_blocks(tokens):
            store.put(block, contents)
    for prompt, length in (
        (A, 600), (A[:600], 600), (A[:599], 599), (A[:256], 256), (A[:255], 255), (A[:300] + B, 600), (A[:290] + B, 290),
        (A[:300] + B[:5] + A, 305), (B, 10), (B[:9], 9), ([1], 0), ([], 0),
    ):  # fmt: skip
        way = longest_way([store], prompt, ROOT, with_states=False)
        assert way.length == length
        assert all(entry.count == CHUNK for entry in way.entries[:-1])
        assert sum(entry.count for entry in way.entries) >= length
    assert longest_way([store], A, ROOT, with_states=True).length == 0


def test_states_count_only_where_they_are():
    store, states = MemoryStore(1 << 20), np.zeros(8, np.uint8)
    for block, known in blocks_of(A[:600], {512: states, 400: states, 590: states}, ROOT):
        store.put(block, Contents(np.zeros(4, np.uint8), known))
    for length, usable in ((700, 590), (590, 590), (589, 512), (511, 400), (399, 0), (256, 0)):
        assert longest_way([store], A[:length], ROOT, with_states=True).length == usable


def test_names_depend_on_everything():
    names = [block.name for block, _ in blocks_of(A, None, ROOT)]
    for others in ([*A[:255], A[255] + 1, *A[256:]], [A[0] + 1, *A[1:]]):
        assert not {block.name for block, _ in blocks_of(others, None, ROOT)} & set(names)
    assert not {block.name for block, _ in blocks_of(A, None, SECRET)} & set(names)
    assert common(A, A[:7]) == 7 and common(A, B) == 0 and common([], A) == 0


@one
def test_little_memory(tiny, tmp_path):
    """Room for a block, for none, on disk for two: the same answers, and never more than that."""
    expected = cold(tiny, PROMPTS[:4])
    program = engine_of(tiny)
    size = program._program.kept_bytes(CHUNK)
    program.close()
    for number, (ram, room) in enumerate(((0, 0), (size, 0), (0, 2 * (size + files.HEADER)), (2 * size, 4000))):
        folder = tmp_path / str(number)
        engine = engine_of(tiny, cache(folder, room), warm_bytes=ram)
        for prompt, steps in zip(PROMPTS[:4], expected, strict=True):
            assert ask(engine, prompt) == steps
            assert engine._warm.memory.size <= ram
        engine.close()
        assert sum(path.stat().st_size for path in folder.iterdir()) <= room
        assert bool(list(folder.iterdir())) == (room > size)


# --- files ---


def kept(tiny, folder, prompt, **changes):
    """Files of a prompt, in the order of their blocks."""
    engine = engine_of(tiny, cache(folder, **changes))
    ask(engine, prompt)
    engine.close()
    found = [(path, files.parsed(path.read_bytes()[: files.HEADER])) for path in folder.iterdir()]
    return [path for path, header in sorted(found, key=lambda item: item[1].block.end)]


@two
def test_damaged_files(tiny, tmp_path):
    """Every kind of place in the first and in the last one: dropped, counted, and never half of it used."""
    folder, prompt = tmp_path / "kept", A[:300]
    paths = kept(tiny, folder, prompt)
    sound = {path: path.read_bytes() for path in paths}
    others = [path.read_bytes() for path in kept(tiny, tmp_path / "others", B[:300])]
    foreign = [path.read_bytes() for path in kept(tiny, tmp_path / "foreign", prompt, secret=b"x" * 32)]
    models = [path.read_bytes() for path in kept(tiny, tmp_path / "models", prompt, known="cd")]
    (expected,) = cold(tiny, [prompt])
    engine = engine_of(tiny, cache(folder), warm_bytes=0)

    def again():
        for path, data in sound.items():
            if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
                path.unlink(missing_ok=True)
                path.write_bytes(data)
            path.chmod(0o600)
        engine._warm.forget()
        engine._warm.disk.dropped = 0

    again()
    assert ask(engine, prompt, keep=False) == expected
    full = engine.reused
    assert full == (299, 288)[tiny.name in STATEFUL]
    for number in (0, 1):
        path = paths[number]
        data = sound[path]
        places = [0, 20, 50, 82, 114, 144, 152, 156, 160, 168, 180, 310, 2000, 4095, 4096, len(data) // 2, len(data) - 1]
        spoilt = [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in places]
        spoilt += [b"", data[:100], data[:4096], data[:-1], data + b"\0", others[number], foreign[number], models[number]]
        spoilt += [sound[paths[1 - number]], data.replace(b"prefix 1", b"prefix 2", 1)]
        seal = files.keys_of(b"x" * 32)[0]
        forged = files.parsed(data[:4096])
        contents = Contents(np.frombuffer(data, np.uint8)[4096:], None)
        header, parts = files.packed(forged.block._replace(has_states=False), contents, forged.subject, "tiny", seal)
        spoilt.append(b"".join([header, *parts]))
        for case, bad in enumerate(spoilt):
            again()
            assert bad != data, case
            path.write_bytes(bad)
            assert ask(engine, prompt, count=3, keep=False) == expected[:3], (number, case)
            assert engine.reused <= (0 if number == 0 else CHUNK), (number, case)
            assert engine._warm.disk.dropped >= 1, (number, case)
        again()
        path.chmod(0o644)
        assert ask(engine, prompt, count=3, keep=False) == expected[:3] and engine.reused < full
        again()
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert ask(engine, prompt, count=3, keep=False) == expected[:3] and engine.reused < full
        assert (tmp_path / "elsewhere").read_bytes() == data
    engine.close()
    last = engine_of(tiny, cache(folder))
    assert ask(last, prompt) == expected
    last.close()


@one
def test_places_that_are_none(tiny, tmp_path, monkeypatch):
    """A folder that is gone, that others may read, on a disk that is full: no error, and nothing is left over."""
    (expected,) = cold(tiny, [A[:300]])
    folder = tmp_path / "kept"
    prefixes = cache(folder)
    for prepare in (lambda: folder.rmdir(), lambda: folder.mkdir(mode=0o755), lambda: folder.write_bytes(b"")):
        prepare()
        engine = engine_of(tiny, prefixes)
        assert ask(engine, A[:300]) == expected
        engine.close()
        assert not folder.is_dir() or not list(folder.iterdir())
        if folder.is_dir():
            folder.rmdir()
    folder.unlink()
    folder.mkdir(mode=0o700)

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "replace", full)
    engine = engine_of(tiny, prefixes)
    assert ask(engine, A[:300]) == expected == ask(engine, A[:300])
    engine.close()
    assert list(folder.iterdir()) == []


@one
def test_two_at_once(tiny, tmp_path):
    """Engines in two threads write, read, evict and remove each other's files."""
    prompts = [A[:300], B[:400], A[:300] + B[:100], B[:300]]
    expected = cold(tiny, prompts, count=4)
    probe = engine_of(tiny)
    room = 3 * (probe._program.kept_bytes(CHUNK) + files.HEADER)
    probe.close()
    wrong = []

    def work(order):
        engine = engine_of(tiny, cache(tmp_path / "kept", room), warm_bytes=0, threads=1)
        for number in order * 4:
            if ask(engine, prompts[number], count=4) != expected[number]:
                wrong.append(number)
        engine.close()
        wrong.extend(["dropped"] * engine._warm.disk.dropped)

    threads = [threading.Thread(target=work, args=(order,)) for order in ([0, 1, 2, 3], [3, 2, 0, 1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(path.name.endswith(disk.SUFFIX) for path in (tmp_path / "kept").iterdir())


@one
def test_what_is_written(tiny, tmp_path):
    """Nothing short, nothing twice, no beginning of what is there, for the user alone; parents go last."""
    folder = tmp_path / "kept"
    engine = engine_of(tiny, cache(folder))
    ask(engine, A[:200])
    assert list(folder.iterdir()) == []
    talk = A[:250]
    for _ in range(3):
        talk += [step.token for step in ask(engine, talk)] + A[:120]
    engine.close()
    found = {path: files.parsed(path.read_bytes()[: files.HEADER]).block for path in folder.iterdir()}
    ends = sorted(block.end for block in found.values())
    assert ends == [256, 512, 525]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found)
    used = sorted(found, key=lambda path: found[path].end)
    assert all(older.stat().st_mtime_ns > newer.stat().st_mtime_ns for older, newer in pairwise(used))
    disk.trim(folder, used[0].stat().st_size + 10)
    assert list(folder.iterdir()) == [used[0]]


def test_the_layout_of_a_file():
    """Sizes and places, as they are written down."""
    block = Block(b"p" * 32, b"n" * 32, 512, (5, 70000), True)
    contents = Contents(np.arange(10, dtype=np.uint8), np.arange(6, dtype=np.uint8))
    header, parts = files.packed(block, contents, b"s" * 32, "ä" * 100, SECRET)
    assert len(header) == 4096 and b"".join(parts) == bytes([*range(10), *range(6)])
    assert header[:16] == b"kinetic prefix 1" and header[48:80] == b"s" * 32 and header[80:112] == b"p" * 32
    assert header[144:176] == bytes([0, 2, *[0] * 6, 2, 0, 0, 0, 1, 0, 0, 0, 10, *[0] * 7, 6, *[0] * 7])
    assert header[304:312] == bytes([5, 0, 0, 0, 112, 17, 1, 0]) and not any(header[312:])
    found = files.parsed(header)
    assert (found.block, found.kept_bytes, found.state_bytes, found.label) == (block, 10, 6, "ä" * 64)
    assert files.parsed(header[:-1]) is None
