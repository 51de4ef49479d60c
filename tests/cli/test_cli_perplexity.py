"""``kinetic perplexity`` and ``kinetic check-output``: what they print, and one sentence for what can't be done."""

from __future__ import annotations

import json
import re
from argparse import Namespace

import pytest

from kinetic.api import check_output
from kinetic.cli import main
from kinetic.cli.perplexity import print_json, settings
from tests.support.tiny_models import TEXT, write_tiny_gemma3, write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("perplexity")
    write_tiny_llama(folder / "a.gguf")
    write_tiny_llama(folder / "b.gguf", seed=3)
    write_tiny_gemma3(folder / "gemma.gguf")
    (folder / "text").write_text(" ".join([TEXT] * 4) + "\n")
    return folder


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """``run("perplexity", ...)`` -> standard output; files are those of the folder."""
    monkeypatch.chdir(folder)

    def run(*words, check=0):
        code = main([*map(str, words), "--no-pack-cache"])
        out, err = capsys.readouterr()
        assert code == check, (code, out, err)
        assert "Traceback" not in err
        return out if check in (0, 10) else err

    return run


def test_running_values_and_the_estimate(run):
    out = run("perplexity", "a.gguf", "text", "-c", 64, "-t", 1)
    running, estimate = out.splitlines()
    values = re.findall(r"\[(\d+)\](\d+\.\d{4}),", running)
    assert [int(number) for number, _ in values] == list(range(1, len(values) + 1)) and len(values) == 5
    assert estimate.startswith(f"Final estimate: PPL = {values[-1][1]} +/- ")


def test_json_is_the_same_for_every_batch_size_and_number_of_threads(run):
    def asked(*words):
        return run("perplexity", "a.gguf", "-f", "text", "-c", 100, "--json", *words)

    expected = asked("-b", 1, "-t", 1)
    facts = json.loads(expected)
    assert facts["tokens"] == len(facts["running"]) * 49 and facts["ppl"] == facts["running"][-1]
    for words in (("-b", 7), ("-ub", 32, "-t", 2), ("-b", 256, "-t", 1), ("-ub", 512, "-t", 2)):
        assert asked(*words) == expected


@pytest.mark.parametrize(("batch", "ubatch", "rows"), [(2048, 512, 512), (7, 512, 7), (2048, 32, 32)])
def test_rows_at_once_are_the_smaller_of_both_flags(batch, ubatch, rows):
    given = Namespace(batch_size=batch, ubatch_size=ubatch, chunks=-1, ctx_size=512)
    assert settings(given).rows == rows


def test_the_model_as_a_flag(run):
    expected = run("perplexity", "a.gguf", "text", "-c", 64, "--chunks", 1)
    for words in (("-m", "a.gguf", "text"), ("--model", "a.gguf", "-f", "text"), ("text", "-m", "a.gguf")):
        assert run("perplexity", *words, "-c", 64, "--chunks", 1) == expected


def test_a_line_for_each_chunk(run):
    lines = run("perplexity", "a.gguf", "text", "-c", 64, "--chunks", 2, "--ppl-output-type", 1).splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["0", "64"]
    assert all(len(line.split()) == 4 for line in lines[:2])


def test_windows(run):
    facts = json.loads(run("perplexity", "a.gguf", "text", "-c", 100, "--ppl-stride", 20, "--chunks", 3, "--json"))
    assert (facts["tokens"], facts["stride"], len(facts["running"])) == (60, 20, 3)


def test_a_base_and_a_comparison(run, folder):
    first = run("perplexity", "a.gguf", "text", "-c", 64, "--kl-divergence-base", "base")
    assert "Final estimate" in first
    facts = json.loads(run("perplexity", "b.gguf", "--kl-divergence-base", "base", "--kl-divergence", "--json"))
    assert facts["tokens"] == 5 * 31 and facts["kld"][0] > 0.1 and facts["same_top"][0] < 0.9
    itself = run("perplexity", "a.gguf", "--kl-divergence-base", "base", "--kl-divergence", "-b", 7, "-t", 2)
    assert itself == run("perplexity", "a.gguf", "--kl-divergence-base", "base", "--kl-divergence", "-t", 1)
    lines = itself.splitlines()
    assert lines[0].startswith("chunk ") and lines[1].startswith("   1 ")
    for name in (
        "Mean PPL(Q)",
        "Mean PPL(base)",
        "Mean    KLD",
        "99.9%   KLD",
        "Median  KLD",
        "RMS \u0394p",
        "Same top p",
    ):
        assert any(line.startswith(name) for line in lines), name
    again = run("perplexity", "b.gguf", "text", "-c", 64, "--kl-divergence-base", "base")
    assert again != first and sorted(p.name for p in folder.glob("*base*")) == ["base"]


