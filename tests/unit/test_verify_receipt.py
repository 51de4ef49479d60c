"""From a receipt file to a verdict: finding the model, hashing it again, and every refusal."""

import json

import pytest

from kinetic import store
from kinetic.api import model as model_module
from kinetic.api import verify as verify_module
from kinetic.api.model import Model
from kinetic.api.verify import verify_receipt
from kinetic.errors import MalformedGguf, NonFinite, UnsupportedModel
from tests.support.fake_model import END, Engine, HashedFile, Tokenizer

IDENTICAL, DIFFERS, MALFORMED, SIGNATURE, UNVERIFIABLE = 0, 10, 11, 12, 13


@pytest.fixture(autouse=True)
def no_real_model(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(store, "RACY_NS", -(10**18))
    monkeypatch.setattr(HashedFile, "rehashed", 0)
    for module in (model_module, verify_module):
        monkeypatch.setattr(module.loader, "open_model_file", HashedFile)
    monkeypatch.setattr(model_module, "load_tokenizer", lambda metadata: Tokenizer())
    monkeypatch.setattr(model_module, "load_template", lambda metadata, tokenizer: None)
    monkeypatch.setattr(model_module, "Engine", Engine)


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF weights")
    return path


@pytest.fixture
def receipt(tmp_path, model_file):
    with Model(model_file) as model:
        model.generate("x", seed=7, stop=["zz"]).save_receipt(tmp_path / "answer.json")
    return tmp_path / "answer.json"


def edit(receipt, change):
    envelope = json.loads(receipt.read_text())
    change(envelope["receipt"])
    receipt.write_text(json.dumps(envelope))
    return receipt


def test_identical_and_the_model_is_hashed_again(receipt):
    seen = []
    verdict = verify_receipt(receipt, on_token=lambda done, total: seen.append((done, total)))
    assert verdict.exit_code == IDENTICAL and HashedFile.rehashed == 1
    assert verdict.checked == 8 and seen[-1] == (8, 8)


def test_an_edited_token_is_named(receipt):
    edit(receipt, lambda record: record["output"]["tokens"].__setitem__(2, ord("R")))
    verdict = verify_receipt(receipt)
    assert (verdict.exit_code, verdict.position, verdict.expected, verdict.got) == (DIFFERS, 2, ord("R"), ord("r"))
    assert (verdict.expected_text, verdict.got_text, verdict.gap) == ("R", "r", 0.5)


def test_an_interrupted_answer_is_identical_as_a_prefix(tmp_path, model_file):
    with Model(model_file) as model, model.stream("x") as stream:
        next(stream)
        stream.close()
        stream.completion.save_receipt(tmp_path / "part.json")
    verdict = verify_receipt(tmp_path / "part.json")
    assert verdict.exit_code == IDENTICAL and verdict.is_prefix


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(text="another river"),
        lambda record: record.update(extra=1),
        lambda record: record.pop("clock"),
        lambda record: record["prompt"]["tokens"].append(65),
        lambda record: record["output"].update(digest="0" * 64),
        lambda record: record["stop"].update(reason="length"),
    ],
)
def test_malformed(receipt, change):
    assert verify_receipt(edit(receipt, change)).exit_code == MALFORMED


def test_a_broken_signature_is_always_a_signature_verdict(receipt):
    envelope = json.loads(receipt.read_text())
    envelope["signatures"] = [{"algorithm": "ed25519", "public_key": "AAAA", "signature": "AAAA"}]
    receipt.write_text(json.dumps(envelope))
    assert verify_receipt(receipt).exit_code == SIGNATURE


def test_no_file_and_no_json(tmp_path):
    assert verify_receipt(tmp_path / "nothing.json").exit_code == 3
    assert verify_receipt(b"{}").exit_code == MALFORMED


# --- the model ---


def test_the_model_is_found_by_hash_wherever_it_was_hashed_before(receipt, model_file):
    renamed = model_file.rename(model_file.with_name("other-name.gguf"))
    assert verify_receipt(receipt).name == "MODEL_MISSING", "the name in the receipt is no path"
    store.digests(renamed)
    assert verify_receipt(receipt).exit_code == IDENTICAL


def test_a_pulled_model_is_found_by_hash(receipt, model_file):
    models = store.writable("models")
    model_file.rename(models / "any.gguf")
    assert verify_receipt(receipt).exit_code == IDENTICAL


def test_the_models_bytes_decide_not_the_cache(receipt, model_file):
    verdict = verify_receipt(receipt, model_file)
    assert verdict.exit_code == IDENTICAL
    (entry,) = store.folder("digests").iterdir()
    model_file.write_bytes(b"GGUF WEIGHTS")
    known = json.loads(entry.read_text())
    entry.write_text(json.dumps(known | {"stamp": store._stamp(model_file.stat())}))
    assert store.digests(model_file).blake3 == known["blake3"], "the cache is poisoned"
    for verdict in (verify_receipt(receipt), verify_receipt(receipt, model_file)):
        assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "MODEL")


def test_another_model_or_none_is_unverifiable(receipt, tmp_path):
    (tmp_path / "other.gguf").write_bytes(b"GGUF others!")
    for model in (tmp_path / "other.gguf", tmp_path / "nothing.gguf", "smollm2"):
        assert verify_receipt(receipt, model).exit_code == UNVERIFIABLE


def test_another_profile_is_unverifiable(receipt):
    edit(receipt, lambda record: record.update(profile="kinetic-1-draft.0".replace("0", "999")))
    verdict = verify_receipt(receipt)
    assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "PROFILE")


@pytest.mark.parametrize("error", [MalformedGguf("broken"), UnsupportedModel("no such family")])
def test_a_model_that_cannot_be_run_here_is_unverifiable(receipt, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(model_module, "Engine", fail)
    assert verify_receipt(receipt).exit_code == UNVERIFIABLE


def test_a_rerun_that_fails_is_unverifiable(receipt, monkeypatch):
    def fail(*_):
        raise NonFinite("a logit is not finite")
        yield

    monkeypatch.setattr(Engine, "replay", fail)
    assert verify_receipt(receipt).exit_code == UNVERIFIABLE


def test_features_this_engine_lacks_are_unverifiable(receipt):
    edit(receipt, lambda record: record["sampling"].update(mirostat=2))
    assert verify_receipt(receipt).name == "FEATURE"


def test_the_end_token_is_part_of_the_answer(receipt):
    def cut(record):
        record["output"]["tokens"].remove(END)

    assert verify_receipt(edit(receipt, cut)).exit_code == MALFORMED
