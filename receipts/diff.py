"""Two receipts side by side: is it one question, is it one answer, and where do they part?

Neither is rerun. Fields are told apart as FORMAT.md does (part Q, A or C): the
question, the answer, and what is claimed or attached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ktc.canonical import show
from ktc.errors import Unverifiable
from ktc.fields import Field, ListOf, Table, TextMap
from receipts.errors import DIFFERS, IDENTICAL
from receipts.identity import question_id
from receipts.schema import RECEIPT, Record
from receipts.show import ENDINGS, counted
from receipts.terminal import printable

QUESTION, ANSWER, CLAIM = "question", "answer", "claim"

_QUESTION = (
    "profile",
    "model.architecture",
    "model.files[",
    "adapters[",
    "overrides.",
    "prompt.",
    "grammar",
    "sampling.",
    "completion_index",
    "max_tokens",
    "stop.strings",
    "stop.end_tokens",
    "crit",
)
_ANSWER = ("output.", "text", "stop.reason", "logit_commit")

_AROUND = 30
"""Characters shown on each side of the place where two texts part."""

_ABSENT = (None, None)
"""Of an entry that there isn't: no packed form is None."""

_LISTED = 20
"""Fields listed at most, for people."""


class Difference(NamedTuple):
    """One field that two receipts fill differently. A value is None where there is no such entry."""

    field: str
    first: Any
    second: Any


class Parting(NamedTuple):
    """The place where two texts part: what both say before it, what each says after it."""

    before: str
    first: str
    second: str


class Comparison(NamedTuple):
    """``exit_code``: 0 one answer to one question, 10 two answers to one question, 13 two questions."""

    exit_code: int
    name: str
    question: list[Difference]
    answer: list[Difference]
    claims: list[Difference]
    position: int
    """Of the first output token that differs, counted from 0; -1 if none does."""
    first_token: int
    """Its id; -1 where the answer ended before it, or none differs."""
    second_token: int
    parting: Parting | None
    """None where the texts are the same."""


def compare(first: Record, second: Record, signers: tuple[Sequence[str], Sequence[str]] = ((), ())) -> Comparison:
    """Compare two receipts whose form was checked. ``signers``: key ids of those whose signatures hold, for each."""
    parts: dict[str, list[Difference]] = {QUESTION: [], ANSWER: [], CLAIM: []}
    critical = {*first["crit"], *second["crit"]}
    for found in differences(first, second):
        parts[part_of(found, critical)].append(found)
    parts[CLAIM] += _signed_alone(*signers)
    exit_code, name = IDENTICAL, "IDENTICAL"
    if question_id(first) != question_id(second):
        exit_code, name = Unverifiable.exit_code, "QUESTION"
    elif parts[ANSWER]:
        exit_code, name = DIFFERS, "DIFFERS"
    tokens = first["output"]["tokens"], second["output"]["tokens"]
    at = parting_of(*tokens)
    ids = [sequence[at] if 0 <= at < len(sequence) else -1 for sequence in tokens]
    parting = _parting(first["text"], second["text"])
    return Comparison(exit_code, name, parts[QUESTION], parts[ANSWER], parts[CLAIM], at, ids[0], ids[1], parting)


def differences(first: Record, second: Record) -> list[Difference]:
    """Every field that differs, in the schema's order; digests of token arrays speak for no field of their own."""
    left, right = dict(_leaves(RECEIPT, first, "")), dict(_leaves(RECEIPT, second, ""))
    return [
        Difference(path, left.get(path, _ABSENT)[1], right.get(path, _ABSENT)[1])
        for path in dict.fromkeys([*left, *right])
        if path not in ("prompt.digest", "output.digest") and left.get(path, _ABSENT)[0] != right.get(path, _ABSENT)[0]
    ]


def _signed_alone(first: Sequence[str], second: Sequence[str]) -> Iterator[Difference]:
    """A difference for every key that signed only one of the two."""
    yield from (Difference("signatures", key, None) for key in first if key not in second)
    yield from (Difference("signatures", None, key) for key in second if key not in first)


def part_of(found: Difference, critical: set[str]) -> str:
    """Which part of a receipt a field belongs to. ``critical``: extensions that either receipt declares so."""
    path = found.field
    if path.startswith(("model.files[", "adapters[")) and path.endswith(".name"):
        return CLAIM
    if path.startswith("ext."):
        return QUESTION if path.removeprefix("ext.") in critical else CLAIM
    if path == "logit_commit" and not (found.first and found.second):
        return CLAIM  # one receipt has no digests, so there are none to compare
    if path.startswith(_QUESTION):
        return QUESTION
    return ANSWER if path.startswith(_ANSWER) else CLAIM


