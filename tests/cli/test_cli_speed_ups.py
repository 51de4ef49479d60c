"""``--off``, ``--draft-max`` and ``-md`` of ``kinetic run``: the same answer, receipt and name of the question."""

import json
import shutil

import pytest

from kinetic.api import Model
from kinetic.cli import main
from kinetic.errors import UsageError
from kinetic.loader import LoadedFile
from receipts.encode import read_receipt
from tests.support.talking_model import write_talker
from tests.support.tiny_families import write_tiny_family


@pytest.fixture(autouse=True)
def model(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return write_tiny_family(tmp_path / "tiny.gguf", "smollm3")


def ask(capsys, model, receipt, *words):
    code = main(["run", str(model), "over and over and over and", "--raw", "-n", "40", "-s", "5", "--json", "-q", "-t",
                 "1", "--receipt", str(receipt), *words])  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    record = dict(read_receipt(receipt).record)
    record.pop("claims", None)
    return code, answer, {name: value for name, value in record.items() if name != "time"}


def test_switches_are_in_no_receipt(model, tmp_path, capsys):
    ways = {"plain": ["--off", "drafts"], "on": [], "one": ["--draft-max", "1"], "model": ["-md", str(model)]}
    for temperature in ("0", "0.8"):
        found = {}
        for way, words in ways.items():
            found[way] = ask(capsys, model, tmp_path / f"{way}-{temperature}.json", "--temp", temperature, *words)
        assert [code for code, _, _ in found.values()] == [0] * 4
        assert len({tuple(answer["tokens"]) for _, answer, _ in found.values()}) == 1
        assert all(record == found["plain"][2] for _, _, record in found.values())
        stats = {way: answer["stats"] for way, (_, answer, _) in found.items()}
        assert (stats["plain"]["drafted"], stats["plain"]["rows"]) == (0, 0)
        for way in ("on", "one", "model"):
            assert 0 <= stats[way]["accepted"] <= stats[way]["drafted"]
            assert stats[way]["rows"] - stats[way]["drafted"] + stats[way]["accepted"] == 39


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--off", "drafts,sleep"], "there is no speed-up 'sleep' to turn off: there is drafts"),
        (["--draft-max", "64"], "must be from 0 to 63"),
        (["--off", "drafts", "-md", "tiny.gguf"], "a draft model is of no use"),
    ],
)
def test_what_is_refused(model, capsys, words, sentence):
    assert main(["run", str(model), "a", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_draft_model_with_other_tokens(model, tmp_path, capsys):
    other = write_talker(tmp_path / "other.gguf")
    assert main(["run", str(model), "a", "-md", str(other), "-t", "1"]) == 2
    assert "the draft model other.gguf has another vocabulary than tiny.gguf" in capsys.readouterr().err


def test_a_draft_model_is_closed_where_the_model_does_not_open(model, tmp_path, monkeypatch):
    closed, real = [], LoadedFile.close
    monkeypatch.setattr(LoadedFile, "close", lambda self: (closed.append(self.gguf.paths[0].name), real(self)))
    small = shutil.copy(model, tmp_path / "small.gguf")
    with pytest.raises(UsageError, match="context"):
        Model(model, draft_model=small, context=10**8, threads=1, pack_cache=False)
    assert sorted(closed) == ["small.gguf", "tiny.gguf"]


def test_costs_are_kept(model, tmp_path, capsys):
    """And a file of them that is none of ours is left alone, and costs nothing."""
    ask(capsys, model, tmp_path / "a.json", "--temp", "0")
    (kept,) = (tmp_path / "home" / "costs").iterdir()
    figures = json.loads(kept.read_bytes())
    assert figures["1"] > 0 and all(0 < seconds < 10 for seconds in figures.values())
    for junk in (b"[]", b"{", b'{"1": "x", "2": -1}', b" " * 5000, b"[" * 4000):
        kept.write_bytes(junk)
        assert ask(capsys, model, tmp_path / "b.json", "--temp", "0")[0] == 0
