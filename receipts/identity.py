"""What is hashed: canonical bytes, ``receipt_id``, ``question_id``, and the seed of a challenge.

All functions take a record whose form was checked (``schema.check_form``).
"""

from __future__ import annotations

from typing import Any

from ktc import canonical, digest
from ktc.canonical import Value
from receipts.schema import ADAPTER, OVERRIDES, RECEIPT, SAMPLING, Record


def canonical_bytes(record: Record) -> bytes:
    """The one byte string of a receipt: deterministic CBOR of its packed form."""
    return canonical.encode(RECEIPT.pack(record))


def receipt_id(record: Record) -> str:
    """Hex name of the whole receipt; signatures are no part of it."""
    return digest.digest(digest.RECEIPT, canonical_bytes(record)).hex()


def question_id(record: Record) -> str:
    """Hex name of the inputs alone: equal for two answers to one question."""
    return digest.digest(digest.QUESTION, canonical.encode(_question(record))).hex()


def challenge_seed(record: Record) -> str:
    """The seed that ``record['challenge']`` and the rest of the question give, as decimal text.

    First 8 bytes, little-endian, of the digest over one byte of length, the
    challenge, and the question without its seed and without
    ``overrides.context``, which is known only when the answer has ended.
    """
    question = _question(record)
    del question["sampling"]["seed"], question["overrides"]["context"]
    challenge = bytes.fromhex(record["challenge"])
    head = bytes([len(challenge)]) + challenge
    return str(int.from_bytes(digest.digest(digest.CHALLENGE, head, canonical.encode(question))[:8], "little"))


def _question(record: Record) -> dict[str, Any]:
    """Packed inputs: everything that determines the answer and nothing that doesn't (names of files, for one)."""
    prompt, stop = record["prompt"], record["stop"]
    return {
        "profile": record["profile"],
        "architecture": record["model"]["architecture"],
        "files": [_nameless(file) for file in record["model"]["files"]],
        "adapters": [_nameless(adapter) for adapter in record["adapters"]],
        "overrides": OVERRIDES.pack(record["overrides"]),
        "prompt": bytes.fromhex(prompt["digest"] or prompt["commitment"]),
        "withheld": prompt["commitment"] != "",
        "grammar": bytes.fromhex(record["grammar"]),
        "sampling": SAMPLING.pack(record["sampling"]),
        "completion_index": record["completion_index"],
        "max_tokens": record["max_tokens"],
        "stop_strings": list(stop["strings"]),
        "end_tokens": list(stop["end_tokens"]),
        "extensions": {name: record["ext"][name] for name in record["crit"]},
    }


def _nameless(file: dict[str, Any]) -> Value:
    """A file or adapter packed without its name: a renamed file is the same file."""
    return {name: ADAPTER.fields[name].pack(value) for name, value in file.items() if name != "name"}
