"""Receipts of answers: what they say, that they ask the same again, and when there is none."""

import dataclasses
import os

import pytest

from kinetic import attest, store
from kinetic.api.model import Model
from kinetic.engine import Engine
from kinetic.errors import FileProblem, Malformed, SignatureProblem, Unverifiable, UsageError
from kinetic.loader import LoadedFile
from kinetic.types import ModelFile, ModelIdentity, Sampling
from ktc import digest, signature
from receipts import encode
from receipts.checks import check_answer, check_record
from receipts.sign import check_signatures
from receipts.withhold import open_prompt, read_opening
from tests.support.talking_model import END, TEMPLATE, write_talker
from tests.support.tiny_models import write_tiny_gemma3, write_tiny_llama

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


# --- commitments to logits ---

DRAWN = {"temperature": 1.2, "seed": 3, "raw": True, "logit_bias": {7: 2.0}, "repeat_penalty": 1.3}


def commits(steps):
    return [step.commit.hex() for step in steps]


@pytest.mark.parametrize("write", [write_tiny_llama, write_tiny_gemma3])
def test_commits_do_not_depend_on_threads_backend_or_method(folder, write):
    path = write(folder / f"{write.__name__}.gguf")
    records, replayed = [], []
    for machine in ({"threads": 1}, {"threads": 2}, {"device": "reference"}):
        with Model(path, **machine) as model:
            answer = model.generate("the river runs", max_tokens=6, commit_logits=True, **DRAWN)
            records.append(answer.receipt())
            replayed.append(commits(model.replay(records[0])))
    found = records[0]["logit_commit"]
    assert len(set(found)) == 6 == len(records[0]["output"]["tokens"])
    assert all(record["logit_commit"] == found for record in records) and replayed == [found] * 3


def test_what_is_committed_to_are_the_models_own_logits(make):
    """Before the bias and the penalties, as little-endian float32 by token id."""
    model = make()
    answer = model.generate("x", commit_logits=True, **DRAWN)
    rows = model._engine.logits([*answer.prompt_tokens, *answer.tokens[:-1]], len(answer.prompt_tokens) - 1)
    assert answer.commits == tuple(digest.logits_digest(row.astype("<f4").tobytes()) for row in rows)
    assert answer.receipt()["logit_commit"] == [commit.hex() for commit in answer.commits]


@pytest.mark.parametrize("ending", [{"stop": "day"}, {"max_tokens": 3}, {"max_tokens": 0}, {"max_tokens": -2}, {}])
def test_one_commit_per_output_token_however_the_answer_ends(make, ending):
    record = make().generate("x", commit_logits=True, **ending).receipt()
    assert len(record["logit_commit"]) == len(record["output"]["tokens"])
    check_answer(check_record(record))


def test_an_interrupted_answer_commits_to_what_it_has(make):
    model = make()
    with model.stream("x", commit_logits=True) as stream:
        next(stream), next(stream)
    record = stream.completion.receipt()
    assert record["stop"]["reason"] == "interrupt" and len(record["logit_commit"]) == 2
    assert commits(model.replay(record)) == record["logit_commit"]


def test_nothing_is_digested_unless_asked(make, monkeypatch):
    monkeypatch.setattr(digest, "logits_digest", None)
    model = make()
    answer = model.generate("x")
    assert answer.commits == () and answer.receipt()["logit_commit"] == []
    assert {step.commit for step in model.replay(answer.receipt())} == {b""}


# --- withheld prompts ---


def test_a_withheld_prompt_is_nowhere_in_the_receipt(make, tmp_path):
    model = make(TEMPLATE)
    asked = {"seed": 5, "withhold_prompt": True, "commit_logits": True, "system": "secret"}
    answer = model.generate("hidden", **asked)
    saved = answer.save_receipt(tmp_path / "a.json")
    record = encode.read_receipt(tmp_path / "a.json").record
    plain = model.generate("hidden", **asked | {"withhold_prompt": False}).receipt()
    assert {name for name in record if record[name] != plain[name]} <= {"prompt", "logit_commit", "claims"}
    assert record["prompt"]["tokens"] == [] and record["prompt"]["digest"] == ""
    data = encode.canonical_bytes(record)
    assert bytes.fromhex(plain["prompt"]["digest"]) not in data and answer._salt not in data
    assert saved == (encode.receipt_id(record), "", str(tmp_path / "a.opening.json"))
    assert repr(answer._salt) not in repr(answer)


