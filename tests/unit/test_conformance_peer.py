"""A peer under conditions: answers that change are found, with the place, and no server stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance import peer, peer_conditions, peer_llama, peer_server
from conformance.peer_conditions import Question, first_difference, grouped, measure
from conformance.peer_kinetic import Kinetic
from conformance.peer_llama import LlamaServer
from conformance.peer_server import Server
from kinetic.api.probe import Probe
from kinetic.errors import FileProblem
from tests.support import fake_llama_server
from tests.support.tiny_models import write_tiny_llama

QUESTIONS = [Question([1, 2, 3 + n], [1, 2, 9]) for n in range(5)]
CONDITIONS = ["again", "neighbour", "neighbours", "prefix", "chunks", "thread", "attention"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A path of the fake server, and the file with the numbers of its processes."""
    path = tmp_path / "llama-server"
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{fake_llama_server.__file__}' \"$@\"\n")
    path.chmod(0o755)
    monkeypatch.setenv("FAKE_PEER_PIDS", str(tmp_path / "pids"))
    yield str(path)
    assert running(tmp_path) == []


@pytest.fixture
def model(tmp_path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf", context=512)


def running(folder: Path) -> list[int]:
    file = folder / "pids"
    return [pid for pid in map(int, file.read_text().split()) if is_alive(pid)] if file.exists() else []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() if os.path.exists("/proc/self") else True


def measured(program: str, **patience: float) -> dict[str, dict[int, int]]:
    with LlamaServer(program, Path("model.gguf"), **patience) as server:
        rows = measure(server, QUESTIONS, 12, lambda n: None, lambda line: None)
        assert server.name == "llama.cpp b1-fake" and server.reused > 0
    assert [row.condition for row in rows] == CONDITIONS and {row.answers for row in rows} == {5}
    return {row.condition: row.first for row in rows}


def test_a_peer_that_keeps_its_answers(program):
    assert measured(program) == {name: {} for name in CONDITIONS}


@pytest.mark.parametrize(
    "fault, changed",
    [("neighbours", {"neighbour": 5, "neighbours": 5}), ("ubatch", {"chunks": 9})],
)
def test_answers_that_change_are_found(program, monkeypatch, fault, changed):
    monkeypatch.setenv("FAKE_PEER", fault)
    expected = {name: dict.fromkeys(range(5), changed[name]) if name in changed else {} for name in CONDITIONS}
    assert measured(program) == expected


@pytest.mark.parametrize(
    "fault, name, message",
    [
        ("dies", "PEER_FAILED", r"ended before it was ready \(exit 1\): unknown architecture"),
        ("dies-later", "PEER_FAILED", r"broke off \(exit 3\): out of memory"),
        ("silent", "PEER_TIMEOUT", "not ready within 2 s"),
        ("slow", "PEER_TIMEOUT", "no answer within 2 s"),
        ("old", "PEER_FAILED", "may be too old"),
        ("refuses", "PEER_FAILED", "status 400: no such model"),
    ],
)
def test_faults_of_a_server(program, monkeypatch, fault, name, message):
    monkeypatch.setenv("FAKE_PEER", fault)
    with pytest.raises(FileProblem, match=message) as caught:
        measured(program, ready_within=2, answer_within=2)
    assert caught.value.name == name


def test_one_that_does_not_go_is_killed(program, monkeypatch):
    monkeypatch.setenv("FAKE_PEER", "stubborn")
    monkeypatch.setattr(peer_server, "END_WITHIN", 0.3)
    with Server([program, "-ub", "512"]):
        pass


def test_another_port_is_tried(program, monkeypatch):
    """The first one is another program's by the time the server wants it."""
    import socket

    ports = [peer_server._free_port() for _ in range(2)]
    monkeypatch.setattr(peer_server, "_free_port", lambda: ports.pop(0))
    with socket.socket() as other:
        other.bind((peer_server.HOST, ports[0]))
        other.listen()
        with Server([program, "-ub", "512"]) as server:
            assert server.facts() == {"build_info": "b1-fake"} and not ports


# --- Kinetic ---


def test_kinetic_changes_no_answer(model):
    questions = peer.questions_of(model, 5)
    assert all(150 < len(question.prompt) <= 230 for question in questions)
    with Kinetic(model) as own:
        rows = measure(own, questions, 6, lambda n: None, lambda line: None)
    assert [row.condition for row in rows][:6] == CONDITIONS[:6]
    assert {row.condition: row.first for row in rows} == {row.condition: {} for row in rows}
    assert {row.answers for row in rows} == {5}


@pytest.mark.parametrize("condition", ["neighbour", "neighbours", "prefix"])
def test_a_fault_of_kinetic_is_found(model, monkeypatch, condition):
    """Rows that come out otherwise than alone are seen: nothing here is 0 because it must be."""
    questions, real = peer.questions_of(model, 4), Probe.run
    with Kinetic(model) as own:
        alone = own.ask(peer_conditions.ALONE, questions, 6, lambda n: None)
        monkeypatch.setattr(Probe, "run", lambda self, batch: -real(self, batch))
        assert own.ask(condition, questions, 6, lambda n: None) != alone


def test_kinetic_is_asked_as_the_condition_says(model, monkeypatch):
    asked, real = [], Probe.answer

    def answer(self, request, rows_at_once=0):
        asked.append(rows_at_once)
        return real(self, request, rows_at_once)

    monkeypatch.setattr(Probe, "answer", answer)
    batches = []
    run = Probe.run
    monkeypatch.setattr(Probe, "run", lambda self, batch: batches.append(batch) or run(self, batch))
    questions = peer.questions_of(model, 4)
    with Kinetic(model) as own:
        own.ask("chunks", questions[:1], 2, lambda n: None)
        own.ask("thread", questions[:1], 2, lambda n: None)
        assert own._running[0] == (1, "") and asked == [16, 0]
        own.ask("neighbours", questions, 2, lambda n: None)
        assert [len(set(batch.sequences)) for batch in batches] == [4, 4]
        del batches[:]
        own.ask("prefix", questions[:1], 2, lambda n: None)
        assert batches[1].positions[0] >= len(questions[0].prompt) // 2


# --- pieces ---


@pytest.mark.parametrize("one, other, place", [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [1], 0)])
def test_first_difference(one, other, place):
    assert first_difference(one, other) == place


