"""Two receipts side by side: every field is the question's, the answer's or a claim, as FORMAT.md says."""

import json
import re
from pathlib import Path

import pytest

from ktc.digest import token_digest
from ktc.errors import KtcError
from receipts.diff import ANSWER, CLAIM, QUESTION, Difference, as_json, compare, differences, page, part_of, parting_of
from receipts.identity import question_id
from receipts.schema import Record
from receipts.withhold import withhold
from tests.support.sample_receipts import changed, full_sample, sample

FORMAT = (Path(__file__).resolve().parents[2] / "FORMAT.md").read_text(encoding="utf-8")
PARTS = {"Q": QUESTION, "A": ANSWER, "C": CLAIM}
NAMES = ("a", "b")


def told(first, second):
    return page(compare(first, second), (first, second), NAMES)


def documented():
    """Field and part of every row of FORMAT.md's table of fields."""
    section = FORMAT[FORMAT.index("\n## Fields\n") :]
    section = section[: section.index("\n## ", 5)]
    rows = re.findall(r"^\| `([a-z0-9_.\[\]]+)` \| [^\n]*? \| ([QAC]) \| ", section, re.MULTILINE)
    assert len(rows) > 70
    return rows


@pytest.mark.parametrize(("field", "part"), documented())
def test_parts_are_those_of_the_format(field, part):
    path = "ext.note" if field == "ext" else field.replace("[]", "[0]")
    assert part_of(Difference(path, ["x"], ["y"]), set()) == PARTS[part]


def test_a_critical_extension_is_part_of_the_question():
    found = Difference("ext.note", "x", "y")
    assert (part_of(found, {"note"}), part_of(found, {"other"})) == (QUESTION, CLAIM)


def alternatives(record: Record):
    """For every leaf, a record that differs in it alone."""
    everything = Record(json.loads(json.dumps(record)))
    for path, value in leaves(everything, ""):
        number = value + 1 if type(value) is int else 0
        for other in (number, "ee" * 32, "0.125", "7", ["ee" * 8], ["x"], [1, 9], {"x": "y"}):
            if type(other) is not type(value):
                continue
            try:
                copied = changed(record, path, other)
                found = differences(record, copied)
            except (KtcError, ValueError, TypeError, KeyError):
                continue
            if len(found) == 1:
                yield path, copied, found[0]
                break


def leaves(value, path):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{index}")
    else:
        yield path, value


def test_the_question_differs_exactly_if_its_id_does():
    record = full_sample()
    tried = {QUESTION: 0, ANSWER: 0, CLAIM: 0}
    for path, other, found in alternatives(record):
        if path in ("crit", "prompt.tokens"):  # hashed through what they name, and through their digest
            continue
        part = part_of(found, set())
        tried[part] += 1
        assert (question_id(other) != question_id(record)) == (part == QUESTION), path
        result = compare(record, other)
        assert result.exit_code == {QUESTION: 13, ANSWER: 10, CLAIM: 0}[part], path
    assert tried[QUESTION] > 50 and tried[ANSWER] == 4 and tried[CLAIM] > 12, tried


def test_the_same():
    result = compare(sample(), sample())
    assert (result.exit_code, result.name, result.position, result.parting) == (0, "IDENTICAL", -1, None)
    assert result.question == result.answer == result.claims == []
    assert told(sample(), sample()) == "IDENTICAL: one question, one answer: 4 tokens, ended by an end token\n"


def test_spelling_is_no_difference():
    assert differences(sample(), changed(sample(), "sampling.temperature", "0.80")) == []


def test_the_first_token_that_differs_is_named_with_the_text_around_it():
    first, second = sample(), sample(output=[1, 2, 4, 5, 0], text=" red blue.x")
    result = compare(first, second)
    assert (result.exit_code, result.position, result.first_token, result.second_token) == (10, 2, 3, 4)
    assert result.parting == (" red blue", " green", ".x")
    text = told(first, second)
    assert text.startswith("DIFFERS: one question, two answers\n")
    assert "answer    token 2: id 3 in a, id 4 in b\n" in text
    assert "text      a  ... red blue[ green]...\n" in text


