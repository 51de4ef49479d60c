"""Verdicts, continued: digests of the logits, the two methods, trails, withheld prompts, challenges."""

from typing import NamedTuple

import pytest

from ktc.digest import token_digest
from ktc.errors import KtcError, SignatureProblem, Unverifiable
from receipts.checks import parse_challenge
from receipts.identity import receipt_id
from receipts.verify import require_challenge, verify
from receipts.withhold import Opening, withhold
from tests.support.sample_receipts import END, Draw, ScriptedReplayer, changed, sample

TOKENS = [1, 2, 3, END]


def edited(record, position, token):
    """One output token changed as with a text editor: the digest stays."""
    return changed(record, f"output.tokens.{position}", token)


def with_output(record, tokens):
    """A careful forger's receipt: digest and all."""
    return record | {"output": {"tokens": tokens, "digest": token_digest(tokens)}}


# Digests of the logits


COMMITS = [bytes([index]) * 8 for index in range(4)]


class Committing(ScriptedReplayer):
    """Draws what it is told, with a digest for each row, and says how it was asked."""

    def __init__(self, *draws, commits=COMMITS):
        super().__init__(*(draws or TOKENS))
        self.commits, self.calls = commits, []

    def replay(self, record, salt=None):
        self.calls.append(("replay", salt, record["prompt"]["tokens"]))
        for draw, commit in zip(super().replay(record), self.commits, strict=False):
            yield Committed(*draw, commit)

    def decode_again(self, record, salt=None):
        for drawn in self.replay(record, salt):
            self.calls[-1] = ("decode", *self.calls[-1][1:])
            yield drawn


class Committed(NamedTuple):
    token: int
    runner_up: int
    gap: float
    commit: bytes


def committed(*commits, **changes):
    return sample(logit_commit=[commit.hex() for commit in commits or COMMITS], **changes)


def test_digests_of_the_logits_that_agree_are_said_to():
    verdict = verify(committed(), Committing())
    assert verdict.exit_code == 0
    assert verdict.sentence == "all 4 tokens are the ones this model draws, and the logits of all 4 agree"


@pytest.mark.parametrize("position", range(4))
def test_logits_that_differ_under_tokens_that_agree(position):
    commits = [b"\xff" * 8 if index >= position else commit for index, commit in enumerate(COMMITS)]
    verdict = verify(committed(*commits), Committing())
    assert (verdict.exit_code, verdict.name, verdict.position) == (10, "LOGITS_DIFFER", position)
    says = f"token {position}: the tokens agree, but the receipt's digest of the logits is not this model's"
    assert verdict.sentence == says and verdict.checked == 4


@pytest.mark.parametrize(
    ("first", "note"),
    [
        (0, "the logits differ from token 0 on"),
        (2, "the logits differ from token 2 on"),
        (3, "the logits up to there agree"),
    ],
)
def test_a_token_counts_more_than_logits_and_they_tell_why(first, note):
    commits = [b"\xff" * 8 if index >= first else commit for index, commit in enumerate(COMMITS)]
    verdict = verify(edited(committed(*commits), 2, 5), Committing())
    assert (verdict.name, verdict.position, verdict.notes) == ("DIFFERS", 2, (note,))
    assert verdict.sentence.endswith(f"apart; {note}")


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_wrong_number_of_digests_is_malformed(count):
    record = changed(sample(), "logit_commit", ["ff" * 8] * count)
    verdict = verify(record, Committing())
    assert (verdict.exit_code, verdict.name) == (11, "LOGIT_COMMIT")


def test_what_the_answer_says_of_itself_counts_more_than_logits():
    record = committed(b"\xff" * 8, *COMMITS[1:])
    assert verify(changed(record, "text", " red"), Committing()).name == "TEXT"
    assert verify(changed(record, "output.digest", "00" * 32), Committing()).name == "OUTPUT_DIGEST"


# Methods and trails


def test_both_methods_find_the_same_and_say_which_it_was():
    for method, by in (("replay", ""), ("decode", " by plain decoding")):
        engine = Committing()
        verdict = verify(sample(), engine, method=method)
        assert (verdict.exit_code, verdict.method, engine.calls[0][0]) == (0, method, method)
        assert verdict.sentence == f"all 4 tokens are the ones this model draws{by}"
        verdict = verify(edited(sample(), 1, 3), Committing(), method=method)
        assert (verdict.exit_code, verdict.position, verdict.method) == (10, 1, method)
        assert f"rerun{by} gives ' blue'" in verdict.sentence
    with pytest.raises(ValueError, match="guess"):
        verify(sample(), Committing(), method="guess")


def test_the_method_is_told_of_what_was_rerun_and_of_nothing_else():
    assert verify(changed(sample(), "text", "x"), ScriptedReplayer(*TOKENS)).method == "replay"
    assert verify(changed(sample(), "profile", "kinetic-9"), ScriptedReplayer(*TOKENS)).method == ""
    assert verify(sample(), ScriptedReplayer(1)).method == ""


