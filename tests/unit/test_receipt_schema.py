"""The form of a receipt, field by field, and what it must agree with itself about."""

import copy
import math

import pytest
from blake3 import blake3

from ktc import canonical, digest, limits
from ktc.errors import KtcError, LimitExceeded, Malformed, Unverifiable
from receipts import batch, identity, schema
from receipts.checks import check_answer, check_record
from receipts.identity import challenge_seed
from tests.support.sample_receipts import END, FILES, changed, full_sample, sample


def refusal(record, check=check_record):
    with pytest.raises(KtcError) as caught:
        check(record)
    assert caught.value.exit_code in (11, 13, 14)
    return caught.value.name


def leaves(value, path=""):
    """Dotted paths of everything that holds no further table, and of empty tables and lists."""
    if isinstance(value, dict) and value:
        return [leaf for name, item in value.items() for leaf in leaves(item, f"{path}.{name}")]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [leaf for at, item in enumerate(value) for leaf in leaves(item, f"{path}.{at}")]
    return [path[1:]]


def tables(value, path=""):
    """Dotted paths of all tables with fixed fields."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [place for name, item in inner for place in tables(item, f"{path}.{name}")]
    return [path[1:], *found] if isinstance(value, dict) and path != ".ext" else found


def at(record, path):
    for name in path.split(".") if path else ():
        record = record[int(name) if isinstance(record, list) else name]
    return record


FULL = full_sample()


def test_the_samples_are_valid():
    for record in (sample(), FULL):
        assert check_record(record) is record
        check_answer(record)


@pytest.mark.parametrize("path", leaves(FULL))
@pytest.mark.parametrize("wrong", [None, True, 1.5, -2, "\ud800", [None], {"a": 1}, b"x"], ids=repr)
def test_every_field_has_one_type(path, wrong):
    assert refusal(changed(FULL, path, wrong)) not in ("VERSION", "FAULT")


@pytest.mark.parametrize("path", tables(FULL))
def test_tables_are_closed(path):
    more = copy.deepcopy(FULL)
    at(more, path)["verified"] = True
    assert refusal(more) == "UNKNOWN_FIELD"
    for name in at(FULL, path):
        fewer = copy.deepcopy(FULL)
        del at(fewer, path)[name]
        assert refusal(fewer) in ("MISSING_FIELD", "NOT_A_RECEIPT", "WRONG_TYPE")


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("type", "receipt", "NOT_A_RECEIPT"),
        ("version", 0, "OUT_OF_RANGE"),
        ("version", 2, "VERSION"),
        ("version", True, "WRONG_TYPE"),
        ("profile", "kinetic", "BAD_TEXT"),
        ("profile", "kinetic-1-draft.1\n", "BAD_TEXT"),
        ("profile", "kinetic-01", "BAD_TEXT"),
        ("model.files", [], "NO_MODEL"),
        ("model.files.0.name", "../model.gguf", "BAD_TEXT"),
        ("model.files.0.name", "a\x1b[2J", "BAD_TEXT"),
        ("model.files.0.size", -1, "OUT_OF_RANGE"),
        ("model.files.0.blake3", "AB" * 32, "BAD_HEX"),
        ("model.files.0.blake3", "ab" * 31, "BAD_HEX"),
        ("model.files.0.blake3", "blake3:" + "ab" * 32, "BAD_HEX"),
        ("model.files.0.sha256", "", "BAD_HEX"),
        ("model.files.0.sha256", "ab" * 31 + " a", "BAD_HEX"),
        ("prompt.tokens", [], "PROMPT"),
        ("prompt.tokens", [-1], "OUT_OF_RANGE"),
        ("prompt.tokens", [2**31], "OUT_OF_RANGE"),
        ("prompt.tokens", [3, True, 4], "WRONG_TYPE"),
        ("prompt.tokens", [3, "1", 4], "WRONG_TYPE"),
        ("prompt.tokens", [3, 1], "PROMPT_DIGEST"),
        ("prompt.digest", "00" * 32, "PROMPT_DIGEST"),
        ("prompt.commitment", "00" * 32, "PROMPT"),
        ("sampling.seed", "18446744073709551616", "BAD_SEED"),
        ("sampling.seed", "-1", "BAD_SEED"),
        ("sampling.seed", "07", "BAD_SEED"),
        ("sampling.seed", "1e3", "BAD_SEED"),
        ("sampling.seed", "", "BAD_SEED"),
        ("sampling.seed", "٣", "BAD_SEED"),
        ("sampling.seed", 7, "WRONG_TYPE"),
        ("sampling.rng", "mt19937", "UNKNOWN_WORD"),
        ("sampling.samplers", ["top_k", "top_k"], "REPEATED"),
        ("sampling.samplers", ["topk"], "UNKNOWN_WORD"),
        ("sampling.temperature", "-0.1", "OUT_OF_RANGE"),
        ("sampling.temperature", "0." + "0" * 45 + "1", "BAD_DECIMAL"),
        ("sampling.temperature", "0." + "0" * 39 + "1", "OUT_OF_RANGE"),
        ("sampling.temperature", "inf", "BAD_DECIMAL"),
        ("sampling.temperature", "1e-1", "BAD_DECIMAL"),
        ("sampling.temperature", "9" * 45, "BAD_DECIMAL"),
        ("sampling.top_p", "-0.1", "OUT_OF_RANGE"),
        ("sampling.top_p", "1.1", "OUT_OF_RANGE"),
        ("sampling.top_p", "0", "OUT_OF_RANGE"),
        ("sampling.min_p", "NaN", "BAD_DECIMAL"),
        ("sampling.min_p", "-0", "BAD_DECIMAL"),
        ("sampling.top_k", -1, "OUT_OF_RANGE"),
        ("sampling.top_k", "40", "WRONG_TYPE"),
        ("sampling.repeat_last_n", -2, "OUT_OF_RANGE"),
        ("sampling.repeat_penalty", "0", "OUT_OF_RANGE"),
        ("sampling.logit_bias", [{"token": 1, "bias": "inf"}], "BAD_DECIMAL"),
        ("sampling.logit_bias", [{"token": 1, "bias": "1"}] * 2, "NOT_ASCENDING"),
        ("completion_index", -1, "OUT_OF_RANGE"),
        ("completion_index", 2**32, "OUT_OF_RANGE"),
        ("max_tokens", -2, "OUT_OF_RANGE"),
        ("stop.reason", "eos", "UNKNOWN_WORD"),
        ("stop.strings", [""], "BAD_TEXT"),
        ("stop.strings", ["b", "a"], "NOT_ASCENDING"),
        ("stop.end_tokens", [2, 2], "NOT_ASCENDING"),
        ("stop.strings", ["x" * (limits.MAX_STRING_BYTES + 1)], "TOO_LONG"),
        ("stop.strings", [str(n) for n in range(65)], "TOO_MANY_ENTRIES"),
        ("claims.time", "yesterday", "BAD_TEXT"),
        ("claims.device_name", "a\nb", "BAD_TEXT"),
        ("challenge", "00" * 15, "BAD_HEX"),
        ("challenge", "00" * 65, "BAD_HEX"),
        ("challenge", "00" * 16, "CHALLENGE_SEED"),
        ("logit_commit", ["03" * 7] * 4, "BAD_HEX"),
        ("commitments", [{"name": "Trace", "digest": "00" * 32}], "BAD_TEXT"),
        ("parent.index", 1, "BATCH_PROOF"),
        ("parent.root", "00" * 32, "BATCH_PROOF"),
        ("crit", ["absent"], "CRITICAL"),
        ("crit", ["note"], "CRITICAL"),
        ("ext", {"No Name": "x"}, "BAD_TEXT"),
        ("overrides.cache_type_k", "q1_0", "UNKNOWN_WORD"),
        ("overrides.rope_scale", "0", "OUT_OF_RANGE"),
    ],
)
def test_refusals(path, value, name):
    assert refusal(changed(FULL, path, value)) == name


def test_exit_codes_tell_the_kinds_apart():
    for path, value, kind in [
        ("version", 2, Unverifiable),
        ("crit", ["note"], Unverifiable),
        ("crit", ["absent"], Malformed),
        ("stop.strings", [str(n) for n in range(65)], LimitExceeded),
    ]:
        with pytest.raises(kind):
            check_record(changed(FULL, path, value))


def test_too_many_tokens_is_a_limit():
    record = changed(FULL, "output.tokens", [0] * (limits.MAX_TOKENS + 1))
    with pytest.raises(LimitExceeded) as caught:
        check_record(record)
    assert caught.value.name == "TOO_MANY_TOKENS"


@pytest.mark.parametrize("record", [None, [], "receipt", 1, {}, {"type": "kinetic-receipt"}])
def test_what_is_no_receipt(record):
    assert refusal(record) in ("WRONG_TYPE", "NOT_A_RECEIPT")


# The answer against itself


def answer(tokens, reason, **changes):
    """A receipt of these output tokens, consistent apart from what a test is about."""
    return sample(output=tokens, stop_reason=reason, text="", **changes)


@pytest.mark.parametrize(
    "record",
    [
        answer([1, END], "end"),
        answer([END], "end", max_tokens=1),  # several reasons fit: the first counts
        answer([1, 2], "length", max_tokens=2),
        answer([], "length", max_tokens=0),
        answer([1], "stop", stop_strings=["red"]),
        answer([], "interrupt"),
        answer([1, 2], "interrupt", max_tokens=5),
        answer([1, 2], "context", overrides={"context": 5}),
    ],
)
def test_stop_reasons_that_fit(record):
    check_answer(check_record(record))


@pytest.mark.parametrize(
    "record",
    [
        answer([1, 2], "end"),
        answer([], "end"),
        answer([1, END], "length", max_tokens=2),
        answer([1, END], "interrupt"),
        answer([END, 1], "interrupt"),
        answer([1, END, 2, END], "end"),
        answer([1, END, END], "end"),
        answer([1, 2], "length", max_tokens=3),
        answer([1, 2], "length"),
        answer([1, 2, 3], "interrupt", max_tokens=2),
        answer([1, 2], "stop"),
        answer([], "stop", stop_strings=["red"]),
        answer([1, 2], "context"),
        answer([1, 2], "context", overrides={"context": 6}),
    ],
)
def test_stop_reasons_at_odds(record):
    assert refusal(check_record(record), check_answer) == "STOP_REASON"


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("output.digest", "00" * 32, "OUTPUT_DIGEST"),
        ("output.tokens", [1, 2, END], "OUTPUT_DIGEST"),
        ("logit_commit", ["03" * 8] * 3, "LOGIT_COMMIT"),
        ("text", "red yellow blue", "STOP_STRING"),
    ],
)
def test_the_answer_agrees_with_itself(path, value, name):
    record = check_record(changed(FULL, path, value))  # the question is not at fault
    assert refusal(record, check_answer) == name


# Withheld prompts, challenges, batches


def test_a_withheld_prompt_shows_nothing():
    commitment = digest.withheld_commitment(bytes(32), FULL["prompt"]["tokens"])
    withheld = FULL | {"prompt": {"tokens": [], "digest": "", "commitment": commitment}}
    check_record(withheld)
    for path in ("tokens", "digest"):
        assert refusal(changed(withheld, f"prompt.{path}", FULL["prompt"][path])) == "PROMPT"
    assert refusal(changed(withheld, "prompt.commitment", "")) == "PROMPT"


def challenged(path="text", value=FULL["text"]):
    """A receipt that answers a challenge, with one change, and the seed that belongs to it."""
    record = changed(changed(FULL, "sampling.dry_sequence_breakers", []) | {"challenge": "ab" * 16}, path, value)
    return changed(record, "sampling.seed", challenge_seed(record))


def test_a_challenge_gives_the_seed():
    record = challenged()
    seed = challenge_seed(record)
    assert seed == challenge_seed(changed(record, "sampling.seed", "9"))  # the seed is no part of its own origin
    check_record(changed(record, "sampling.seed", seed))
    assert refusal(changed(record, "sampling.seed", str((int(seed) + 1) % 2**64))) == "CHALLENGE_SEED"
    assert seed != challenge_seed(record | {"challenge": "ab" * 17})
    assert seed != challenge_seed(changed(record, "sampling.top_k", 41))
    assert seed == challenge_seed(changed(record, "text", "another answer"))
    assert seed == challenge_seed(changed(record, "overrides.context", 7))  # known only when the answer has ended
    assert seed != challenge_seed(changed(record, "overrides.rope_freq_base", "10001"))


IDLE = {
    "sampling.repeat_last_n": 64,
    "sampling.repeat_penalty": "1.5",
    "sampling.frequency_penalty": "0.5",
    "sampling.presence_penalty": "-0.5",
    "sampling.xtc_probability": ("0.5", {"xtc_threshold": "0.6"}),
    "sampling.xtc_threshold": "0.2",
    "sampling.dynatemp_exponent": "2",
    "sampling.dry_multiplier": ("0.8", {"dry_penalty_last_n": 0}),
    "sampling.dry_base": "2",
    "sampling.dry_allowed_length": 3,
    "sampling.dry_penalty_last_n": 64,
    "sampling.dry_sequence_breakers": [":"],
    "sampling.mirostat_tau": "6",
    "sampling.mirostat_eta": "0.2",
    "sampling.logit_bias": [{"token": 1, "bias": "0"}],
    "adapters.0.scale": "0",
}
"""Each has no effect here, beside the plain values of the others or those that are named."""


@pytest.mark.parametrize("path", IDLE)
def test_a_challenge_wants_plain_values_of_what_is_off(path):
    value, others = IDLE[path] if isinstance(IDLE[path], tuple) else (IDLE[path], {})
    record = challenged()
    record = changed(record, "sampling", record["sampling"] | others)
    record = changed(record, path, value)
    record = changed(record, "sampling.seed", challenge_seed(record))
    assert refusal(record) == "CHALLENGE_SETTING"
    check_record(record | {"challenge": ""})  # nothing can be chosen with it there


def test_settings_of_samplers_that_are_on_are_free():
    on = {
        "repeat_last_n": 64, "repeat_penalty": "1.5", "xtc_probability": "0.5", "xtc_threshold": "0.5",
        "dynatemp_range": "0.5", "dynatemp_exponent": "2", "dry_multiplier": "0.8", "dry_base": "1",
        "dry_sequence_breakers": [":"], "mirostat": 2, "mirostat_tau": "6",
    }  # fmt: skip
    check_record(challenged("sampling", challenged()["sampling"] | on))


def test_the_seed_of_a_challenge_is_the_documented_digest():
    record = FULL | {"challenge": "ab" * 16}
    question = identity._question(record)
    del question["sampling"]["seed"], question["overrides"]["context"]
    hashed = b"kinetic challenge v1\0" + b"\x10" + b"\xab" * 16 + canonical.encode(question)
    assert challenge_seed(record) == str(int.from_bytes(blake3(hashed).digest()[:8], "little"))


@pytest.mark.parametrize("count", range(1, 10))
def test_a_batch_proves_each_place(count):
    records = batch.with_parents([sample(completion_index=index) for index in range(count)])
    assert len({record["parent"]["root"] for record in records}) == 1
    for record in records:
        check_record(record)
        parent = record["parent"]
        for change in (
            {"count": count + 1},
            {"index": (parent["index"] + 1) % count if count > 1 else 1},
            {"path": [*parent["path"], "00" * 32]},
            {"path": parent["path"][:-1], "root": parent["root"][::-1]},
            {"path": parent["path"][::-1], "index": 0} if len(set(parent["path"])) > 1 else {"count": 0},
        ):
            assert refusal(record | {"parent": parent | change}) == "BATCH_PROOF"
        assert refusal(record | {"text": "another"}) == "BATCH_PROOF"


def test_a_duplicated_last_leaf_is_another_tree():
    records = [sample(completion_index=index) for index in range(3)]
    three = batch.with_parents(records)[0]["parent"]["root"]
    four = batch.with_parents([*records, records[-1]])[0]["parent"]["root"]
    assert three != four


# Building


def test_new_record_spells_plain_numbers():
    record = sample(
        sampling={"seed": 2**64 - 1, "temperature": -1.0, "top_p": 1 / 3, "logit_bias": [(9, 0.1), (2, -math.inf)]},
        stop_strings=["b", "a", "b"],
        end_tokens=frozenset([5, END]),
        overrides={"rope_freq_base": 1e6},
    )
    sampling = record["sampling"]
    assert sampling["seed"] == "18446744073709551615"
    assert (sampling["temperature"], sampling["top_p"]) == ("0", "0.33333334")
    assert sampling["logit_bias"] == [{"token": 2, "bias": "-inf"}, {"token": 9, "bias": "0.1"}]
    assert record["stop"]["strings"] == ["a", "b"]
    assert record["stop"]["end_tokens"] == [END, 5]
    assert record["overrides"]["rope_freq_base"] == "1000000"
    assert record["model"]["files"][0] == FILES[0]._asdict()
    check_record(record)


def test_new_record_refuses_what_it_does_not_know():
    for arguments in ({"sampling": {"topk": 1}}, {"claims": {"verified": "yes"}}, {"verified": True}):
        with pytest.raises(Malformed) as caught:
            sample(**arguments)
        assert caught.value.name == "UNKNOWN_FIELD"
    with pytest.raises(Malformed):
        sample(sampling={"temperature": math.nan})


def test_new_records_share_nothing():
    first, second = sample(), sample()
    first["ext"]["a"] = "b"
    first["parent"]["path"].append("00")
    first["sampling"]["samplers"].clear()
    first["overrides"]["context"] = 1
    assert second == sample()


def test_sampling_values_give_the_numbers_back():
    values = schema.sampling_values(sample(sampling={"seed": 7, "temperature": 0.8, "logit_bias": [(2, -math.inf)]}))
    assert values["seed"] == 7
    assert values["temperature"] == 0.800000011920929  # 0.8 in binary32
    assert values["logit_bias"] == ((2, -math.inf),)
    assert values["top_k"] == 0


def test_stop_reasons_are_the_engines():
    types = pytest.importorskip("kinetic.types")
    assert types.STOP_REASONS == schema.STOP_REASONS
    assert schema.RECEIPT.fields["profile"].check(types.PROFILE, "profile") is None
    ours = set(schema.SAMPLING.fields)
    assert set(types.Sampling.__dataclass_fields__) <= ours
