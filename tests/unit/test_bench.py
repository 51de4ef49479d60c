"""What ``kinetic bench`` measures, and beside whom."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import pytest

from kinetic.api import Model, bench, bench_llama
from kinetic.api.bench import Plan, Runner, Trial
from kinetic.api.bench import bench as run_bench
from kinetic.errors import FileProblem, UsageError
from tests.conftest import ROOT
from tests.support.fake_llama_bench import write_llama_bench
from tests.support.talking_model import write_talker


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return write_talker(tmp_path_factory.mktemp("bench") / "talker.gguf")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))


# --- tests ---


def test_tests_are_the_product_of_lengths_and_depths_shallow_ones_first():
    tests = bench.tests_of([512, 512], [128], [64, 0])
    assert [test.name for test in tests] == ["pp512", "tg128", "pp512 @ d64", "tg128 @ d64"]


def test_a_length_of_none_asks_for_no_test():
    assert [test.name for test in bench.tests_of([0], [8], [0])] == ["tg8"]
    with pytest.raises(UsageError) as caught:
        bench.tests_of([0], [0], [0])
    assert caught.value.name == "NO_TEST"
    with pytest.raises(UsageError):
        bench.tests_of([-1], [8], [0])


def test_spread():
    assert bench.spread([5.0, 1.0, 2.0, 4.0, 3.0]) == (3.0, 2.0, 4.0, 1.0, 5.0)
    assert bench.spread([7.0]) == (7.0,) * 5


# --- passes ---


@pytest.fixture
def passes(talker):
    """An engine, and the batches that its program is given from now on."""
    with Model(talker, threads=1) as model, model._held() as engine:
        batches, run = [], engine._program.run
        engine._program.run = lambda batch: batches.append(batch) or run(batch)
        yield engine, batches


def told(batches):
    """First position, rows and outputs of each pass."""
    return [(batch.positions[0], len(batch.tokens), batch.outputs) for batch in batches]


def test_a_prompt_is_read_in_passes_and_gives_the_last_logits_only(passes):
    engine, batches = passes
    engine.prompt_rows = 12
    assert Runner(engine).seconds(Trial("pp", 30)) > 0
    assert told(batches) == [(0, 12, ()), (12, 12, ()), (24, 6, (5,))]


def test_decoding_is_one_pass_a_token_each_with_logits(passes):
    engine, batches = passes
    Runner(engine).seconds(Trial("tg", 3, depth=5))
    assert told(batches) == [(0, 5, (4,)), (5, 1, (0,)), (6, 1, (0,)), (7, 1, (0,))]


def test_what_is_there_is_not_computed_again(passes):
    engine, batches = passes
    runner = Runner(engine)
    runner.seconds(Trial("pp", 8, depth=4))
    del batches[:]
    runner.seconds(Trial("pp", 8, depth=4))
    runner.seconds(Trial("tg", 1, depth=12))
    assert told(batches) == [(4, 8, (7,)), (12, 1, (0,))]


def test_a_position_holds_the_same_token_in_every_test(passes):
    engine, batches = passes
    runner = Runner(engine)
    for test in (Trial("pp", 20), Trial("tg", 4, 3), Trial("pp", 9, 30), Trial("tg", 2)):
        runner.seconds(test)
    tokens = {}
    for batch in batches:
        for position, token in zip(batch.positions, batch.tokens, strict=True):
            assert tokens.setdefault(position, token) == token
            assert 0 < token < engine.vocab_size
    assert len(set(tokens.values())) > 20


def test_what_lies_before_a_test_is_not_timed(passes, monkeypatch):
    engine, batches = passes
    clock = iter(range(100))
    seen = []
    monkeypatch.setattr(bench.time, "perf_counter", lambda: seen.append(len(batches)) or next(clock))
    Runner(engine).seconds(Trial("tg", 3, depth=5))
    assert seen == [1, 4]  # the pass over the depth came before the first look at the clock


# --- measuring ---


class FakePeer:
    name = "another program"

    def __init__(self, log):
        self.log = log

    def run(self, model, tests, threads):
        self.log.append((model.name, [test.name for test in tests], threads))
        return dict.fromkeys(tests, 10.0)


def test_both_programs_take_turns_and_the_first_changes(talker, monkeypatch):
    log = []
    monkeypatch.setattr(Runner, "speed", lambda self, test: log.append(test.name) or 20.0)
    tests = bench.tests_of([4], [2], [0])
    with Model(talker, threads=2) as model:
        results = bench.measure(model, tests, 3, FakePeer(log))
    theirs = ("talker.gguf", ["pp4", "tg2"], 2)
    assert log == ["pp4", "tg2", theirs, theirs, "pp4", "tg2", "pp4", "tg2", theirs]
    assert [result.ratios for result in results] == [[2.0] * 3] * 2


def test_every_test_is_warmed_up_once(talker, monkeypatch):
    log = []
    seconds = Runner.seconds
    monkeypatch.setattr(Runner, "seconds", lambda self, test: log.append(test.name) or seconds(self, test))
    with Model(talker, threads=1) as model:
        (result,) = bench.measure(model, [Trial("tg", 2)], 4)
    assert len(log) == 5 and len(result.speeds) == 4 and result.ratios == []


def test_a_context_that_is_too_short(talker):
    with Model(talker, threads=1) as model, pytest.raises(UsageError) as caught:
        bench.measure(model, [Trial("pp", 60, 5)])
    assert caught.value.name == "SHORT_CONTEXT" and "pp60 @ d5 needs 65 positions" in str(caught.value)


def test_a_record_says_what_was_measured_on_what(talker):
    told = []
    plan = Plan(bench.tests_of([8], [4], [0, 8]), (1, 2), 3)
    record = run_bench(talker, plan, progress=lambda done, total: told.append((done, total)))
    assert json.loads(json.dumps(record)) == record
    assert told == [(n, 6) for n in range(1, 7)]
    assert [(row["test"], row["threads"]) for row in record["results"]] == [
        (name, threads) for threads in (1, 2) for name in ("pp8", "tg4", "pp8 @ d8", "tg4 @ d8")
    ]
    for row in record["results"]:
        assert len(row["speeds"]) == 3 and row["median"] == statistics.median(row["speeds"])
        assert row["least"] <= row["q1"] <= row["median"] <= row["q3"] <= row["most"]
        assert "peer" not in row
    assert record["model"]["blake3"] == bench.model_digest(talker) and record["model"]["file"] == "talker.gguf"
    assert record["engine_id"].startswith("cpu:") and record["machine"]["isa"] and record["peer"] == ""
    assert record["format"] == bench.FORM and record["repetitions"] == 3


def test_a_comparison_of_bundles_or_other_devices_makes_no_sense(talker, tmp_path):
    from kinetic.api.bundle import pack

    pack(talker, tmp_path / "a.ktc")
    tests = [Trial("tg", 1)]
    for path, plan in ((tmp_path / "a.ktc", Plan(tests)), (talker, Plan(tests, device="reference"))):
        with pytest.raises(UsageError) as caught:
            run_bench(path, plan, FakePeer([]))
        assert caught.value.name == "NO_COMPARISON"
    with pytest.raises(UsageError) as caught:
        run_bench(talker, Plan(tests, repetitions=0))
    assert caught.value.name == "BAD_REPETITIONS"


def test_the_commit_of_a_checkout(tmp_path):
    package, git = tmp_path / "kinetic", tmp_path / ".git"
    assert bench.commit(package) == ""
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert bench.commit(package) == ""
    (git / "packed-refs").write_text("# pack-refs\n" + "a" * 40 + " refs/heads/main\n")
    assert bench.commit(package) == "a" * 40
    (git / "refs/heads").mkdir(parents=True)
    (git / "refs/heads/main").write_text("b" * 40 + "\n")
    assert bench.commit(package) == "b" * 40
    (git / "HEAD").write_text("c" * 40 + "\n")
    assert bench.commit(package) == "c" * 40


# --- llama.cpp ---


@pytest.fixture
def llama_bench(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "called.json"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    return write_llama_bench(tmp_path)


def test_llama_bench_gets_the_same_settings(llama_bench, tmp_path):
    tests = bench.tests_of([512, 64], [128], [0, 2048])
    peer = bench_llama.find(str(llama_bench))
    speeds = peer.run(Path("m.gguf"), tests, 2)
    called = json.loads((tmp_path / "called.json").read_text())
    assert called["words"] == ("-m m.gguf -p 512,64 -n 128 -d 0,2048 -t 2 -ngl 0 -r 1 -o json".split())
    assert called["library"].split(":") == [str(llama_bench.parent), str(llama_bench.parents[1] / "lib"), "/elsewhere"]
    assert called["gpu"] == ""
    assert [speeds[test] for test in tests[:3]] == [512000.0, 64000.0, 128.0]
    assert speeds[Trial("tg", 128, 2048)] == 128 + 20.48
    assert peer.name == "llama.cpp b11434 (0ddba11)"


def test_a_kind_that_is_not_measured_is_not_asked_for(llama_bench, tmp_path):
    bench_llama.find(str(llama_bench)).run(Path("m.gguf"), [Trial("tg", 4)], 1)
    words = json.loads((tmp_path / "called.json").read_text())["words"]
    assert words[words.index("-p") + 1] == "0"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("fail", "failed (exit 1): main: error: failed to load model"),
        ("garbage", "something else"),
        ("missing", "something else"),
        ("threads", "did not measure what it was asked for"),
        ("zero", "did not measure what it was asked for"),
    ],
)
def test_a_llama_bench_that_fails(llama_bench, monkeypatch, mode, said):
    monkeypatch.setenv("FAKE_MODE", mode)
    with pytest.raises(FileProblem) as caught:
        bench_llama.find(str(llama_bench)).run(Path("m.gguf"), bench.tests_of([8], [4], [0]), 1)
    assert caught.value.name == "LLAMA_CPP_FAILED" and said in str(caught.value)


def test_a_program_that_cannot_be_started(tmp_path):
    path = tmp_path / "llama-bench"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(FileProblem) as caught:
        bench_llama.find(str(path)).run(Path("m.gguf"), [Trial("tg", 4)], 1)
    assert caught.value.name == "LLAMA_CPP_FAILED"


def test_llama_bench_is_found_on_path(llama_bench, monkeypatch):
    monkeypatch.setenv("PATH", str(llama_bench.parent), prepend=os.pathsep)
    assert bench_llama.find()._command == [str(llama_bench)]


def test_without_llama_cpp_there_is_nothing_to_compare_with(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bench_llama, "_package_version", lambda: "")
    for name in ("", str(tmp_path / "llama-bench")):
        with pytest.raises(UsageError) as caught:
            bench_llama.find(name)
        assert caught.value.name == "NO_LLAMA_CPP"


LLAMA_CPP = """
import json, os
calls = []
class Llama:
    def __init__(self, model, **options):
        calls.append(["open", model, options["n_ctx"], options["n_threads"], options["n_gpu_layers"]])
    def n_vocab(self):
        return 1000
    def reset(self):
        calls.append(["reset"])
    def eval(self, tokens):
        calls.append(["eval", len(tokens)])
        json.dump(calls, open(os.environ["FAKE_LOG"], "w"))
"""


def test_the_python_package_where_there_is_no_llama_bench(tmp_path, monkeypatch):
    (tmp_path / "llama_cpp.py").write_text(LLAMA_CPP)
    (tmp_path / "llama_cpp_python-0.3.16.dist-info").mkdir()
    (tmp_path / "llama_cpp_python-0.3.16.dist-info/METADATA").write_text("Name: llama-cpp-python\nVersion: 0.3.16\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "called.json"))
    peer = bench_llama.find()
    tests = bench.tests_of([64], [3], [0, 600])
    speeds = peer.run(Path("m.gguf"), tests, 2)
    assert peer.name == "llama_cpp 0.3.16" and set(speeds) == set(tests) and min(speeds.values()) > 0
    called = json.loads((tmp_path / "called.json").read_text())
    assert called[0] == ["open", "m.gguf", 664, 2, 0]
    assert called[-7:] == [["reset"], ["eval", 1], ["reset"], ["eval", 600], ["eval", 1], ["eval", 1], ["eval", 1]]
    assert ["eval", 64] in called
