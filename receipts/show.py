"""What a receipt says, for people: one row per thing said, and nothing a hostile text could steer a terminal with.

Nothing is rerun here and no key is pinned, so nothing is vouched for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from receipts.encode import Receipt
from receipts.identity import question_id, receipt_id
from receipts.schema import OVERRIDES, PLAIN_ATTACHMENTS, PLAIN_OVERRIDES, PLAIN_SAMPLING, SAMPLING, Record
from receipts.terminal import printable

ENDINGS = {
    "end": "ended by an end token",
    "stop": "ended by a stop string",
    "length": "ended by max_tokens",
    "context": "ended by a full context",
    "interrupt": "interrupted: the beginning of a longer one",
}
"""Stop reasons in words."""

_APART = frozenset(["seed", "rng"])
"""Settings that are always there, or the same in every receipt."""


def counted(number: int, word: str) -> str:
    """``1 token``, ``4,000 tokens``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def settings(record: Record) -> dict[str, Any]:
    """What was asked for beyond the "off" value: sampling settings and overrides, in the spelling of the JSON form."""
    found = {}
    for table, plain in ((SAMPLING, PLAIN_SAMPLING), (OVERRIDES, PLAIN_OVERRIDES)):
        given = record["sampling" if table is SAMPLING else "overrides"]
        for name, field in table.fields.items():
            # Packed, because one decimal has many spellings.
            if name not in _APART and field.pack(given[name]) != field.pack(plain[name]):
                found[name] = given[name]
    return found


def as_json(receipt: Receipt, signers: Sequence[str], signed: str) -> dict[str, Any]:
    """The receipt file's content and the names that others know it by. ``signers`` are key ids."""
    return {
        "receipt_id": receipt_id(receipt.record),
        "question_id": question_id(receipt.record),
        "key_ids": list(signers),
        "signature": signed,
        "receipt": receipt.record,
        "signatures": receipt.signatures,
    }


def page(receipt: Receipt, signed: str) -> str:
    """The whole receipt as lines of label and text. ``signed`` is what to say of its signatures."""
    record = receipt.record
    rows = [*_question(record), *_answer(record), ("signed", signed), *_text(record["text"])]
    width = max(len(label) for label, _ in rows)
    return "".join(f"{label:{width}}  {printable(text)}".rstrip() + "\n" for label, text in rows)


def _question(record: Record) -> Iterator[tuple[str, str]]:
    yield "receipt", receipt_id(record)
    yield "question", question_id(record)
    yield "profile", record["profile"]
    for number, file in enumerate(record["model"]["files"]):
        kind = "" if number else f"{record['model']['architecture']}, "
        yield "" if number else "model", f"{file['name']} ({kind}{file['size']:,} bytes, BLAKE3 {file['blake3']})"
    for adapter in record["adapters"]:
        yield "adapter", f"{adapter['name']} (scale {adapter['scale']}, BLAKE3 {adapter['blake3']})"
    yield "prompt", _prompt(record["prompt"])
    yield "settings", _settings(record)
    yield "seed", record["sampling"]["seed"] + (" (from its challenge)" if record["challenge"] else "")
    if record["completion_index"]:
        yield "index", f"answer {record['completion_index']} to this question and seed, counted from 0"
    if record["max_tokens"] >= 0:
        yield "limit", counted(record["max_tokens"], "token")
    if record["stop"]["strings"]:
        yield "stops at", ", ".join(map(repr, record["stop"]["strings"]))
    if record["stop"]["end_tokens"]:
        yield "end tokens", ", ".join(map(str, record["stop"]["end_tokens"]))
    if record["grammar"]:
        yield "grammar", record["grammar"]


def _prompt(prompt: dict[str, Any]) -> str:
    if prompt["commitment"]:
        return f"withheld (commitment {prompt['commitment']})"
    return counted(len(prompt["tokens"]), "token")


def _settings(record: Record) -> str:
    found = settings(record)
    is_greedy = "temperature" not in found
    words = ["temperature 0 (the highest logit)"] if is_greedy else []
    return ", ".join(words + [f"{name} {_value(value)}" for name, value in found.items()])


def _value(value: Any) -> str:
    """Short for a line; what is long or nested is counted."""
    if not isinstance(value, list):
        return str(value)
    if value and isinstance(value[0], dict):
        return f"of {counted(len(value), 'token')}"
    return " ".join(map(repr, value))


def _answer(record: Record) -> Iterator[tuple[str, str]]:
    yield "answer", f"{counted(len(record['output']['tokens']), 'token')}, {ENDINGS[record['stop']['reason']]}"
    claims = [f"{name} {value}" for name, value in record["claims"].items() if value]
    claims += [f"{name} {record[name]}" for name in ("clock", "bundle") if record[name]]
    for number, claim in enumerate(claims):
        yield "" if number else "claimed", claim
    for number, attached in enumerate(_attached(record)):
        yield "" if number else "attached", attached


def cited(record: Record) -> list[str]:
    """What a receipt says of the machine that made it. Whether that is so, the certificate shows, not a rerun."""
    name = record["certificate"]
    return [f"it cites the device certificate {name[:16]}..."] if name else []


def _attached(record: Record) -> Iterator[str]:
    parent = record["parent"]
    if record["challenge"]:
        yield f"challenge {record['challenge']}"
    if record["logit_commit"]:
        yield f"digests of the logits of {counted(len(record['logit_commit']), 'token')}"
    if parent != PLAIN_ATTACHMENTS["parent"]:
        yield f"place {parent['index'] + 1:,} of {parent['count']:,} in the batch {parent['root']}"
    if record["certificate"]:
        yield f"certificate {record['certificate']}"
    for entry in record["commitments"]:
        yield f"commitment {entry['name']} {entry['digest']}"
    for name, text in record["ext"].items():
        yield f"extension {name}{' (critical)' if name in record['crit'] else ''}: {text!r}"


def _text(text: str) -> Iterator[tuple[str, str]]:
    """Its lines; each after the first has no label, so that none passes for another row."""
    for number, line in enumerate(text.split("\n")):
        yield "" if number else "text", line