def test_groups_are_full():
    groups = grouped(QUESTIONS, 4)
    assert [len(group) for group in groups] == [4, 4]
    assert [one for group in groups for one in group][:5] == QUESTIONS


# --- the command ---


@pytest.fixture
def short(monkeypatch):
    """Answers of 8 tokens."""
    monkeypatch.setattr(peer, "TOKENS", 8)


def test_json(program, model, short, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_PEER", "neighbours")
    assert peer.main([str(model), "--peer", program, "--quick", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    theirs, ours = found["engines"]
    changed = {row["condition"]: row["changed"] for row in theirs["conditions"]}
    assert changed["neighbour"] == changed["neighbours"] == found["questions"] == 4 and changed["chunks"] == 0
    assert theirs["conditions"][1]["first"] == [{"answer": n, "token": 5} for n in range(4)]
    assert {row["changed"] for row in ours["conditions"]} == {0} and found["reused"] > 0


def test_table(program, model, short, capsys):
    assert peer.main([str(model), "--peer", program, "--quick", "-q"]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")] for line in out.splitlines()]
    assert ["", "with 3 neighbours", "four requests at the same time", "0 of 4", "-", ""] in rows
    assert "Kinetic 0.1.0.dev0: 0 of" in out and "llama.cpp b1-fake: 0 of 28 answers changed." in out


def test_the_command_line_of_kinetic(program, model, short, capsys):
    from kinetic.cli import main

    assert main(["conformance", str(model), "--peer", program, "--quick", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "tiny.gguf"
    assert main(["conformance", "--peer", program]) == 2
    assert "takes one model" in capsys.readouterr().err


def test_a_change_of_kinetic_fails(program, model, monkeypatch, capsys):
    monkeypatch.setattr(Kinetic, "ask", lambda self, condition, questions, *rest: [[len(condition)] for _ in questions])
    assert peer.main([str(model), "--peer", program, "--quick", "-q"]) == 10


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["MODEL", "--peer", "/nowhere/llama-server"], 2, "isn't there"),
        (["MODEL", "--peer", "MODEL"], 2, "is no program that can be run"),
        (["/nowhere.gguf", "--peer", "PROGRAM"], 3, "nowhere.gguf"),
        (["PROGRAM", "--peer", "PROGRAM"], 3, "no GGUF file"),
    ],
)
def test_errors_of_use(program, model, capsys, words, code, message):
    known = {"MODEL": str(model), "PROGRAM": program}
    assert peer.main([known.get(word, word) for word in words]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_stays_behind(program, model, tmp_path, number, code):
    """Interrupted while the server works on an answer that it doesn't finish."""
    command = [sys.executable, "-m", "conformance.peer", str(model), "--peer", program]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "FAKE_PEER": "slow"}) as process:
        until = time.monotonic() + 60
        while not running(tmp_path) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(number)
        errors = process.communicate(timeout=30)[1]
    assert process.returncode == code and b"Traceback" not in errors
    assert running(tmp_path) == []


def test_the_settings_are_told():
    told = LlamaServer("llama-server", Path("m")).conditions()
    assert told["chunks"] == "`-ub 16`" and told["thread"] == "`-t 1 -tb 1`" and [*told] == [*peer_llama.CHANGES]
