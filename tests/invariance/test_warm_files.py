"""What was computed before, in memory and in files: what is found there, what is refused, and how much it may take."""

from __future__ import annotations

import errno
import os
import threading
from itertools import pairwise

import numpy as np
import pytest

from kinetic.backends.base import CHUNK
from kinetic.engine.warm import MemoryStore, disk, files
from kinetic.engine.warm.blocks import ROOT, Block, Contents, blocks_of, common, longest_way
from tests.support.warm import PROMPTS, SECRET, STATEFUL, A, B, ask, cache, cold, engine_of
from tests.support.whole_models import tokens_of

one = pytest.mark.parametrize("tiny", ["llama"], indirect=True)
two = pytest.mark.parametrize("tiny", ["llama", "lfm2"], indirect=True)


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
        (A, 600), (A[:600], 600), (A[:599], 599), (A[:256], 256), (A[:255], 255), (A[:300] + B, 600),
        (A[:290] + B, 290),        (A[:300] + B[:5] + A, 305), (B, 10), (B[:9], 9), ([1], 0), ([], 0),
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


def spoilt_ways(data):
    """A flipped bit at every kind of place, other lengths, another version, another key for the same content."""
    places = [0, 20, 50, 82, 114, 144, 152, 156, 160, 168, 180, 310, 2000, 4095, 4096, len(data) // 2, len(data) - 1]
    spoilt = [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in places]
    spoilt += [b"", data[:100], data[:4096], data[:-1], data + b"\0", data.replace(b"prefix 1", b"prefix 2", 1)]
    true = files.parsed(data[:4096])
    contents = Contents(np.frombuffer(data, np.uint8)[4096:], None)
    block, key = true.block._replace(has_states=False), files.keys_of(b"x" * 32)[0]
    header, parts = files.packed(block, contents, true.subject, "tiny", key)
    return [*spoilt, b"".join([header, *parts])]


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
        spoilt = [*spoilt_ways(data), others[number], foreign[number], models[number], sound[paths[1 - number]]]
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
