"""`kinetic conformance`: what it prints, writes and exits with."""

from __future__ import annotations

import json

import pytest

from conformance.case import Case, DoesNotHold, Evidence, Skipped
from conformance.cases import PROPERTIES
from kinetic.cli import main
from ktc.keys import write_key_pair

QUICK = ("conformance", "--quick", "-q")
CHEAP = ("--only", "bench_records", "--only", "rows/qwen3-mixed")


def test_a_table(capsys):
    assert main([*QUICK, *CHEAP]) == 0
    out, errors = capsys.readouterr()
    assert "| bench_records |      4 |      0 |       0 |" in out
    assert out.rstrip().endswith("What was tried here holds. 10 cases: 10 passed, 0 failed, 0 skipped.")
    assert errors == ""  # no bar in a pipe


def test_json_and_files(capsys, tmp_path):
    junit, page = tmp_path / "report.xml", tmp_path / "report.html"
    assert main([*QUICK, *CHEAP, "--json", "--junit", str(junit), "--html", str(page)]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["counts"] == {"passed": 10, "failed": 0, "skipped": 0}
    assert len({case["digest"] for case in table["cases"] if case["digest"]}) == 6
    assert 'tests="10" failures="0" errors="0"' in junit.read_text()
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_list(capsys):
    assert main(["conformance", "--list", "--only", "chunks/llama-mixed"]) == 0
    assert len(capsys.readouterr().out.split()) == 9


@pytest.mark.parametrize(
    "outcome, strict, code",
    [(DoesNotHold("row 3"), [], 10), (Skipped("none here"), [], 0), (Skipped("none here"), ["--strict"], 13)],
)
def test_exit_codes(monkeypatch, capsys, outcome, strict, code):
    def run():
        raise outcome

    def cases(setting):
        return [Case("good", lambda: Evidence("all")), Case("bad", run)]

    monkeypatch.setattr(PROPERTIES["bench_records"], "cases", cases)
    assert main([*QUICK, "--only", "bench_records", *strict]) == code
    assert str(outcome) in capsys.readouterr().out


def test_a_models_own_cases(capsys, tmp_path):
    from conformance.recipes import recipes

    path = recipes()["gemma3-mixed"].write(tmp_path)
    assert main([*QUICK, str(path), "--only", "rows", "--only", "threads", "--only", "replays", "--only", "packs"]) == 0
    out = capsys.readouterr().out
    assert "models: gemma3-mixed.gguf" in out and "What was tried here holds." in out


def test_a_model_that_is_none(capsys, tmp_path):
    assert main([*QUICK, str(tmp_path / "none.gguf")]) == 3
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    assert main([*QUICK, str(tmp_path / "bad.gguf"), "--only", "rows"]) == 10
    assert "stopped by an error" in capsys.readouterr().out


def check_citing(folder, cert, capsys):
    """A receipt cites the certificate of the engine that answered, and still verifies; it cites no other."""
    from conformance.certificate import certificate_id, to_bytes
    from tests.support.talking_model import write_talker

    model, receipt, whole = str(write_talker(folder / "tiny.gguf")), folder / "answer.json", folder / "whole.json"
    said = json.loads(cert.read_text())["certificate"] | {"only": []}
    whole.write_bytes(to_bytes(said))
    asked = ["run", model, "x", "-n", "3", "-q", "-t", "1", "--receipt", str(receipt), "--certificate", str(whole)]
    assert main([*asked, "--certificate", str(cert)]) == 13  # of some cases alone
    assert main(asked) == 0
    assert json.loads(receipt.read_text())["receipt"]["certificate"] == certificate_id(said)
    capsys.readouterr()
    assert main(["verify-receipt", str(receipt), "--model", model]) == 0
    assert f"it cites the device certificate {certificate_id(said)[:16]}" in capsys.readouterr().out
    receipt.unlink()
    assert main([*asked, "--device", "reference"]) == 13
    assert not receipt.exists()
    assert main(["run", model, "x", "--certificate", str(cert)]) == 2


def test_a_certificate(capsys, tmp_path):
    write_key_pair(tmp_path / "alice", bytes(range(32)))
    cert = tmp_path / "cert.json"
    assert main([*QUICK, *CHEAP, "--certify", "-o", str(cert), "--sign", str(tmp_path / "alice")]) == 0
    said = json.loads(cert.read_text())["certificate"]
    assert said["passed"] == 10 and said["machine"]["processor"] and said["engine_id"].startswith("cpu:")
    capsys.readouterr()
    assert main(["conformance", "--check", str(cert), "--key", str(tmp_path / "alice.pub")]) == 0
    assert "0 skipped (only bench_records, rows/qwen3-mixed); valid signature by alice" in capsys.readouterr().out
    check_citing(tmp_path, cert, capsys)
    cert.write_text(cert.read_text().replace('"passed": 10', '"passed": 11'))
    assert main(["conformance", "--check", str(cert)]) == 11
