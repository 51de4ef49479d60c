"""From a receipt file to a verdict: finding the model, hashing it again, and every refusal."""

import itertools
import json
import os

import pytest

from kinetic import store
from kinetic.api import verify as verify_module
from kinetic.api.model import Model
from kinetic.engine import Engine
from kinetic.errors import NonFinite, OutOfMemory
from kinetic.loader import LoadedFile
from kinetic.text.stream import TextStream
from receipts.checks import output_text
from receipts.schema import new_record
from receipts.verify import verify
from tests.support.answers import answered, check, edit
from tests.support.gguf_writer import GgufWriter
from tests.support.sample_receipts import FILES, ScriptedReplayer
from tests.support.talking_model import END, TEMPLATE, write_talker

IDENTICAL, DIFFERS, MALFORMED, SIGNATURE, UNVERIFIABLE = 0, 10, 11, 12, 13


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A home of its own, in which a file is remembered though it is brand-new."""
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(store, "RACY_NS", -(10**18))


@pytest.fixture
def model_file(tmp_path):
    return write_talker(tmp_path / "tiny.gguf")


@pytest.fixture
def receipt(tmp_path, model_file):
    return answered(model_file, tmp_path / "answer.json", seed=7, stop=["zz"])


def test_identical_and_the_model_is_hashed_again(receipt, model_file, monkeypatch):
    monkeypatch.setattr(store, "_recall", lambda stat: pytest.fail("asked the cache"))
    hashed, rerun = [], []
    verdict = check(receipt, model_file, on_hash=lambda *d: hashed.append(d), on_rerun=lambda *d: rerun.append(d))
    assert (verdict.exit_code, verdict.checked) == (IDENTICAL, 8), verdict
    assert hashed[-1] == (model_file.stat().st_size,) * 2 and rerun[-1] == (9, 9)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": -1},
        {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 2**64 - 1},
        {"top_p": 0, "logit_bias": [(5, 1e-40), (6, float("-inf")), (7, -1.5), (7, 0.25)]},
        {"repeat_penalty": 1.3, "repeat_last_n": -1, "frequency_penalty": 0.4, "presence_penalty": -0.3},
        {"completion_index": 9},
        {"typ_p": 0.6, "top_n_sigma": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1.5},
        {"xtc_probability": 0.5, "xtc_threshold": 0.01, "dynatemp_range": 0.7, "dynatemp_exponent": 1.3},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
        {"dry_multiplier": 5.0, "dry_base": 3, "dry_allowed_length": 0, "dry_sequence_breakers": ["ne", "d"]},
        {"max_tokens": 0},
        {"max_tokens": -2},
        {"stop": ["e", "ne d"]},
        {"stop": ["\n", "t", "th"]},
    ],
)
def test_whatever_was_asked_is_identical(tmp_path, options):
    chancy = write_talker(tmp_path / "chancy.gguf", scale=0.02, template=TEMPLATE)
    path = answered(chancy, tmp_path / "a.json", **{"seed": 5, "max_tokens": 40, **options})
    verdict = check(path)
    assert verdict.exit_code == IDENTICAL, verdict.sentence
    tokens = json.loads(path.read_text())["receipt"]["output"]["tokens"]
    assert verdict.checked == len(tokens)
    for position in range(0, len(tokens), 7):
        edited = edit(path, lambda record, at=position: record["output"]["tokens"].__setitem__(at, tokens[at] ^ 1))
        found = check(edited)
        assert (found.exit_code, found.position) == (DIFFERS, position)
        edit(path, lambda record: record["output"].update(tokens=tokens))


def test_an_edited_token_is_named(receipt):
    edit(receipt, lambda record: record["output"]["tokens"].__setitem__(4, ord("D")))
    verdict = check(receipt)
    assert (verdict.exit_code, verdict.position, verdict.expected, verdict.got) == (DIFFERS, 4, ord("D"), ord("d"))
    assert (verdict.expected_text, verdict.got_text) == ("D", "d") and verdict.gap > 10
    edit(receipt, lambda record: record["output"]["tokens"].__setitem__(4, END))
    assert check(receipt).expected_text == "<end>", "a control token has a name"


def test_an_interrupted_answer_is_identical_as_a_prefix(tmp_path, model_file):
    with Model(model_file, threads=1) as model, model.stream("x") as stream:
        next(stream)
        stream.close()
        stream.completion.save_receipt(tmp_path / "part.json")
    verdict = check(tmp_path / "part.json")
    assert verdict.exit_code == IDENTICAL and verdict.is_prefix


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(text="another river"),
        lambda record: record.update(extra=1),
        lambda record: record.pop("clock"),
        lambda record: record["prompt"]["tokens"].append(65),
        lambda record: record["model"].update(files=[]),
        lambda record: record["output"].update(digest="0" * 64),
        lambda record: record["stop"].update(reason="length"),
        lambda record: record["output"]["tokens"].remove(END),
    ],
)
def test_malformed(receipt, change):
    assert check(edit(receipt, change)).exit_code == MALFORMED


def test_a_broken_signature_is_always_a_signature_verdict(receipt):
    envelope = json.loads(receipt.read_text())
    envelope["signatures"] = [{"algorithm": "ed25519", "public_key": "AAAA", "signature": "AAAA"}]
    receipt.write_text(json.dumps(envelope))
    assert check(receipt).exit_code == SIGNATURE


def test_no_file_and_no_json(tmp_path):
    assert check(tmp_path / "nothing.json").exit_code == 3
    assert check(b"{}").exit_code == MALFORMED


# --- the model ---


def test_the_model_is_found_by_hash_wherever_it_was_hashed_before(receipt, model_file):
    renamed = model_file.rename(model_file.with_name("other-name.gguf"))
    assert check(receipt).name == "MODEL_MISSING", "the name in the receipt is no path"
    store.digests(renamed)
    assert check(receipt).exit_code == IDENTICAL


def test_a_pulled_model_is_found_by_hash(receipt, model_file):
    models = store.writable("models")
    model_file.rename(models / "any.gguf")
    assert check(receipt).exit_code == IDENTICAL


def test_the_models_bytes_decide_not_the_cache(receipt, model_file):
    assert check(receipt, model_file).exit_code == IDENTICAL
    (entry,) = store.folder("digests").iterdir()
    write_talker(model_file, b"one may")
    known = json.loads(entry.read_text())
    entry.write_text(json.dumps(known | {"stamp": store._stamp(model_file.stat())}))
    assert store.digests(model_file).blake3 == known["blake3"], "the cache is poisoned"
    for verdict in (check(receipt), check(receipt, model_file)):
        assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "MODEL")


def test_what_is_hashed_is_what_runs(receipt, model_file, tmp_path, monkeypatch):
    """The honest file is swapped in while it is hashed, and another one out of the way: neither order helps."""
    other = write_talker(tmp_path / "other.gguf", b"one may")
    real, aside = LoadedFile.identity, tmp_path / "aside.gguf"

    def swap(self, **options):
        model_file.rename(aside), other.rename(model_file)
        try:
            return real(self, **options)
        finally:
            model_file.rename(other), aside.rename(model_file)

    monkeypatch.setattr(LoadedFile, "identity", swap)
    verdict = check(receipt, model_file)
    assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "FILE_CHANGED")
    verdict = check(receipt, other)
    assert verdict.exit_code == UNVERIFIABLE


def test_a_model_that_is_written_to_meanwhile_proves_nothing(receipt, model_file, monkeypatch):
    def touch(*arguments, **options):
        os.utime(model_file, ns=(1, 1))
        return verify(*arguments, **options)

    monkeypatch.setattr(verify_module.rules, "verify", touch)
    verdict = check(receipt, model_file)
    assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "FILE_CHANGED")


def test_another_model_or_none_is_unverifiable(receipt, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF others!")
    other = write_talker(tmp_path / "other.gguf", b"two")
    for model in (other, tmp_path / "broken.gguf", tmp_path / "nothing.gguf", tmp_path, "smollm2"):
        assert check(receipt, model).exit_code == UNVERIFIABLE


def test_what_this_build_can_never_judge_costs_no_hashing(receipt, monkeypatch):
    monkeypatch.setattr(store, "digests", lambda *_, **__: pytest.fail("hashed"))
    edit(receipt, lambda record: record.update(profile="kinetic-1-draft.999"))
    verdict = check(receipt)
    assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "PROFILE")
    edit(receipt, lambda record: record.update(profile=verify_module.PROFILE))
    edit(receipt, lambda record: record["sampling"].update(mirostat=2))
    assert check(receipt).name == "FEATURE"


def test_a_model_that_cannot_be_run_here_is_unverifiable(tmp_path):
    strange = GgufWriter().key("general.architecture", "abacus").write(tmp_path / "abacus.gguf")
    with_files = new_record(
        profile=verify_module.PROFILE,
        architecture="abacus",
        files=[store_file(strange)],
        prompt=[1],
        output=[],
        text="",
        stop_reason="interrupt",
        sampling={},
    )
    verdict = check(json.dumps({"receipt": with_files, "signatures": []}).encode(), strange)
    assert verdict.exit_code == UNVERIFIABLE and "can't be used" in verdict.sentence


def store_file(path):
    found = store.digests(path)
    return FILES[0]._replace(size=found.size, blake3=found.blake3, sha256=found.sha256)


@pytest.mark.parametrize("error", [NonFinite("a logit is not finite"), OutOfMemory("too little")])
def test_a_rerun_that_fails_is_unverifiable(receipt, monkeypatch, error):
    def fail(*_):
        raise error
        yield

    monkeypatch.setattr(Engine, "replay", fail)
    assert check(receipt).exit_code == UNVERIFIABLE


# --- the text that the stream showed is the text that the verifier expects ---


@pytest.mark.parametrize("stops", [["abcd", "c"], ["c", "bc"], ["bcd", "d", "cd"], ["dab", "ab"], ["aa", "aab"], []])
def test_stop_strings_mean_the_same_to_stream_and_verifier(stops):
    for letters in itertools.product("abcd", repeat=5):
        for cuts in ((1, 2, 3, 4), (2,), (3, 4), ()):
            pieces = ["".join(letters[a:b]).encode() for a, b in itertools.pairwise((0, *cuts, 5))]
            count, text, stopped = streamed(pieces, stops)
            record = {"output": {"tokens": list(range(count))}, "stop": {"reason": stopped, "strings": sorted(stops)}}
            assert output_text(record, joined(pieces)) == text


def joined(pieces):
    return lambda tokens: b"".join(pieces[token] for token in tokens)


def streamed(pieces, stops):
    """Tokens used, text shown and reason, as the API does it."""
    tokenizer = ScriptedReplayer()
    tokenizer.piece = lambda token: pieces[token]
    stream, text = TextStream(tokenizer, stops), ""
    for token in range(len(pieces)):
        text += stream.feed(token)
        if stream.stopped is not None:
            return token + 1, text, "stop"
    return len(pieces), text + stream.finish(), "interrupt"


def test_a_breaker_that_is_too_long_here_cannot_be_judged(tmp_path, model_file):
    path = answered(model_file, tmp_path / "a.json", seed=7, dry_multiplier=0.8)
    edited = edit(path, lambda record: record["sampling"].update(dry_sequence_breakers=["x" * 41]))
    verdict = check(edited, model_file)
    assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "BAD_DRY_SEQUENCE_BREAKERS")
