"""Receipts of answers: what they say, that they ask the same again, and when there is none."""

import os

import pytest

from kinetic import store
from kinetic.api.model import Model
from kinetic.engine import Engine
from kinetic.errors import FileProblem
from kinetic.loader import LoadedFile
from kinetic.types import ModelFile, ModelIdentity
from receipts import encode
from tests.support.talking_model import END, TEMPLATE, write_talker

CLOCK_TEMPLATE = "{{ strftime_now('%Y-%m-%d') }} " + TEMPLATE


def test_a_receipt_holds_the_question_and_the_answer(make, monkeypatch):
    model = make(TEMPLATE)
    answer = model.generate("x", seed=7, temperature=0.5, stop=["z", "w", "z"], completion_index=3, max_tokens=20)
    record = answer.receipt()
    found = store.digests(model.path)
    file = {"name": model.path.name, "size": found.size, "blake3": found.blake3, "sha256": found.sha256}
    assert record["model"] == {"architecture": "llama", "files": [file]}
    assert record["prompt"]["tokens"] == list(answer.prompt_tokens)
    assert record["output"]["tokens"] == list(answer.tokens)
    assert record["stop"] == {"reason": "end", "strings": ["w", "z"], "end_tokens": [END]}
    assert record["claims"]["device_name"] == model.device_name and record["claims"]["engine_version"]
    assert record["clock"] == "" and record["text"] == "one day"


def test_a_receipt_asks_exactly_the_same_question_again(make, monkeypatch):
    model, asked = make(), []

    def remember(real):
        return lambda self, request, *rest, **options: asked.append(request) or real(self, request, *rest, **options)

    for real in (Engine.generate, Engine.replay):
        monkeypatch.setattr(Engine, real.__name__, remember(real))
    answer = model.generate("x", temperature=0.1, top_p=0.3, seed=2**63, logit_bias={9: 0.1}, completion_index=2)
    drawn = [step.token for step in model.replay(answer.receipt())]
    assert asked[0] == asked[1] and drawn == list(answer.tokens)


def test_the_templates_clock_is_recorded_and_can_be_set(make):
    model = make(CLOCK_TEMPLATE)
    record = model.generate("x", template_time="2026-03-14T15:09:26").receipt()
    assert record["clock"] == "2026-03-14T15:09:26"
    assert bytes(record["prompt"]["tokens"][1:]).startswith(b"2026-03-14 user: x")
    assert model.generate("x").receipt()["clock"] != ""


@pytest.mark.parametrize("name", ["a.json", "a.cbor"])
def test_saved_receipts_read_back(make, tmp_path, name):
    answer = make().generate("x")
    answer.save_receipt(tmp_path / name)
    assert encode.read_receipt(tmp_path / name).record == answer.receipt()
    assert (tmp_path / name).read_bytes()[:1] == (b"{" if name == "a.json" else b"\xa2")


def test_the_receipt_of_a_closed_model_can_still_be_made(make, monkeypatch):
    with make() as model:
        answer = model.generate("x")
    monkeypatch.setattr(store, "_recall", lambda stat: None)
    assert answer.receipt()["text"] == "one day"
    assert answer.receipt()["model"]["files"][0]["blake3"] == store.digests(model.path).blake3


def test_files_are_hashed_once_and_only_for_a_receipt(make, monkeypatch):
    hashed, real = [], LoadedFile.identity
    monkeypatch.setattr(LoadedFile, "identity", lambda self, **options: hashed.append(1) or real(self, **options))
    model = make()
    first, second = model.generate("x"), model.generate("y")
    assert not hashed
    first.receipt(), second.receipt(), model.identity
    assert hashed == [1]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_that_changed_gives_no_receipt(tmp_path, when):
    path = write_talker(tmp_path / "m.gguf")
    with Model(path, threads=1) as model:
        answer = model.generate("x")
        if when == "after":
            answer.receipt()
        with path.open("r+b") as file:
            file.seek(-4, 2)
            file.write(b"\1")
        os.utime(path, ns=(1, 1))
        with pytest.raises(FileProblem) as caught:
            answer.receipt()
    assert caught.value.name == "FILE_CHANGED"


@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_that_was_replaced_gives_no_receipt(tmp_path, is_open):
    path = write_talker(tmp_path / "m.gguf")
    with Model(path, threads=1) as model:
        answer = model.generate("x")
        write_talker(tmp_path / "other.gguf", b"two").replace(path)
        if is_open:
            with pytest.raises(FileProblem):
                answer.receipt()
    with pytest.raises(FileProblem) as caught:
        answer.receipt()
    assert caught.value.name == "FILE_CHANGED"


def test_odd_file_names_become_text(make, monkeypatch):
    odd = ModelFile("a\udcff/\n.gguf", 4, "ab" * 32, "cd" * 32)
    monkeypatch.setattr(LoadedFile, "identity", lambda self, **options: ModelIdentity("llama", (odd,)))
    assert make().generate("x").receipt()["model"]["files"][0]["name"] == "a\ufffd??.gguf"