def parting_of(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Index of the first entry that differs, counted from 0; where one ends, the index after its end; else -1."""
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return -1 if len(first) == len(second) else min(len(first), len(second))


def _leaves(field: Field, value: Any, path: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Dotted path of every value, with its packed form (which has one spelling) and its JSON form."""
    if isinstance(field, Table):
        for name, inner in field.fields.items():
            yield from _leaves(inner, value[name], f"{path}.{name}" if path else name)
    elif isinstance(field, ListOf) and isinstance(field.item, Table):
        for index, item in enumerate(value):
            yield from _leaves(field.item, item, f"{path}[{index}]")
    elif isinstance(field, TextMap):
        for name, text in value.items():
            yield f"{path}.{name}", (text, text)
    else:
        yield path, (field.pack(value), value)


def _parting(first: str, second: str) -> Parting | None:
    if first == second:
        return None
    at = parting_of(first, second)
    before = first[max(at - _AROUND, 0) : at]
    return Parting(before, first[at : at + _AROUND], second[at : at + _AROUND])


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""
    table = found._asdict()
    for part in ("question", "answer", "claims"):
        table[part] = [difference._asdict() for difference in table[part]]
    return table | {"parting": found.parting._asdict() if found.parting else None}


def page(found: Comparison, receipts: tuple[Record, Record], names: tuple[str, str]) -> str:
    """The comparison for people; ``names`` are what to call the two."""
    names = (printable(names[0]), printable(names[1]))
    lines = [_verdict(found, receipts)]
    lines += _listed("question", found.question, names)
    if found.answer:
        lines += _answers(found, receipts, names)
    lines += _listed("claim", found.claims, names)
    return "".join(f"{line}\n" for line in lines)


def _verdict(found: Comparison, receipts: tuple[Record, Record]) -> str:
    answers = "two answers" if found.answer else "one answer"
    if found.name == "QUESTION":
        same = "differ too" if found.answer else "are the same"
        return f"UNVERIFIABLE (QUESTION): two questions, so the answers can't be held against each other; they {same}"
    if not found.answer:
        tokens, reason = receipts[0]["output"]["tokens"], receipts[0]["stop"]["reason"]
        return f"IDENTICAL: one question, {answers}: {counted(len(tokens), 'token')}, {ENDINGS[reason]}"
    return f"DIFFERS: one question, {answers}{_beginning(found, receipts)}"


def _beginning(found: Comparison, receipts: tuple[Record, Record]) -> str:
    """Worth saying: an interrupted answer that agrees as far as it goes."""
    if not any(record["stop"]["reason"] == "interrupt" for record in receipts):
        return ""
    shorter = min((record["output"]["tokens"] for record in receipts), key=len)
    return "; one is interrupted, and is the beginning of the other" if found.position == len(shorter) else ""


def _answers(found: Comparison, receipts: tuple[Record, Record], names: tuple[str, str]) -> Iterator[str]:
    at = found.position
    if at >= 0:
        ids = [f"id {token}" if token >= 0 else "its end" for token in (found.first_token, found.second_token)]
        yield f"answer    token {at}: {ids[0]} in {names[0]}, {ids[1]} in {names[1]}"
    if found.parting:
        yield from _parted(found.parting, names)
    elif at >= 0:
        yield "answer    the texts are the same"
    yield from _listed("answer", [one for one in found.answer if one.field == "stop.reason"], names)
    commits = [record["logit_commit"] for record in receipts]
    if (row := parting_of(*commits)) >= 0 and all(commits):
        yield f"answer    the digests of the logits differ from token {row} on"


def _parted(parting: Parting, names: tuple[str, str]) -> Iterator[str]:
    width = max(map(len, names))
    for name, after in zip(names, (parting.first, parting.second), strict=True):
        yield f"text      {name:{width}}  ...{printable(parting.before)}[{printable(after)}]..."


def _listed(label: str, differences: Sequence[Difference], names: tuple[str, str]) -> Iterator[str]:
    for one in differences[:_LISTED]:
        yield f"{label:9} {one.field}: {_value(one.first)} in {names[0]}, {_value(one.second)} in {names[1]}"
    if (more := len(differences) - _LISTED) > 0:
        yield f"{label:9} and {counted(more, 'more field')}"


def _value(value: Any) -> str:
    if value is None:
        return "absent"
    return f"{len(value):,} entries" if isinstance(value, list) and len(value) > 8 else show(value, 70)
