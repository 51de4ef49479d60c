"""``kinetic bench --edit``: jobs with drafts and without, in turns, and whether they gave the same."""

import json

import pytest

from kinetic.api import bench_edit
from kinetic.cli import main
from kinetic.engine import Engine
from tests.support.fake_llama_bench import write_guessing, write_llama_bench
from tests.support.tiny_families import write_tiny_family

QUICK = ("--edit", "-n", "24", "-t", "1", "-r", "2", "-q")


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return write_tiny_family(tmp_path / "tiny.gguf", "ernie4_5", layers=1, keys={"context_length": 4096})


def bench(model, capsys, *words):
    code = main(["bench", str(model), *QUICK, *map(str, words)])
    return code, capsys.readouterr().out


def test_the_file_has_sixty_lines():
    file = bench_edit.file_of_60_lines()
    assert file.count("\n") == 60 and file.endswith("\n")
    compile(file, "parcels.py", "exec")


def test_a_table(model, capsys):
    code, text = bench(model, capsys)
    assert code == 0
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert lines[0] == ["job", "sped up", "plain", "ratio", "drafts", "right", "answer"]
    assert [(line[0], line[-1]) for line in lines[1:]] == [("edit", "identical"), ("draw", "identical")]
    assert all(float(cell) > 0 for line in lines[1:] for cell in line[1:4])


def test_beside_llama_cpp(model, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    code, text = bench(model, capsys, "--compare", "--llama-bench", write_llama_bench(tmp_path), "--json")
    record = json.loads(text)
    assert code == 0 and record["peer"] == "llama.cpp b11434 (0ddba11)"
    story = len(bench_edit.jobs()[1].prompt)
    edit, draw = record["peer_speeds"]["edit"], record["peer_speeds"]["draw"]
    assert len(edit) == len(draw) == 2
    assert 128 < draw[0] <= 128 + (story + 1) / 100 < edit[0], "it decodes behind as many tokens as the prompt has"
    assert all(row["peer_ratio"]["median"] > 0 for row in record["results"])
    assert record["peer_ngrams"] is None


SAME = {"llama-completion": " one two [end of text]", "llama-lookup": " one two three"}


@pytest.mark.parametrize("said", ["same", "differs", ""])
def test_beside_n_grams_of_llama_cpp(model, capsys, tmp_path, monkeypatch, said):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    path = write_llama_bench(tmp_path)
    texts = {"same": SAME, "differs": SAME | {"llama-lookup": " one six"}, "": {"llama-lookup": " one"}}[said]
    write_guessing(path.parent, texts)
    code, text = bench(model, capsys, "--compare", "--llama-bench", path, "--json")
    record = json.loads(text)
    assert code == 0 and record["peer_ngrams"] == {"kind": "lookup", "speeds": [12.0, 12.0], "answer": said}
    edit, draw = record["results"]
    assert edit["ngram_ratio"]["median"] == pytest.approx(edit["speed"]["median"] / 12, rel=0.3)
    assert "ngram_ratio" not in draw, "speculation is asked for one job"


def test_the_table_beside_n_grams(model, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    path = write_llama_bench(tmp_path)
    write_guessing(path.parent, SAME | {"llama-speculative-simple": " one"})
    monkeypatch.setenv("FAKE_MODE", "fail llama-lookup")
    code, text = bench(model, capsys, "--compare", "--llama-bench", path, "-r", "1")
    assert code == 0 and "| to its n-grams (ngram-simple) | answer |" in text
    assert text.endswith("\nWith n-grams llama.cpp's answer is the same as its plain one.\n")
    edit, draw = (line.split("|") for line in text.splitlines() if line.startswith(("| edit", "| draw")))
    assert float(edit[-3]) > 0 and draw[-3].strip() == ""


def test_n_grams_that_do_not_run_cost_a_column(model, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    path = write_llama_bench(tmp_path)
    write_guessing(path.parent, {"llama-lookup": ""})
    monkeypatch.setenv("FAKE_MODE", "fail llama-lookup")
    words = ["bench", str(model), *QUICK[:-1], "-r", "1", "--compare", "--llama-bench", str(path)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "n-grams" not in out and "to llama.cpp b11434" in out
    assert "llama-lookup failed (exit 1): error: no such model; lookup is left out" in err


def test_what_differs_is_named(model, capsys, monkeypatch):
    """An engine whose third guess is believed: the table names the token, and the exit code says it."""
    real = Engine.generate

    def generate(self, request, *rest, **options):
        for step in real(self, request, *rest, **options):
            yield step if self.drafter is None or step.position != len(request.prompt) + 2 else step._replace_token()

    def other(step):
        from dataclasses import replace

        return replace(step, token=(step.token + 1) % 300)

    monkeypatch.setattr("kinetic.types.Step._replace_token", other, raising=False)
    monkeypatch.setattr(Engine, "generate", generate)
    code, text = bench(model, capsys)
    assert code == 10 and "token 2 differs" in text


@pytest.mark.parametrize("words", [("--csv",), ("--fail-below", "1"), ("-n", "8,9"), ("-n", "1"), ("-t", "1,2"),
                                   ("--device", "reference")])  # fmt: skip
def test_misuse(model, capsys, words):
    assert bench(model, capsys, *words)[0] == 2
