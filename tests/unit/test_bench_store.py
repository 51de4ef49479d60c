"""The bench store: what is kept, whatever happens to the file, and what counts as slower."""

from __future__ import annotations

import json
import multiprocessing
import statistics

import pytest

from conformance import bench_store
from conformance.bench_store import Judgement
from kinetic.api import bench
from kinetic.errors import FileProblem

# --- the file ---

MACHINE = {"processor": "P", "architecture": "x", "cores": 2, "usable": 2, "quota": None, "isa": "avx2", "load": 0.1}


def row(speed, spread=0.02, test="tg128", threads=1, count=5, **more):
    """A test whose quartiles are ``spread`` of the median apart."""
    half = speed * spread / 2
    quartiles = {"q1": speed - half, "q3": speed + half}
    about = {"test": test, "kind": test[:2], "threads": threads, "median": speed, "speeds": [speed] * count}
    return about | quartiles | more


def record(*rows, time="2026-11-30T00:00:00Z", machine=MACHINE, blake3="aa", **more):
    about = {"format": bench.FORM, "time": time, "kinetic": "0.1", "engine_id": "cpu:1", "device": "cpu", "peer": ""}
    return about | {"model": {"blake3": blake3}, "machine": machine, "results": list(rows)} | more


def test_records_are_appended_and_read_back(tmp_path):
    folder = tmp_path / "new" / "bench"
    assert bench_store.read(folder) == ([], 0)
    for number in (1, 2, 3):
        path = bench_store.append(folder, record(row(number)))
    assert [r["results"][0]["median"] for r in bench_store.read(folder).records] == [1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700


def test_a_line_that_was_cut_short_costs_only_itself(tmp_path):
    path = bench_store.append(tmp_path, record(row(1)))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    bench_store.append(tmp_path, record(row(2)))
    stored = bench_store.read(tmp_path)
    assert [r["results"][0]["median"] for r in stored.records] == [1, 2] and stored.skipped == 1


@pytest.mark.parametrize(
    "line",
    [
        b"oops",
        b"[1]",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(record(row(1)) | {"format": "kinetic bench 2"}).encode(),
        json.dumps(record(row(-1))).encode(),
        json.dumps(record(row(1, speeds=[]))).encode(),
        json.dumps(record(row(1, median="1"))).encode(),
        json.dumps(record(row(1, peer={}))).encode(),
        json.dumps(record(row(1)) | {"model": {}}).encode(),
        json.dumps(record(row(1)) | {"time": 5}).encode(),
        b'{"format": "kinetic bench 1", "results": NaN}',
    ],
)
def test_what_is_no_record_is_passed_over(tmp_path, line):
    (tmp_path / bench_store.FILE).write_bytes(line + b"\n" + json.dumps(record(row(3))).encode() + b"\n")
    stored = bench_store.read(tmp_path)
    assert len(stored.records) == 1 and stored.skipped == 1


def test_a_store_that_cannot_be_used_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileProblem) as caught:
        bench_store.append(tmp_path / "file", record(row(1)))
    assert caught.value.name == "BENCH_STORE"
    (tmp_path / bench_store.FILE).mkdir()
    with pytest.raises(FileProblem):
        bench_store.read(tmp_path)
    bench_store.append(tmp_path / "a", record(row(1)))
    monkeypatch.setattr(bench_store, "MOST_BYTES", 10)
    with pytest.raises(FileProblem):
        bench_store.read(tmp_path / "a")


def _write_many(folder, number):
    for _ in range(40):
        bench_store.append(folder, record(row(number), note="x" * 20_000))


