"""Sessions, methods, digests of logits, withheld prompts, signatures and trust: the rest of ``kinetic.api.verify``."""

import json
import os

import pytest

from kinetic import store
from kinetic.api import model as model_module
from kinetic.api.model import Model
from kinetic.api.verify import Checker
from kinetic.errors import OutOfMemory, UsageError
from kinetic.loader import LoadedFile
from ktc import signature
from ktc.digest import token_digest
from ktc.errors import Unverifiable
from ktc.trust import pinned
from receipts import encode, sign
from receipts.identity import receipt_id
from receipts.withhold import Opening, withhold
from tests.support.answers import answered, check, edit
from tests.support.sample_receipts import SEED
from tests.support.talking_model import write_talker

IDENTICAL, DIFFERS, SIGNATURE, UNVERIFIABLE = 0, 10, 12, 13


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


# --- several receipts, one session ---


def counting(monkeypatch):
    """What was hashed and what was loaded, as it happens."""
    events, identity, open_engine = [], LoadedFile.identity, model_module._open_engine

    def hashing(self, **options):
        events.append(f"hash {self.gguf.paths[0].name}")
        return identity(self, **options)

    def loading(loaded, *rest):
        events.append(f"load {loaded.gguf.paths[0].name}")
        return open_engine(loaded, *rest)

    monkeypatch.setattr(LoadedFile, "identity", hashing)
    monkeypatch.setattr(model_module, "_open_engine", loading)
    return events


def test_a_session_hashes_and_loads_a_model_once(receipt, model_file, tmp_path, monkeypatch):
    other = answered(write_talker(tmp_path / "other.gguf", b"one may"), tmp_path / "other.json")
    events = counting(monkeypatch)
    with Checker(threads=1) as checker:
        assert [checker.verify(path).exit_code for path in (receipt, receipt, other, other, receipt)] == [0] * 5
    turn, back = ["hash tiny.gguf", "load tiny.gguf"], ["hash other.gguf", "load other.gguf"]
    assert events == [*turn, *back, *turn], "coming back to a model hashes it again"
    assert check(receipt).exit_code == IDENTICAL


def test_a_named_model_is_hashed_once_whatever_the_receipts_name(receipt, model_file, tmp_path, monkeypatch):
    other = answered(write_talker(tmp_path / "other.gguf", b"one may"), tmp_path / "other.json")
    events = counting(monkeypatch)
    with Checker(model_file, threads=1) as checker:
        names = [checker.verify(path).name for path in (other, receipt, other, receipt)]
    assert names == ["MODEL", "IDENTICAL", "MODEL", "IDENTICAL"]
    assert events == ["hash tiny.gguf", "load tiny.gguf"]


def test_a_model_that_cannot_be_used_is_tried_once(receipt, model_file, monkeypatch):
    tried = []

    def fail(*_):
        tried.append(1)
        raise OutOfMemory("too little")

    monkeypatch.setattr(model_module, "_open_engine", fail)
    with Checker(threads=1) as checker:
        verdicts = [checker.verify(receipt) for _ in range(3)]
    assert {(verdict.exit_code, verdict.sentence) for verdict in verdicts} == {
        (UNVERIFIABLE, "the model can't be used: too little")
    }
    assert tried == [1]


def test_a_model_that_was_changed_between_two_receipts_is_noticed_and_hashed_again(receipt, model_file, monkeypatch):
    with Checker(threads=1) as checker:
        assert checker.verify(receipt).exit_code == IDENTICAL
        os.utime(model_file, ns=(1, 1))
        assert checker.verify(receipt).name == "FILE_CHANGED"
        assert checker.verify(receipt).exit_code == IDENTICAL


def test_a_model_rewritten_in_place_is_noticed_though_its_time_was_set_back(receipt, model_file):
    before = model_file.stat()
    with Checker(threads=1) as checker:
        assert checker.verify(receipt).exit_code == IDENTICAL
        while model_file.stat().st_ctime_ns == before.st_ctime_ns:  # a clock of files ticks every few milliseconds
            with open(model_file, "r+b") as file:
                file.write(b"GGUF")
            os.utime(model_file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert model_file.stat().st_mtime_ns == before.st_mtime_ns
        verdict = checker.verify(receipt)
        assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "FILE_CHANGED")
        assert checker.verify(receipt).exit_code == IDENTICAL, "hashed again"


