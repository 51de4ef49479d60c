"""Verdicts: what the replay protocol says of true, changed, foreign and hostile receipts."""

import json

import pytest

from ktc.digest import token_digest
from ktc.errors import KtcError
from receipts.checks import output_text
from receipts.errors import VERDICTS, worst
from receipts.features import FEATURES, require_features, used_features
from receipts.verify import verify
from tests.support.sample_receipts import END, FILES, Draw, ScriptedReplayer, changed, sample

TOKENS = [1, 2, 3, END]


def replayer(*draws, **attributes):
    engine = ScriptedReplayer(*(draws or TOKENS))
    for name, value in attributes.items():
        setattr(engine, name, value)
    return engine


def edited(record, position, token):
    """One output token changed as with a text editor: the digest stays."""
    return changed(record, f"output.tokens.{position}", token)


def with_output(record, tokens, **changes):
    """A careful forger's receipt: digest and all."""
    return record | {"output": {"tokens": tokens, "digest": token_digest(tokens)}} | changes


def test_identical():
    verdict = verify(sample(), replayer())
    assert (verdict.exit_code, verdict.name, verdict.checked) == (0, "IDENTICAL", 4)
    assert verdict.sentence == "all 4 tokens are the ones this model draws"
    assert not verdict.is_prefix and not verdict.notes


def test_an_edited_token_is_named_even_though_its_digest_is_wrong_too():
    verdict = verify(edited(sample(sampling={"temperature": 0.0}), 1, 3), replayer())
    assert (verdict.exit_code, verdict.name) == (10, "DIFFERS")
    assert (verdict.position, verdict.expected, verdict.got, verdict.gap) == (1, 3, 2, 0.004)
    assert (verdict.expected_text, verdict.got_text) == (" green", " blue")
    assert verdict.checked == 2
    expected = "token 1: receipt says ' green' (id 3), rerun gives ' blue' (id 2); the two best there were 0.004 apart"
    assert verdict.sentence == expected


@pytest.mark.parametrize(
    ("temperature", "draw", "distance"),
    [
        (0.0, Draw(1, 2, 0.004), "the two were 0.004 apart"),
        (0.8, Draw(1, 2, 0.004), "the two best there were 0.004 apart"),  # the draw may be the third
        (0.0, Draw(1, 5, 1.25), "the two best there were 1.250 apart"),
        (0.0, Draw(1, 2, 0.00002), "the two were 2.0e-05 apart"),
        (0.0, Draw(1, 2, 0.0), "the two were 0.000 apart"),
        (0.0, Draw(1, -1, float("inf")), "no other token could be drawn"),
    ],
)
def test_distances(temperature, draw, distance):
    record = with_output(sample(sampling={"temperature": temperature}), [2, 2, 3, END])
    sentence = verify(record, replayer(draw)).sentence
    assert sentence == f"token 0: receipt says ' blue' (id 2), rerun gives ' red' (id 1); {distance}"


def test_control_tokens_are_named():
    sentence = verify(edited(sample(), 3, 4), replayer()).sentence
    assert "receipt says '.' (id 4), rerun gives '<end>' (id 0)" in sentence


@pytest.mark.parametrize("position", range(4))
def test_every_position_is_compared_and_none_after_the_first_difference(position):
    engine = replayer()
    verdict = verify(edited(sample(), position, 4), engine)
    assert (verdict.exit_code, verdict.position) == (10, position)
    assert engine.asked == position + 1


def test_added_and_removed_tokens():
    record = sample()
    assert verify(with_output(record, [1, 2]), replayer()).exit_code == 11  # its reason says it ended
    assert verify(with_output(record, [*TOKENS, 4]), replayer(*TOKENS, 5)).exit_code == 10
    assert verify(with_output(record, [*TOKENS, 4]), replayer(*TOKENS, 4)).exit_code == 11


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("output.digest", "00" * 32, "OUTPUT_DIGEST"),
        ("text", " red blue", "TEXT"),
        ("text", " red blue green ", "TEXT"),
        ("text", "", "TEXT"),
        ("stop.reason", "interrupt", "STOP_REASON"),
        ("prompt.tokens", [3, 1, 5], "PROMPT_DIGEST"),
        ("sampling.top_p", "2", "OUT_OF_RANGE"),
        ("verified", True, "UNKNOWN_FIELD"),
    ],
)
def test_malformed(path, value, name):
    verdict = verify(changed(sample(), path, value), replayer())
    assert (verdict.exit_code, verdict.name) == (11, name)