def test_a_trail_goes_on_after_the_difference_and_changes_no_verdict():
    record = with_output(sample(), [1, 3, 3, END])
    draws = (1, Draw(2, 3, 0.5), 4, END)
    verdict = verify(record, ScriptedReplayer(*draws), trail=True)
    places = [(place.expected_text, place.got_text, place.gap) for place in verdict.trail]
    assert places == [
        (" red", " red", 0.004),
        (" green", " blue", 0.5),
        (" green", ".", 0.004),
        ("<end>", "<end>", 0.004),
    ]
    assert [(place.expected, place.got) for place in verdict.trail] == [(1, 1), (3, 2), (3, 4), (END, END)]
    assert verdict._replace(trail=()) == verify(record, ScriptedReplayer(*draws))
    assert verify(sample(), ScriptedReplayer(*TOKENS), trail=True).trail == ()
    assert verify(committed(b"\xff" * 8, *COMMITS[1:]), Committing(), trail=True).trail == ()


def test_a_trail_by_plain_decoding_ends_where_it_stops_being_comparable():
    verdict = verify(with_output(sample(), [1, 3, 3, END]), Committing(), method="decode", trail=True)
    assert [(place.expected, place.got) for place in verdict.trail] == [(1, 1), (3, 2)]


def test_what_goes_wrong_after_the_difference_takes_nothing_from_it():
    class Failing(ScriptedReplayer):
        def replay(self, record):
            yield from super().replay(record)
            raise Unverifiable("broken", name="BROKEN")

    record = with_output(sample(), [1, 3, 3, END])
    for engine in (Failing(1, 2), ScriptedReplayer(1, 2)):
        verdict = verify(record, engine, trail=True)
        assert (verdict.name, verdict.position, len(verdict.trail)) == ("DIFFERS", 1, 2)
    assert verify(record, Failing(1), trail=True).name == "BROKEN"


def test_draws_are_closed_when_the_verdict_is_settled():
    closed = []

    class Busy(ScriptedReplayer):
        def replay(self, record):
            try:
                yield from super().replay(record)
            finally:
                closed.append(True)

    engine = Busy(*TOKENS)
    held = engine.replay(sample())  # the test holds on to it, as a traceback would
    engine.replay = lambda record: held
    assert verify(edited(sample(), 0, 3), engine).exit_code == 10
    assert closed == [True]


# Prompts that are kept back


SALT = bytes(range(32, 64))


def withheld(**changes):
    return withhold(sample(**changes), SALT)


def opening(record, tokens=(3, 1, 4), salt=SALT):
    return Opening(receipt_id(record), salt, list(tokens))


def test_a_withheld_prompt_is_rerun_with_its_opening():
    record, engine = withheld(), Committing()
    assert verify(record, engine).name == "WITHHELD" and not engine.calls
    verdict = verify(record, engine, opening=opening(record))
    assert verdict.exit_code == 0
    assert engine.calls == [("replay", SALT, [3, 1, 4])]


@pytest.mark.parametrize(
    "changes", [{"tokens": [3, 1, 5]}, {"tokens": []}, {"salt": bytes(32)}, {"tokens": [3, 1, 4, 4]}]
)
def test_the_opening_of_another_prompt_is_malformed(changes):
    record, engine = withheld(), Committing()
    verdict = verify(record, engine, opening=opening(record, **changes))
    assert (verdict.exit_code, verdict.name, engine.calls) == (11, "OPENING", [])


def test_the_opening_of_another_receipt_is_malformed():
    assert verify(withheld(), Committing(), opening=opening(withheld(clock="noon"))).name == "OPENING"


def test_an_opening_for_a_prompt_that_is_shown_is_anothers():
    verdict = verify(sample(), ScriptedReplayer(*TOKENS), opening=opening(withheld()))
    assert (verdict.exit_code, verdict.name) == (11, "OPENING")


def test_an_opened_prompt_counts_like_any_other():
    record = withheld(overrides={"context": 8}, stop_reason="context", output=[1, 2, 3], text=" red blue green")
    verdict = verify(record, Committing(1, 2, 3), opening=opening(record))
    assert (verdict.exit_code, verdict.name) == (11, "STOP_REASON"), "six tokens don't fill eight places"
    outside = withhold(sample(prompt=[3, 8]), SALT)
    assert verify(outside, Committing(), opening=opening(outside, [3, 8])).name == "TOKEN_RANGE"
    assert verify(withheld(), Committing(), limit=6, opening=opening(withheld())).name == "RERUN_COST"


def test_the_challenge_that_was_asked_for():
    answered = sample() | {"challenge": "ab" * 16}
    require_challenge(answered, "ab" * 16)
    for record, says in ((answered, f"answers another challenge, {'ab' * 16},"), (sample(), "answers no challenge,")):
        with pytest.raises(SignatureProblem, match=says) as caught:
            require_challenge(record, "cd" * 16)
        assert caught.value.name == "CHALLENGE"


@pytest.mark.parametrize("text", ["", "ab" * 15, "ab" * 65, "a" * 33, "gg" * 16, " " + "ab" * 16])
def test_challenges_that_are_none(text):
    with pytest.raises(KtcError):
        parse_challenge(text)
    assert parse_challenge("AB" * 16) == "ab" * 16