def test_writers_take_turns(tmp_path):
    """Four processes at once: every line whole. Longer than any buffer that is written at once by chance."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, number)) for number in (1, 2, 3, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stored = bench_store.read(tmp_path)
    assert stored.skipped == 0 and len(stored.records) == 160


def test_a_writer_waits_for_the_lock(tmp_path):
    import fcntl
    import threading

    path = bench_store.append(tmp_path, record(row(1)))
    with open(path, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        waiting = threading.Thread(target=bench_store.append, args=(tmp_path, record(row(2))))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive() and len(bench_store.read(tmp_path).records) == 1
    waiting.join()
    assert len(bench_store.read(tmp_path).records) == 2


# --- what is slower ---


def judge(now, *past):
    return bench_store.against_last(record(now), [record(old) for old in past])


def test_a_test_is_judged_by_the_last_comparable_one():
    (judgement,) = judge(row(90.0), row(300.0), row(100.0))
    assert judgement.ratio == 0.9 and "2026-11-30T00:00:00Z" in judgement.against


@pytest.mark.parametrize(
    "old",
    [
        record(row(100.0), blake3="bb"),
        record(row(100.0), device="reference"),
        record(row(100.0), machine=MACHINE | {"processor": "Q"}),
        record(row(100.0), machine=MACHINE | {"isa": "vnni512"}),
        record(row(100.0), machine=MACHINE | {"quota": 1.0}),
        record(row(100.0, test="tg64")),
        record(row(100.0, threads=2)),
    ],
)
def test_what_is_not_comparable_judges_nothing(old):
    assert bench_store.against_last(record(row(90.0)), [old]) == []


def test_another_program_or_load_is_comparable():
    old = record(row(100.0), kinetic="0.0", engine_id="cpu:9", machine=MACHINE | {"load": 9.0})
    assert len(bench_store.against_last(record(row(90.0)), [old])) == 1


def test_noise_of_a_median():
    assert bench_store.median_error(row(100.0, 0.1)) == pytest.approx(1.2533 * 0.1 / 1.349 / 5**0.5)
    assert bench_store.median_error(row(100.0, 0.0, count=2)) == bench_store.UNKNOWN


def test_noise_follows_normal_errors():
    """The formula against what medians of seeded normal numbers really do."""
    import random

    chance = random.Random(1)
    runs = [[chance.gauss(100, 5) for _ in range(25)] for _ in range(2000)]
    spreads = [bench.spread(run) for run in runs]
    real = statistics.stdev(spread.median for spread in spreads) / 100
    said = statistics.mean(bench_store._error(s.q1, s.median, s.q3, 25) for s in spreads)
    assert said == pytest.approx(real, rel=0.1)


def test_drift_is_what_was_seen_once_enough_was_seen():
    assert bench_store.drift([100, 50]) == bench_store.UNKNOWN
    assert bench_store.drift([100, 101, 100, 101]) == pytest.approx(0.00995, rel=1e-3)


def test_a_loss_beyond_the_noise_is_below_and_one_within_it_is_not():
    quiet = [row(m, 0.005) for m in (100.0, 100.2, 100.0, 100.1, 100.0)]
    (judgement,) = judge(row(93.0, 0.005), *quiet)
    assert judgement.is_below(0.95) and not judgement.is_below(0.92)
    drifting = [row(m, 0.005) for m in (100.0, 115.0, 98.0, 112.0, 100.0)]
    (judgement,) = judge(row(93.0, 0.005), *drifting)
    assert not judgement.is_below(0.95)
    (judgement,) = judge(row(93.0, 0.4), *quiet)
    assert not judgement.is_below(0.95)
    (judgement,) = judge(row(93.0, 0.005), row(100.0, 0.005))  # one earlier run says nothing of drift
    assert not judgement.is_below(0.95)


def test_beside_another_program_the_paired_ratios_count():
    ratios = {"ratios": [1.8, 1.9, 2.0, 2.1, 2.2], "median": 2.0, "q1": 1.9, "q3": 2.1}
    peer = {"median": 50.0, "q1": 50.0, "q3": 50.0}
    (judgement,) = bench_store.against_peer(record(row(100.0, peer=peer, ratio=ratios), peer="llama.cpp b1"))
    assert judgement == Judgement("tg128", 1, 2.0, pytest.approx(1.2533 * 0.1 / 1.349 / 5**0.5), "llama.cpp b1")
    assert judgement.is_below(2.2) and not judgement.is_below(2.1)
    assert bench_store.against_peer(record(row(100.0))) == []


def test_the_trend_of_a_model_on_a_kind_of_machine():
    records = [
        record(row(1.0), row(5.0, test="pp512")),
        record(row(9.0), blake3="bb"),
        record(row(9.0), machine=MACHINE | {"cores": 4}),
        record(row(2.0)),
        record(row(7.0), device="reference"),
    ]
    series = bench_store.trend(records, "aa", record())
    assert [(one.test, one.medians) for one in series] == [
        ("tg128", [1.0, 2.0]),
        ("pp512", [5.0]),
        ("tg128 (reference)", [7.0]),
    ]


def test_sparkline():
    assert bench_store.sparkline([1, 2, 8]) == "▁▂█" and bench_store.sparkline([3, 3]) == "▄▄"