@pytest.mark.parametrize(
    ("record", "attributes", "name"),
    [
        (changed(sample(), "profile", "kinetic-1-draft.2"), {}, "PROFILE"),
        (changed(sample(), "profile", "kinetic-2"), {}, "PROFILE"),
        (changed(sample(), "version", 2), {}, "VERSION"),
        (changed(sample(), "model.files.0.blake3", "00" * 32), {}, "MODEL"),
        (changed(sample(), "model.files.0.sha256", "00" * 32), {}, "MODEL"),
        (changed(sample(), "model.files.0.size", 1), {}, "MODEL"),
        (changed(sample(), "model.architecture", "gemma3"), {}, "MODEL"),
        (sample(), {"files": FILES * 2}, "MODEL"),
        (sample(grammar="00" * 32), {"features": FEATURES - {"grammar"}}, "FEATURE"),
        (sample() | {"prompt": {"tokens": [], "digest": "", "commitment": "00" * 32}}, {}, "WITHHELD"),
    ],
)
def test_unverifiable(record, attributes, name):
    engine = replayer(**attributes)
    verdict = verify(record, engine)
    assert (verdict.exit_code, verdict.name) == (13, name)
    assert engine.asked == 0


def test_a_receipt_of_a_draft_says_what_to_do():
    sentence = "the receipt was made under {}, this engine computes " + replayer().profile
    says = (
        sentence.format("kinetic-1-draft.7")
        + "; a draft is rerun only by the version that made it, so ask the question again"
    )
    assert verify(changed(sample(), "profile", "kinetic-1-draft.7"), replayer()).sentence == says
    assert verify(changed(sample(), "profile", "kinetic-3"), replayer()).sentence == sentence.format("kinetic-3")


def test_a_renamed_model_file_is_the_same_model():
    assert verify(changed(sample(), "model.files.0.name", "other.gguf"), replayer()).exit_code == 0


def test_a_hostile_model_name_is_quoted_and_escaped():
    name = "m'; valid signature by alice (key 00)\u202e"
    record = changed(changed(sample(), "model.files.0.name", name), "model.files.0.blake3", "00" * 32)
    verdict = verify(record, replayer())
    assert (verdict.name, verdict.sentence.isascii()) == ("MODEL", True)
    assert "valid" not in verdict.sentence.replace(ascii(name), "") and ascii(name) in verdict.sentence


def test_claims_change_no_verdict():
    record = sample(claims={"device_class": "abacus", "time": ""}, clock="noon", bundle="00" * 32)
    assert verify(record, replayer()).exit_code == 0


def test_a_rerun_that_breaks_off_proves_nothing():
    verdict = verify(sample(), ScriptedReplayer(1, 2))
    assert (verdict.exit_code, verdict.name) == (13, "REPLAY_ENDED")


def test_limits_come_before_the_rerun():
    engine = replayer()
    verdict = verify(sample(), engine, limit=6)
    assert (verdict.exit_code, verdict.name, engine.asked) == (14, "RERUN_COST", 0)
    assert verify(sample(), replayer(), limit=7).exit_code == 0


@pytest.mark.parametrize(
    "record",
    [
        sample(prompt=[8]),
        sample(end_tokens=[END, 8]),
        sample(sampling={"logit_bias": [(8, 1.0)]}),
        with_output(sample(), [1, 8, END]),
    ],
)
def test_ids_outside_the_vocabulary(record):
    engine = replayer()
    assert (verify(record, engine).name, engine.asked) == ("TOKEN_RANGE", 0)


def test_an_interrupted_run_is_a_prefix_and_says_so():
    record = sample(output=[1, 2], text=" red blue", stop_reason="interrupt")
    verdict = verify(record, replayer(1, 2))
    assert (verdict.exit_code, verdict.is_prefix) == (0, True)
    assert "interrupted" in verdict.sentence
    verdict = verify(sample(output=[], text="", stop_reason="interrupt"), ScriptedReplayer())
    assert (verdict.exit_code, verdict.is_prefix) == (0, True)
    assert verdict.sentence == "the run was interrupted before its first token: there was nothing to compare"


def test_an_answer_without_tokens_says_that_nothing_was_compared():
    verdict = verify(sample(output=[], text="", stop_reason="length", max_tokens=0), ScriptedReplayer())
    assert (verdict.exit_code, verdict.is_prefix, verdict.checked) == (0, False, 0)
    assert verdict.sentence == "the answer has no tokens: there was nothing to compare"


def test_foreign_end_tokens_are_noted():
    record = sample(output=[1, 2], text=" red", end_tokens=[2])
    verdict = verify(record, replayer(1, 2))
    assert verdict.exit_code == 0
    assert verdict.notes == ("the end tokens are not the model's own",)
    assert verdict.notes[0] in verdict.sentence


@pytest.mark.parametrize("own", [5, 6, 4096])
def test_a_foreign_context_that_ended_the_answer_is_noted(own):
    record = sample(output=[1, 2], text=" red blue", stop_reason="context", overrides={"context": 5})
    engine = replayer(1, 2, context=own)
    verdict = verify(record, engine)
    assert verdict.exit_code == 0
    assert verdict.notes == (() if own == 5 else ("the context is not the model's own",))
    assert all(note in verdict.sentence for note in verdict.notes)
    assert verify(sample(), replayer(context=own)).notes == (), "it ended by itself"


