"""Every command that runs a model, with the last layers of it on a device: what it prints is what it prints without."""

from __future__ import annotations

import json

import pytest

from kinetic.api import check_output
from kinetic.cli import main
from tests.support.tiny_encoders import write_tiny_encoder
from tests.support.tiny_models import TEXT, write_tiny_llama

SPLIT = ("--device", "opencl", "-ngl", "2")


@pytest.fixture
def run(device, tmp_path, capsys, monkeypatch):
    """``run("perplexity", ...)`` -> standard output; files are those of the folder."""
    monkeypatch.chdir(tmp_path)
    write_tiny_llama(tmp_path / "a.gguf")

    def run(*words, check=0):
        code = main([*map(str, words)])
        out, err = capsys.readouterr()
        assert code == check, (code, out, err)
        return out

    return run


def test_an_answer_its_receipt_and_its_trace(run, tmp_path):
    asked = ("run", "a.gguf", "one two", "--raw", "-n", 5, "--seed", 3, "--commit", "-q", "--receipt")
    here, there = run(*asked, "here.json", *SPLIT), run(*asked, "there.json")
    claims = json.loads((tmp_path / "here.json").read_text())["receipt"]["claims"]
    assert here == there and claims["device_class"] == "cpu+opencl"
    run("receipt", "diff", "here.json", "there.json")  # 0: the same answer
    assert "IDENTICAL" in run("verify-receipt", "here.json", "--model", "a.gguf", "--device", "cpu")
    assert "IDENTICAL" in run("verify-receipt", "there.json", "--model", "a.gguf", *SPLIT)
    run("trace", "here.json", "--token", 4, "-o", "here.cbor", "--model", "a.gguf", *SPLIT)
    run("trace", "there.json", "--token", 4, "-o", "there.cbor", "--model", "a.gguf")
    run("trace", "diff", "here.cbor", "there.cbor")  # 0: every bit is the same


def test_texts_are_read_alike(run, tmp_path, monkeypatch):
    (tmp_path / "text").write_text(TEXT * 2)
    read = ("a.gguf", "-c", 32, "--chunks", 2, "-q", "--json")
    assert run("perplexity", *read[:1], "text", *read[1:], *SPLIT) == run("perplexity", *read[:1], "text", *read[1:])
    for name, where in (("here", SPLIT), ("there", ())):
        run("imatrix", *read, "-f", "text", "-o", f"{name}.gguf", *where)
    assert (tmp_path / "here.gguf").read_bytes() == (tmp_path / "there.gguf").read_bytes()
    begun = check_output.text()[:300]
    monkeypatch.setattr(check_output, "text", lambda: begun)
    out = run("check-output", "a.gguf", "device=opencl", "gpu-layers=2", "--floor", 0, "-q")
    assert out.splitlines()[-1].startswith("INSIDE: the same probabilities, to the bit")


def test_vectors_are_alike(run, tmp_path):
    write_tiny_encoder(tmp_path / "bert.gguf", "bert")
    assert run("embed", "bert.gguf", "one", "two", *SPLIT) == run("embed", "bert.gguf", "one", "two")


def test_what_is_measured_says_where(run):
    out = run("bench", "a.gguf", "-p", 8, "-n", 2, "-r", 1, "--json", "--no-record", "-q", *SPLIT)
    assert json.loads(out)["device"] == "cpu+opencl" and "@1" in json.loads(out)["engine_id"]