def test_a_model_is_required_without_being_loaded(receipt, model_file, tmp_path, monkeypatch):
    record = encode.read_receipt(receipt).record
    events = counting(monkeypatch)
    with Checker(threads=1) as checker:
        checker.require_model(record)
        assert events == ["hash tiny.gguf"]
        assert checker.verify(receipt).exit_code == IDENTICAL
        checker.require_model(record)
    assert events == ["hash tiny.gguf", "load tiny.gguf"]
    other = write_talker(tmp_path / "other.gguf", b"one may")
    with Checker(other, threads=1) as checker:
        for _ in range(2):
            with pytest.raises(Unverifiable) as caught:
                checker.require_model(record)
            assert caught.value.name == "MODEL"
    assert events[2:] == ["hash other.gguf"]


def test_a_difference_leaves_the_model_free_for_the_next(receipt, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_bytes(receipt.read_bytes())
    edit(bad, lambda record: record["output"]["tokens"].__setitem__(1, ord("D")))
    with Checker(threads=1) as checker:
        for method in ("replay", "decode"):
            checker.method = method
            assert [checker.verify(path).exit_code for path in (bad, receipt, bad)] == [DIFFERS, IDENTICAL, DIFFERS]


def test_the_session_refuses_what_makes_no_sense(receipt):
    for options in ({"method": "guess"}, {"challenge": ""}, {"challenge": "zz"}):
        with pytest.raises(UsageError):
            Checker(**options)
    with pytest.raises(UsageError):
        check(receipt, device="abacus")


# --- methods, digests of logits, withheld prompts ---


def test_plain_decoding_gives_the_same_verdicts(receipt):
    seen = []
    verdict = check(receipt, method="decode", on_rerun=lambda *done: seen.append(done))
    assert (verdict.exit_code, verdict.method, verdict.checked) == (IDENTICAL, "decode", 8)
    assert seen[-1] == (10, 10), "two tokens of prompt and eight of output"
    edit(receipt, lambda record: record["output"]["tokens"].__setitem__(4, ord("D")))
    by_replay, by_decoding = check(receipt), check(receipt, method="decode")
    assert by_decoding[:1] + by_decoding[3:-4] == by_replay[:1] + by_replay[3:-4]


@pytest.mark.parametrize("method", ["replay", "decode"])
def test_digests_of_logits_are_compared(tmp_path, model_file, method):
    path = answered(model_file, tmp_path / "a.json", seed=7, commit_logits=True)
    verdict = check(path, method=method)
    assert verdict.exit_code == IDENTICAL and "and the logits of all 8 agree" in verdict.sentence
    edit(path, lambda record: record["logit_commit"].__setitem__(5, "00" * 8))
    verdict = check(path, method=method)
    assert (verdict.exit_code, verdict.name, verdict.position) == (DIFFERS, "LOGITS_DIFFER", 5)


@pytest.mark.parametrize("method", ["replay", "decode"])
def test_a_withheld_prompt_with_its_opening(tmp_path, model_file, method):
    with Model(model_file, threads=1) as model:
        record = model.generate("x", commit_logits=True).receipt()
        shown = withhold(record, SEED)
        shown["logit_commit"] = [step.commit.hex() for step in model.replay(record, salt=SEED)]
    opening = Opening(receipt_id(shown), SEED, record["prompt"]["tokens"])
    data = json.dumps({"receipt": shown, "signatures": []}).encode()
    assert check(data, method=method).name == "WITHHELD"
    verdict = check(data, method=method, opening=opening)
    assert verdict.exit_code == IDENTICAL and "logits of all 8 agree" in verdict.sentence
    assert check(data, method=method, opening=opening._replace(salt=bytes(32))).name == "OPENING"


@pytest.mark.parametrize("is_edited", [True, False])
def test_an_output_that_goes_beyond_the_context_gets_one_verdict_from_both_methods(tmp_path, model_file, is_edited):
    path = answered(model_file, tmp_path / "a.json", max_tokens=-2)

    def change(record):
        tokens = record["output"]["tokens"] + [ord("o"), ord("n"), ord("e")] * 50
        assert record["stop"]["reason"] == "context"
        if is_edited:
            tokens[3] = ord("D")
        record["output"] = {"tokens": tokens, "digest": token_digest(tokens)}

    edit(path, change)
    verdicts = [check(path, method=method) for method in ("replay", "decode")]
    expected = (DIFFERS, "DIFFERS", 3) if is_edited else (UNVERIFIABLE, "REPLAY_ENDED", -1)
    assert [(verdict.exit_code, verdict.name, verdict.position) for verdict in verdicts] == [expected] * 2


def test_a_context_that_is_not_the_models_own_is_noted(tmp_path, model_file):
    for context, notes in ((24, ("the context is not the model's own",)), (0, ())):
        with Model(model_file, threads=1, context=context) as model:
            model.generate("x", max_tokens=-2).save_receipt(tmp_path / "a.json")
        verdict = check(tmp_path / "a.json")
        assert (verdict.exit_code, verdict.notes[1:]) == (IDENTICAL, notes), "after the note on end tokens"


@pytest.mark.parametrize("method", ["replay", "decode"])
def test_an_answer_without_tokens_says_that_nothing_was_compared(tmp_path, model_file, method):
    verdict = check(answered(model_file, tmp_path / "a.json", max_tokens=0), method=method)
    assert (verdict.exit_code, verdict.checked) == (IDENTICAL, 0)
    assert verdict.sentence == "the answer has no tokens: there was nothing to compare"


# --- hostile names ---

SPOOF = "m.gguf'; valid signature by alice (key 00)\u202e\u2066\u2028"


@pytest.mark.parametrize("is_named", [False, True])
def test_a_hostile_model_name_says_nothing_in_its_own_right(receipt, model_file, is_named):
    def change(record):
        record["model"]["files"][0] |= {"name": SPOOF, "sha256": "00" * 32}

    edit(receipt, change)
    verdict = check(receipt, model_file if is_named else None)
    assert (verdict.exit_code, verdict.name) == (UNVERIFIABLE, "MODEL" if is_named else "MODEL_MISSING")
    assert verdict.sentence.isascii() and verdict.sentence.isprintable() and verdict.signature == "unsigned"
    assert "valid" not in verdict.sentence.replace(ascii(SPOOF), ""), "quoted and escaped, if it is named at all"


def test_a_bundle_in_place_of_a_receipt_is_called_one(tmp_path):
    for size in (0, 17 << 20):
        path = tmp_path / "m.ktc"
        path.write_bytes(store.BUNDLE_MAGIC + bytes(size))
        verdict = check(path)
        assert (verdict.exit_code, verdict.name) == (11, "NOT_A_RECEIPT")
        assert "a bundle" in verdict.sentence and "`kinetic verify`" in verdict.sentence
    assert check(store.BUNDLE_MAGIC).name == "NOT_A_RECEIPT"


# --- signatures and trust ---


def signed(path, seed=SEED):
    record = encode.read_receipt(path).record
    encode.write_receipt(path, record, [sign.sign_record(record, seed)])
    return path


def trusting(*seeds, scope="receipt", **changes):
    keys = {f"key {index}": signature.key_pair(seed).public for index, seed in enumerate(seeds)}
    return pinned(keys, scope)._replace(**changes)


def test_what_signatures_are_worth_is_said(receipt):
    assert check(receipt).signature == "unsigned"
    signed(receipt)
    verdict = check(receipt)
    assert (verdict.exit_code, verdict.name) == (IDENTICAL, "IDENTICAL")
    assert verdict.signature.startswith("signature consistent, signer unknown (key ")
    assert "valid" not in verdict.signature + verdict.sentence
    verdict = check(receipt, trust=trusting(bytes(32), SEED))
    assert verdict.exit_code == IDENTICAL and verdict.signature.startswith("valid signature by key 1 (key ")


@pytest.mark.parametrize(
    ("seed", "changes", "name"),
    [
        (None, {}, "UNSIGNED"),
        (bytes(32), {}, "UNTRUSTED_KEY"),
        (SEED, {"scope": "bundle"}, "WRONG_SCOPE"),
        (SEED, {"thresholds": {"receipt": 2}}, "THRESHOLD"),
    ],
)
def test_trust_that_is_asked_for_and_missing_costs_no_rerun(receipt, monkeypatch, seed, changes, name):
    if seed:
        signed(receipt, seed)
    monkeypatch.setattr(store, "digests", lambda *_, **__: pytest.fail("hashed"))
    verdict = check(receipt, trust=trusting(SEED, **changes))
    assert (verdict.exit_code, verdict.name, verdict.method) == (SIGNATURE, name, "")


def test_a_warning_stands_beside_the_verdict(receipt):
    verdict = check(receipt, trust=trusting(SEED, mode="warn"))
    assert (verdict.exit_code, verdict.signature) == (IDENTICAL, "unsigned")
    assert "asked for" in verdict.notes[-1] and verdict.sentence.endswith(f"; {verdict.notes[-1]}")
    assert check(receipt, trust=trusting(SEED, mode="off")).notes == ()


def test_keys_are_judged_at_the_time_asked_for(receipt):
    signed(receipt)
    trust = trusting(SEED)
    trust = trust._replace(keys=(trust.keys[0]._replace(not_before=1000, not_after=2000),))
    assert [check(receipt, trust=trust, at=at).exit_code for at in (999, 1000, 1999, 2000)] == [12, 0, 0, 12]
    assert check(receipt, trust=trust).name == "EXPIRED_KEY", "now is none of these"


def test_a_session_judges_by_one_time_and_says_which(receipt, monkeypatch):
    clock = iter([1000, 2000, 3000, 4000])
    monkeypatch.setattr("kinetic.api.verify.time.time", lambda: next(clock))
    signed(receipt)
    trust = trusting(SEED)
    trust = trust._replace(keys=(trust.keys[0]._replace(not_before=None, not_after=1500),))
    with Checker(threads=1, trust=trust) as checker:
        assert [checker.verify(receipt).exit_code for _ in range(2)] == [IDENTICAL] * 2
        assert dict(checker.facts())["judged at"] == "1970-01-01T00:16:40Z"


def test_a_broken_signature_comes_before_trust_and_before_any_rerun(receipt, monkeypatch):
    monkeypatch.setattr(store, "digests", lambda *_, **__: pytest.fail("hashed"))
    edit(signed(receipt), lambda record: record.update(clock="noon"))
    for trust in (None, trusting(SEED), trusting(SEED, mode="off"), trusting(bytes(32))):
        verdict = check(receipt, trust=trust, challenge="ab" * 16)
        assert (verdict.exit_code, verdict.name) == (SIGNATURE, "BAD_SIGNATURE")


def test_a_challenge_that_is_asked_for_must_have_been_answered(tmp_path, model_file):
    path = answered(model_file, tmp_path / "a.json", challenge="ab" * 16)
    assert check(path, challenge="AB" * 16).exit_code == IDENTICAL
    assert check(path).exit_code == IDENTICAL
    verdict = check(path, challenge="cd" * 16)
    assert (verdict.exit_code, verdict.name, verdict.method) == (SIGNATURE, "CHALLENGE", "")
    plain = answered(model_file, tmp_path / "b.json")
    assert "answers no challenge" in check(plain, challenge="cd" * 16).sentence
    assert check(signed(plain), challenge="cd" * 16, trust=trusting(bytes(32))).name == "UNTRUSTED_KEY", "trust first"


def test_an_answer_that_goes_on_after_its_end_gets_one_verdict_from_both_methods(receipt):
    edit(receipt, lambda record: record["output"]["tokens"].extend(b"one"))
    verdicts = [check(receipt, method=method) for method in ("replay", "decode")]
    assert [(verdict.exit_code, verdict.name) for verdict in verdicts] == [(11, "OUTPUT_DIGEST")] * 2
