"""Golden bundles: small files that are written again the same, and that every later reader accepts."""

from __future__ import annotations

import pytest

from conformance.independent_reader import check
from kinetic.api import Model
from kinetic.api.bundle import unpack, verify
from kinetic.cli import main
from ktc import __main__ as auditor
from ktc.signature import key_pair
from ktc.trust import pinned
from tools.make_golden_bundles import CASES, FOLDER, OTHER_SEED, SEED, files
from tools.make_golden_receipts import FOLDER as RECEIPTS

NAMES = [golden.name for golden in CASES]
KEY = str(RECEIPTS / "key.pub")


def path(name):
    return FOLDER / f"{name}.ktc"


def test_they_are_written_again_the_same():
    made = dict(files())
    assert made.keys() == set(FOLDER.iterdir())
    for file, data in made.items():
        assert file.read_bytes() == data, f"{file.name} is another now: later readers must accept the old one too"


@pytest.mark.parametrize("name", NAMES)
def test_every_reader_accepts_them(name, capsys):
    found = verify(path(name), sha256=True)
    assert (found["verdict"], found["exit_code"], found["sha256_checked"]) == ("INTACT", 0, True)
    assert main(["verify", str(path(name)), "--sha256", "-q"]) == 0
    assert auditor.main(["verify", str(path(name))]) == 0
    check(path(name), sha256=True)  # a reader written from FORMAT.md alone


def test_they_differ_in_what_bundles_can_have():
    found = {name: verify(path(name)) for name in NAMES}
    kinds = {name: {section["kind"] for section in each["sections"]} for name, each in found.items()}
    assert kinds["plain"] == {"gguf", "tokenizer"} and kinds["template"] == {"gguf", "tokenizer", "template"}
    assert kinds["leaves"] == kinds["signed"] == {"gguf", "tokenizer", "template", "leaves"}
    assert [len(found[name]["signers"]) for name in NAMES] == [0, 0, 0, 2]
    assert found["signed"]["release"] == 3


def test_the_signed_one_is_signed_by_the_golden_key():
    for seed in (SEED, OTHER_SEED):
        trust = pinned({"golden": key_pair(seed).public}, "bundle")
        assert verify(path("signed"), trust=trust)["trusted"]
    assert main(["verify", str(path("signed")), "--key", KEY, "-q"]) == 0
    assert main(["verify", str(path("leaves")), "--key", KEY, "-q"]) == 12


@pytest.mark.parametrize("name", NAMES)
def test_the_model_inside_answers(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    asked = {"temperature": 0, "max_tokens": 6, "raw": True}
    unpack(path(name), tmp_path / "bare.gguf")
    with Model(path(name), threads=1) as model, Model(tmp_path / "bare.gguf", threads=1) as bare:
        answer = model.generate("one two", **asked)
        assert len(answer.tokens) > 0 and answer.tokens == bare.generate("one two", **asked).tokens
        assert model.has_template == (name != "plain")


def test_a_flipped_bit_is_found(tmp_path):
    data = bytearray(path("signed").read_bytes())
    for at in (8, 100, 5000, len(data) // 2, len(data) - 1):
        data[at] ^= 1
        (tmp_path / "flipped.ktc").write_bytes(data)
        data[at] ^= 1
        assert verify(tmp_path / "flipped.ktc")["exit_code"] in (11, 13)