def test_an_answer_that_is_the_beginning_of_the_other():
    first = sample(output=[1, 2], text=" red blue", stop_reason="interrupt")
    result = compare(first, sample())
    assert (result.exit_code, result.position, result.first_token, result.second_token) == (10, 2, -1, 3)
    text = told(first, sample())
    assert "one is interrupted, and is the beginning of the other" in text
    assert "answer    token 2: its end in a, id 3 in b\n" in text
    assert "answer    stop.reason: 'interrupt' in a, 'end' in b\n" in text
    assert "beginning" not in told(first, sample(output=[5, 0], text="x"))


def test_a_stop_reason_alone_makes_another_answer():
    first, second = (sample(output=[1], text=" red", stop_reason=why, max_tokens=1) for why in ("length", "interrupt"))
    assert compare(first, second).exit_code == 10 and compare(first, second).position == -1


def test_a_text_alone_makes_another_answer():
    result = compare(sample(), sample(text=" red blue violet"))
    assert (result.exit_code, result.position) == (10, -1) and result.parting == (" red blue ", "green", "violet")


def test_digests_of_logits_count_where_both_receipts_have_them():
    rows = ["01" * 8, "02" * 8, "03" * 8, "04" * 8]
    first, second = sample(logit_commit=rows), sample(logit_commit=[*rows[:2], "ff" * 8, rows[3]])
    result = compare(first, second)
    assert (result.exit_code, result.position) == (10, -1)
    assert "the digests of the logits differ from token 2 on" in told(first, second)
    result = compare(first, sample())
    assert result.exit_code == 0 and [one.field for one in result.claims] == ["logit_commit"]


@pytest.mark.parametrize("same_answer", [True, False])
def test_two_questions_are_never_10_and_never_0(same_answer):
    other = sample(prompt=[3, 1], **({} if same_answer else {"output": [5, 0], "text": "?"}))
    result = compare(sample(), other)
    assert (result.exit_code, result.name) == (13, "QUESTION")
    assert [one.field for one in result.question] == ["prompt.tokens"]
    assert ("they are the same" if same_answer else "they differ too") in told(sample(), other)


def test_a_withheld_prompt_is_another_question():
    result = compare(sample(), withhold(sample(), bytes(32)))
    assert result.exit_code == 13
    assert [one.field for one in result.question] == ["prompt.tokens", "prompt.commitment"]


def test_claims_are_listed_and_change_nothing():
    other = changed(changed(sample(), "claims.time", ""), "model.files.0.name", "other.gguf")
    result = compare(sample(), other)
    assert result.exit_code == 0 and [one.field for one in result.claims] == ["model.files[0].name", "claims.time"]
    assert "claim     claims.time: '2026-03-14T15:09:26Z' in a, '' in b\n" in told(sample(), other)


def test_entries_that_only_one_has():
    other = sample(commitments=[{"name": "trace", "digest": "04" * 32}])
    found = compare(sample(), other).claims
    assert found[0] == ("commitments[0].name", None, "trace")
    assert "claim     commitments[0].name: absent in a, 'trace' in b\n" in told(sample(), other)


def test_many_differences_are_counted():
    biases = [(token, 1.0) for token in range(40)]
    text = told(sample(), sample(sampling={"logit_bias": biases}))
    assert text.count("\nquestion ") == 21 and "more fields\n" in text


def test_hostile_text_steers_no_terminal():
    first, second = (sample(text=f"\x1b[2J\n{rest}") for rest in ("red", "\nIDENTICAL: \u202eevil"))
    lines = told(first, second).splitlines()
    assert lines[0].startswith("DIFFERS") and not any("\x1b" in line or "\u202e" in line for line in lines)
    assert not any(line.startswith("IDENTICAL") for line in lines)


@pytest.mark.parametrize(
    ("first", "second", "at"), [("", "", -1), ("ab", "ab", -1), ("ab", "ac", 1), ("ab", "abc", 2), ("", "a", 0)]
)
def test_where_sequences_part(first, second, at):
    assert parting_of(first, second) == parting_of(second, first) == at


def test_json():
    table = json.loads(json.dumps(as_json(compare(sample(), sample(output=[1, 0], text=" red")))))
    assert (table["exit_code"], table["position"], table["first_token"], table["second_token"]) == (10, 1, 2, 0)
    assert {one["field"] for one in table["answer"]} == {"output.tokens", "text"}
    assert table["parting"] == {"before": " red", "first": " blue green", "second": ""}
    assert table["question"] == [] and token_digest([1, 0]) not in json.dumps(table)