def test_the_opening_shows_the_prompt_and_keys_the_commits(make, tmp_path):
    model = make()
    answer = model.generate("x", withhold_prompt=True, commit_logits=True, seed=1)
    answer.save_receipt(tmp_path / "a.cbor", opening=tmp_path / "o.json")
    record = encode.read_receipt(tmp_path / "a.cbor").record
    opening = read_opening(tmp_path / "o.json")
    assert opening == answer.opening() and tuple(opening.tokens) == answer.prompt_tokens and len(opening.salt) == 32
    opened = open_prompt(record, opening)
    found = record["logit_commit"]
    assert commits(model.replay(opened, salt=opening.salt)) == found
    assert set(commits(model.replay(opened))).isdisjoint(found), "without the salt a guess can't be confirmed"


def test_each_withheld_answer_has_a_salt_of_its_own(make):
    model = make()
    first, second = (model.generate("x", withhold_prompt=True, commit_logits=True, seed=1) for _ in range(2))
    assert first.receipt() == first.receipt()
    assert first.receipt()["prompt"]["commitment"] != second.receipt()["prompt"]["commitment"]
    assert set(first.commits).isdisjoint(second.commits) and first.tokens == second.tokens


def test_an_open_prompt_has_no_opening(make, tmp_path):
    answer = make().generate("x")
    assert answer.opening() is None
    with pytest.raises(UsageError) as caught:
        answer.save_receipt(tmp_path / "a.json", opening=tmp_path / "o.json")
    assert caught.value.name == "NO_OPENING"
    assert answer.save_receipt(tmp_path / "a.json").opening == "" and os.listdir(tmp_path) == ["a.json"]


# --- challenges ---

CHALLENGE = "ab" * 16


@pytest.mark.parametrize("asked", [{}, {"withhold_prompt": True}, {"max_tokens": -2}, {"seed": -1}, {"seed": None}])
def test_the_seed_comes_from_the_challenge(make, asked):
    model = make(context=16)
    answer = model.generate("x", challenge=CHALLENGE, **asked)
    record = answer.receipt()
    check_answer(check_record(record))
    assert record["challenge"] == CHALLENGE
    assert str(answer.seed) == record["sampling"]["seed"] == encode.challenge_seed(record)
    assert record["stop"]["reason"] == ("context" if asked.get("max_tokens") == -2 else "end")
    forged = record | {"challenge": "ac" + CHALLENGE[2:]}
    with pytest.raises(Exception, match="challenge") as caught:
        check_record(forged)
    assert caught.value.name == "CHALLENGE_SEED"


def test_the_seed_depends_on_the_whole_question_and_on_nothing_else(make):
    model = make()
    seeds = [
        model.generate(prompt, challenge=challenge, **options).seed
        for prompt, challenge, options in (
            ("x", CHALLENGE, {}),
            ("x", CHALLENGE, {"commit_logits": True}),
            ("y", CHALLENGE, {}),
            ("x", CHALLENGE * 2, {}),
            ("x", CHALLENGE, {"top_k": 3}),
            ("x", CHALLENGE, {"stop": "z"}),
            ("x", CHALLENGE, {"completion_index": 1}),
        )
    ]
    assert seeds[0] == seeds[1] and len(set(seeds)) == 6


def test_the_stream_already_has_the_challenges_seed(make):
    stream = make().stream("x", challenge=CHALLENGE)
    seed = stream.seed
    assert list(stream) and stream.completion.seed == seed


@pytest.mark.parametrize("challenge", ["", "ab" * 15, "ab" * 65, "AB" * 16, "ab" * 16 + "a", "xy" * 16, 5, None])
def test_a_challenge_has_one_form(make, challenge):
    with pytest.raises(UsageError) as caught:
        make().generate("x", challenge=challenge)
    assert caught.value.name == "BAD_CHALLENGE"


@pytest.mark.parametrize("seed", [0, 7])
def test_a_challenge_and_a_seed_are_too_much(make, seed):
    with pytest.raises(UsageError) as caught:
        make().generate("x", challenge=CHALLENGE, seed=seed)
    assert caught.value.name == "CHALLENGE_SEED"


@pytest.mark.parametrize("name", ["commit_logits", "withhold_prompt"])
def test_switches_are_true_or_false(make, name):
    with pytest.raises(UsageError) as caught:
        make().generate("x", **{name: 1})
    assert caught.value.name == f"BAD_{name.upper()}"


# --- saving ---

KEY = signature.key_pair(bytes(range(32)))