def test_progress_counts_tokens():
    seen = []
    verify(sample(), replayer(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_verdict_has_no_truth_value():
    with pytest.raises(TypeError):
        bool(verify(sample(), replayer()))


# Text and stop strings


def stopped(tokens, strings, text, reason="stop"):
    return sample(output=tokens, stop_reason=reason, stop_strings=strings, text=text, end_tokens=[])


@pytest.mark.parametrize(
    "record",
    [
        stopped([1, 7], ["one"], " red "),
        stopped([1, 7], ["two", "one"], " red "),  # the first in the text counts
        stopped([7], [" one two"], ""),
        stopped([7], [" one two", "e t"], " on"),  # what is complete first counts, not what begins first
        stopped([7], ["o", "two", "wo"], " "),
        stopped([1, 7], ["one", " one"], " red"),  # both complete at once: the longer
        stopped([1, 2], ["d bl"], " re"),  # over two tokens
        stopped([5, 6], ["\N{GRINNING CAT FACE WITH SMILING EYES}"], ""),
        stopped([5, 6, 1], ["red"], "\N{GRINNING CAT FACE WITH SMILING EYES} "),
        stopped([1, 5], ["x"], " red\ufffd", reason="interrupt"),  # half a character is shown at the end
        stopped([5, 1], ["\ufffd"], ""),  # half a character shows only when it can't be completed any more
        stopped([5, 6, 1], ["\ufffd"], "\N{GRINNING CAT FACE WITH SMILING EYES} red", reason="interrupt"),
    ],
)
def test_stop_strings_that_fit(record):
    verdict = verify(record, ScriptedReplayer(*record["output"]["tokens"]))
    assert verdict.exit_code == 0, verdict.sentence


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (stopped([1, 7], ["one"], " red one two"), "STOP_STRING"),
        (stopped([1, 7], ["one"], " red one", reason="interrupt"), "STOP_STRING"),
        (stopped([1, 7], ["one"], " red"), "TEXT"),
        (stopped([1, 7], ["one"], " red ", reason="interrupt"), "STOP_REASON"),  # it would have stopped
        (stopped([1, 7, 2], ["one"], " red "), "STOP_REASON"),  # one token too many
        (stopped([1, 2], ["one"], " red blue"), "STOP_REASON"),  # nothing to stop at
    ],
)
def test_stop_strings_at_odds(record, name):
    verdict = verify(record, ScriptedReplayer(*record["output"]["tokens"]))
    assert (verdict.exit_code, verdict.name) == (11, name)


def test_the_end_token_is_no_text():
    engine = replayer()
    assert output_text(sample(), engine.decode) == " red blue green"
    assert output_text(sample(output=[1, 2], end_tokens=[2]), engine.decode) == " red"


# Features


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({}, set()),
        ({"sampling": {"logit_bias": [(1, 1.0)], "repeat_penalty": 1.1}}, set()),
        ({"sampling": {"dry_multiplier": 0.8}}, {"dry"}),
        ({"sampling": {"dynatemp_range": 0.5}}, {"dynatemp"}),
        ({"sampling": {"mirostat": 2}}, {"mirostat"}),
        ({"sampling": {"samplers": ["top_k", "temperature"]}}, {"sampler_order"}),
        ({"sampling": {"top_n_sigma": 1.0}}, {"top_n_sigma"}),
        ({"sampling": {"typ_p": 0.9}}, {"typ_p"}),
        ({"sampling": {"xtc_probability": 0.5}}, {"xtc"}),
        ({"overrides": {"cache_type_k": "f32"}}, {"kv_f32"}),
        ({"overrides": {"cache_type_v": "q8_0"}}, {"kv_q8_0"}),
        ({"overrides": {"rope_scale": 2.0}}, {"rope"}),
        ({"overrides": {"yarn_orig_ctx": 4096}}, {"rope"}),
        ({"overrides": {"context": 8192}}, {"context_size"}),
        ({"overrides": {"context": 7}, "stop_reason": "context"}, set()),
        ({"grammar": "00" * 32}, {"grammar"}),
        ({"adapters": [FILES[0]._asdict() | {"scale": "1"}]}, {"adapters"}),
    ],
)
def test_features(changes, used):
    record = sample(**changes)
    assert used_features(record) == used <= FEATURES
    require_features(record, used)
    for feature in used:
        with pytest.raises(KtcError) as caught:
            require_features(record, FEATURES - {feature})
        assert caught.value.exit_code == 13


def test_worst_of_several():
    order = [12, 11, 10, 14, 1, 3, 13, 0]
    for index, code in enumerate(order):
        assert worst(order[index:]) == worst(reversed(order[index:])) == code
    assert worst([]) == 0
    assert set(order) == set(VERDICTS)


def test_verdicts_are_plain_values():
    assert json.dumps(verify(edited(sample(), 1, 3), replayer())._asdict())
