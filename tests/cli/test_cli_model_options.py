"""``--lora``, ``--lora-scaled`` and settings of rotary positions on the command line."""

from __future__ import annotations

import json

import pytest

from kinetic.cli import main
from kinetic.cli.command import build_parser
from tests.support.adapters import write_adapter
from tests.support.tiny_models import TEXT, write_tiny_llama

SMALL = {"width": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "ffn": 96, "types": {}}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))


@pytest.fixture
def model(tmp_path):
    return write_tiny_llama(tmp_path / "tiny.gguf", context=64, **SMALL)


@pytest.fixture
def adapters(tmp_path, model):
    ranks = {"blk.0.attn_q.weight": 4, "blk.1.ffn_down.weight": 4}
    return [write_adapter(tmp_path / f"{name}.gguf", model, ranks, seed=seed) for seed, name in ((1, "a"), (2, "b"))]


def options(*words):
    command = build_parser()[1].choices["run"]
    return command.parse_intermixed_args(command.join_pairs(words))


@pytest.mark.parametrize(
    "words, adapters, prompt",
    [
        (("--lora", "a"), [("a", 1.0)], None),
        (("--lora", "a,b"), [("a", 1.0), ("b", 1.0)], None),
        (("--lora-scaled", "a:0.5", "hi"), [("a", 0.5)], "hi"),
        (("--lora-scaled", "a", "0.5", "hi"), [("a", 0.5)], "hi"),
        (("--lora-scaled", "a", "-1e-1", "hi"), [("a", -0.1)], "hi"),
        (("--lora-scaled", "a:2", "7"), [("a", 2.0)], "7"),
        (("--lora-scaled", "a:1,c:b:-3"), [("a", 1.0), ("c:b", -3.0)], None),
        (("--lora-scaled", "b", "2", "--lora", "a"), [("b", 2.0), ("a", 1.0)], None),
        (("hi", "--lora", "a", "--", ), [("a", 1.0)], "hi"),
    ],
)  # fmt: skip
def test_both_spellings(words, adapters, prompt):
    found = options("m", *words)
    assert (found.lora, found.prompt) == (adapters, prompt)


@pytest.mark.parametrize("words", [("--lora-scaled", "a"), ("--lora-scaled", ":1"), ("--lora-scaled", "a", "b")])
def test_a_scale_that_is_none(capsys, words):
    assert main(["run", "m", *words]) == 2
    assert "FILE:X" in capsys.readouterr().err


def test_a_run_its_receipt_and_its_rerun(capsys, tmp_path, model, adapters):
    one, two = map(str, adapters)
    asked = ["run", str(model), "the quick", "--raw", "-n", "6", "--temp", "0", "-t", "1", "-q"]
    receipt = str(tmp_path / "r.json")
    changed = ["--lora", one, "--lora-scaled", two, "0.5", "--rope-scaling", "linear", "--rope-scale", "2"]
    assert main([*asked, *changed, "--commit", "--receipt", receipt]) == 0
    record = json.loads((tmp_path / "r.json").read_text())["receipt"]
    assert [entry["scale"] for entry in record["adapters"]] == ["1", "0.5"]
    assert (record["overrides"]["rope_scaling"], record["overrides"]["rope_scale"]) == ("linear", "2")
    capsys.readouterr()
    assert main(["verify-receipt", receipt, "-t", "1", "-q", "--model", str(model), "--lora", two, "--lora", one]) == 0
    assert "IDENTICAL" in capsys.readouterr().out
    assert main(["audit", receipt, "-t", "1", "-q", "--lora", one, "--lora", two]) == 0
    assert main([*asked, *changed, "--receipt", one]) == 2  # never over what was read
    assert "is a key, an opening, or what the answer comes from" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["--lora", "MODEL"], 11, "is no adapter"),
        (["--lora", "none.gguf"], 3, "none.gguf does not exist"),
        (["--rope-scale", "0.5", "--rope-freq-scale", "2"], 2, "give one of them"),
        (["--rope-scale", "nan"], 2, "--rope-scale is nan"),
        (["--yarn-orig-ctx", "16"], 11, "--yarn-orig-ctx has no effect without YaRN"),
        (["-c", "65"], 2, "--rope-scale stretches its positions"),
        (["-c", "257", "--rope-scale", "4"], 2, "more than the 256"),
    ],
)
def test_refused_in_a_sentence(capsys, model, words, code, said):
    words = [str(model) if word == "MODEL" else word for word in words]
    assert main(["run", str(model), "x", "--raw", "-t", "1", *words]) == code
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_perplexity_with_them(capsys, tmp_path, model, adapters):
    text = tmp_path / "text"
    text.write_text(" ".join([TEXT] * 3))
    found = []
    for words in ([], ["--lora", str(adapters[0])], ["--rope-scale", "2"]):
        assert main(["perplexity", str(model), str(text), "-c", "32", "-t", "1", "--json", "-q", *words]) == 0
        found.append(json.loads(capsys.readouterr().out)["ppl"])
    assert len(set(found)) == 3