@pytest.mark.parametrize("name", ["a.json", "a.cbor"])
def test_a_signed_receipt(make, tmp_path, name):
    saved = make().generate("x").save_receipt(tmp_path / name, sign=KEY)
    read = encode.read_receipt(tmp_path / name)
    assert check_signatures(read.record, read.signatures) == [signature.key_id(KEY.public)] == [saved.key_id]


def test_a_public_key_of_another_signs_nothing(make, tmp_path):
    other = signature.key_pair(bytes(32))
    with pytest.raises(SignatureProblem) as caught:
        make().generate("x").save_receipt(tmp_path / "a.json", sign=KEY._replace(public=other.public))
    assert (caught.value.exit_code, caught.value.name) == (12, "KEY_MISMATCH") and os.listdir(tmp_path) == []


def test_the_opening_is_there_before_the_receipt(make, tmp_path, monkeypatch):
    seen, real = [], encode.write_receipt
    monkeypatch.setattr(encode, "write_receipt", lambda *a, **o: seen.append(os.listdir(tmp_path)) or real(*a, **o))
    make().generate("x", withhold_prompt=True).save_receipt(tmp_path / "a.json")
    assert seen == [["a.opening.json"]] and sorted(os.listdir(tmp_path)) == ["a.json", "a.opening.json"]


def test_a_receipt_that_cannot_be_written_takes_its_opening_back(make, tmp_path):
    answer = make().generate("x", withhold_prompt=True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileProblem):
        answer.save_receipt(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


def test_an_opening_is_never_replaced_nor_is_it_the_receipt(make, tmp_path):
    answer = make().generate("x", withhold_prompt=True)
    (tmp_path / "a.opening.json").write_text("before")
    for opening, kind, name in ((None, FileProblem, "EXISTS"), (tmp_path / "a.json", UsageError, "SAME_FILE")):
        with pytest.raises(kind) as caught:
            answer.save_receipt(tmp_path / "a.json", opening=opening)
        assert caught.value.name == name
    assert os.listdir(tmp_path) == ["a.opening.json"] and (tmp_path / "a.opening.json").read_text() == "before"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"text": "one"}, "TEXT"),
        ({"stop_reason": "stop"}, "STOP_REASON"),
        ({"stop_reason": "context"}, "STOP_REASON"),
        ({"output": tuple(b"one day")}, "STOP_REASON"),
        ({"commits": (bytes(8),)}, "LOGIT_COMMIT"),
    ],
)
def test_an_answer_that_contradicts_itself_is_not_written(make, tmp_path, monkeypatch, change, name):
    real = attest.make_receipt
    monkeypatch.setattr(attest, "make_receipt", lambda answer: real(dataclasses.replace(answer, **change)))
    with pytest.raises(Malformed) as caught:
        make().generate("x", withhold_prompt=True).save_receipt(tmp_path / "a.json")
    assert caught.value.name == name and os.listdir(tmp_path) == []


def test_a_digest_that_does_not_fit_is_not_written(make, tmp_path, monkeypatch):
    real = attest.make_receipt

    def forged(answer):
        record = real(answer)
        return record | {"output": record["output"] | {"digest": "00" * 32}}

    monkeypatch.setattr(attest, "make_receipt", forged)
    with pytest.raises(Malformed) as caught:
        make().generate("x").save_receipt(tmp_path / "a.json")
    assert caught.value.name == "OUTPUT_DIGEST" and os.listdir(tmp_path) == []


@dataclasses.dataclass(frozen=True)
class Unproven(Sampling):
    mirostat: int = 2


def test_what_is_not_proven_gives_no_receipt(make, tmp_path, monkeypatch):
    answer, real = make().generate("x"), attest.make_receipt

    def unproven(given):
        sampling = Unproven(**dataclasses.asdict(given.request.sampling))
        return real(dataclasses.replace(given, request=dataclasses.replace(given.request, sampling=sampling)))

    monkeypatch.setattr(attest, "make_receipt", unproven)
    with pytest.raises(Unverifiable) as caught:
        answer.save_receipt(tmp_path / "a.json")
    assert caught.value.name == "FEATURE" and "mirostat" in str(caught.value) and os.listdir(tmp_path) == []
    monkeypatch.setattr(attest, "FEATURES", frozenset({"mirostat"}))
    assert answer.receipt()["sampling"]["mirostat"] == 2


def test_what_cannot_be_written_down_is_refused_by_our_own_errors(make, monkeypatch):
    answer = make().generate("x")
    monkeypatch.setattr("kinetic.attest.PROFILE", "another")
    with pytest.raises(Malformed) as caught:
        answer.receipt()
    assert caught.value.exit_code == 11
