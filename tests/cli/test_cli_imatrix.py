"""``kinetic imatrix``: files in both formats, copies on the way, several combined."""

from __future__ import annotations

import json
import os
import struct

import pytest

from kinetic.api.imatrix_file import read
from kinetic.cli import main
from tests.support.tiny_models import TEXT, write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("imatrix") / "a.gguf")


@pytest.fixture
def run(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text(" ".join([TEXT] * 3))

    def run(*words, check=0):
        code = main(["imatrix", str(model), *map(str, words), "--no-pack-cache"])
        out, err = capsys.readouterr()
        assert code == check, (code, out, err)
        return out if check == 0 else err

    return run


def test_a_matrix(run, tmp_path):
    out = run("-f", "text", "-c", 64, "-t", 1)
    assert out.startswith("[1]") and "Final estimate: PPL = " in out
    found = read("imatrix.gguf", 0)
    assert len(found.entries) == 14 and found.datasets == ["text"] and found.chunk_size == 64
    assert {entry.rows for entry in found.entries.values()} == {64 * found.chunks}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_same_bytes_for_every_batch_size_and_number_of_threads(run, tmp_path):
    for number, words in enumerate((("-b", 1), ("-b", 7, "-t", 2), ("-ub", 32), ("-t", 2))):
        run("-f", "text", "-c", 64, "-o", f"m{number}", "--no-ppl", "--process-output", *words)
    assert len({(tmp_path / f"m{number}").read_bytes() for number in range(4)}) == 1
    assert "output.weight" in read("m0", 0).entries


def test_the_older_format_and_copies_on_the_way(run, tmp_path):
    options = ("-c", 32, "--chunks", 3, "--output-format", "dat", "-o", "m.dat", "--save-frequency", 2, "-ofreq", 1)
    facts = json.loads(run("-f", "text", *options, "--json"))
    assert (facts["chunks"], facts["entries"], facts["output"]) == (3, 14, "m.dat") and facts["ppl"] > 1
    assert read("m.dat", 32).entries["blk.0.attn_q.weight"].rows == 96
    assert read("m.dat.at_2", 32).entries["blk.0.attn_q.weight"].rows == 64
    assert (tmp_path / "m.dat").read_bytes()[:4] == (14).to_bytes(4, "little")


def test_the_flags_of_llama_imatrix(run, model, tmp_path, capsys):
    run("-f", "text", "-c", 32, "--chunks", 1, "-o", "a")
    words = ["-m", str(model), "-f", "text", "-c", "32", "--chunks", "1", "--output-file", "b", "--no-ppl", "--ppl"]
    assert main(["imatrix", *words, "--no-pack-cache"]) == 0
    assert "Final estimate" in capsys.readouterr().out
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert "name the model once" in run("-m", model, "-f", "text", check=2)


def test_matrices_are_combined(run):
    run("-f", "text", "-c", 32, "--chunks", 2, "-o", "a", "--no-ppl")
    run("-f", "text", "-c", 32, "--chunks", 1, "--chunk", 2, "-o", "b", "--no-ppl")
    run("-f", "text", "-c", 32, "--chunks", 3, "-o", "whole", "--no-ppl")
    run("--in-file", "a,b", "-o", "both", "-c", 32)
    run("--in-file", "a", "-f", "text", "-c", 32, "--chunks", 1, "--from-chunk", 2, "-o", "more", "--no-ppl")
    whole = read("whole", 0)
    for name in ("both", "more"):
        found = read(name, 0)
        assert found.datasets == ["text", "text"] and found.chunks == 3
        for weight, entry in whole.entries.items():
            assert found.entries[weight].squares.tolist() == pytest.approx(entry.squares.tolist(), rel=1e-6)


def test_statistics(run):
    run("-f", "text", "-c", 32, "-o", "a", "--no-ppl", "--process-output")
    lines = run("--in-file", "a", "--show-statistics").splitlines()
    names = [line.split()[1] for line in lines[1:16]]
    assert names[0] == "blk.0.attn_k.weight" and names[-1] == "output.weight" and lines[15].split()[0] == "-"
    assert [line.split()[0] for line in lines[18:]] == ["0", "1"]
    facts = json.loads(run("--in-file", "a", "--show-statistics", "--json"))
    assert len(facts["weights"]) == 15 and [layer["layer"] for layer in facts["layers"]] == [0, 1]
    assert facts["layers"][0]["gain"] is None and facts["layers"][1]["gain"] > 0


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        ((), 2, "name a text"),
        (("-f", "none"), 3, "cannot read none"),
        (("-f", "text", "-o", "text"), 2, "name another file"),
        (("-f", "text", "-o", "no/folder"), 3, "no folder"),
        (("-f", "text", "-ofreq", 0), 2, "from 1"),
        (("--in-file", "text"), 11, "no importance matrix"),
        (("-f", "text", "-c", 4000), 2, "are needed"),
        (("-f", "text", "--show-statistics"), 2, "leave -f out"),
        (("--in-file", "text", "-c", 0), 2, "no size of chunks"),
        (("--in-file", "text", "-c", 99999999999), 2, "no size of chunks"),
        (("--in-file", "/dev/zero"), 3, "not a regular file"),
    ],
)
def test_what_can_not_be_done(run, words, code, part):
    err = run(*words, check=code)
    assert part in err and err.count("\n") == 1


@pytest.mark.parametrize("form", ["dat", "gguf"])
def test_a_text_whose_name_is_no_utf8(run, tmp_path, form):
    name = os.fsdecode(b"\xfft")
    (tmp_path / "text").rename(name)
    run("-f", name, "-c", 32, "--chunks", 1, "-o", "m", "--no-ppl", "--output-format", form)
    assert read("m", 32).datasets == [name]


def test_names_can_not_steer_the_terminal(run, tmp_path):
    name = b"blk.0.\x1b[2J.weight"
    head = struct.pack("<ii", 1, len(name)) + name
    (tmp_path / "m").write_bytes(head + struct.pack("<iif", 1, 1, 1.0))
    out = run("--in-file", "m", "--show-statistics")
    assert "\x1b" not in out and r"blk.0.\x1b[2J.weight" in out


def test_a_model_is_needed_for_a_text_alone(run, model, capsys):
    run("-f", "text", "-c", 32, "--chunks", 1, "-o", "a", "--no-ppl")
    assert main(["imatrix", "--in-file", "a", "-o", "b", "-c", "32"]) == 0
    assert main(["imatrix", "-f", "text"]) == 2
    assert "name the model" in capsys.readouterr().err