def test_a_base_of_another_vocabulary(run):
    run("perplexity", "a.gguf", "text", "-c", 64, "--chunks", 1, "--kl-divergence-base", "small")
    err = run("perplexity", "gemma.gguf", "--kl-divergence-base", "small", "--kl-divergence", check=2)
    assert "vocabulary" in err


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("a.gguf",), 2, "name the file"),
        ((), 2, "name the model"),
        (("-f", "text"), 2, "name the model"),
        (("-m", "a.gguf"), 2, "name the file"),
        (("-m", "a.gguf", "a.gguf", "text"), 2, "name the model once"),
        (("a.gguf", "text", "-f", "text"), 2, "once"),
        (("a.gguf", "none"), 3, "cannot read none"),
        (("none.gguf", "text"), 3, "none.gguf"),
        (("a.gguf", "text"), 2, "are needed for chunks of 512"),
        (("a.gguf", "text", "-c", "2"), 2, "too short"),
        (("a.gguf", "text", "-b", "0"), 2, "at least one token"),
        (("a.gguf", "text", "--chunks", "0"), 2, "--chunks"),
        (("a.gguf", "text", "--kl-divergence"), 2, "--kl-divergence-base"),
        (("a.gguf", "text", "--kl-divergence", "--kl-divergence-base", "a.gguf"), 2, "leave it out"),
        (("a.gguf", "--kl-divergence", "--kl-divergence-base", "a.gguf"), 11, "no file of --kl-divergence-base"),
        (("a.gguf", "text", "-c", "64", "--kl-divergence-base", "a.gguf"), 2, "name another file"),
        (("a.gguf", "text", "-c", "64", "--kl-divergence-base", "text"), 2, "name another file"),
        (("a.gguf", "text", "-c", "64", "--ppl-stride", "9", "--kl-divergence-base", "x"), 2, "--ppl-stride"),
    ],
)
def test_what_can_not_be_done(run, words, code, part):
    err = run("perplexity", *words, check=code)
    assert part in err and err.count("\n") == 1


def test_json_has_null_for_what_is_no_number(capsys):
    print_json({"a": float("nan"), "b": [1.5, float("inf")], "c": {"d": (-float("inf"), 2)}, "e": True})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": None, "b": [1.5, None], "c": {"d": [None, 2]}, "e": True
    }  # fmt: skip


# --- check-output ---


def test_inside_and_outside(run, monkeypatch):
    begun = check_output.text()[:1000]  # these models have a token for every byte or two
    monkeypatch.setattr(check_output, "text", lambda: begun)
    out = run("check-output", "a.gguf", "threads=1", "rows=7", "--floor", 0)
    assert out.splitlines()[-1].startswith("INSIDE: the same probabilities, to the bit")
    out = run("check-output", "a.gguf", "b.gguf", "threads=1", check=10)
    assert out.splitlines()[-1].startswith("OUTSIDE: ") and "noise floor" in out
    facts = json.loads(run("check-output", "a.gguf", "b.gguf", "--floor", 1e9, "--json"))
    assert facts["inside"] is True and facts["floor"] is None and facts["found"]["same_top"][0] < 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "name one other model"),
        (("b.gguf", "gemma.gguf"), "name one other model"),
        (("rows=0",), "rows=0"),
        (("threads=" + "9" * 5000,), "in 9 digits at most"),
        (("threads=x",), "threads=x"),
        (("device=none",), "none"),
        (("gemma.gguf",), "other tokens"),
        (("threads=" + "9" * 5000,), "at most"),
        (("threads=1", "--floor", "nan"), "--floor"),
        (("threads=1", "--floor", "inf"), "--floor"),
    ],
)
def test_what_can_not_be_compared(run, words, part):
    err = run("check-output", "a.gguf", *words, check=2)
    assert part in err and err.count("\n") == 1
