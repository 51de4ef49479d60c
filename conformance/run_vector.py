"""Runs one test vector on ``receipts`` and ``ktc`` alone: no engine, no model, no network.

    outcome = run_vector(vector)
    assert (outcome.exit_code, outcome.name) == (expect["exit_code"], expect["name"])

What a model would draw is written in the vector, so any verifier of receipts,
in any language, can be judged by the same files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conformance.vector_files import Vector, default_engine, file_bytes
from ktc import limits
from ktc.errors import KtcError
from receipts.encode import read_receipt
from receipts.features import FEATURES
from receipts.identity import question_id, receipt_id
from receipts.schema import Record
from receipts.sign import check_signatures

NOW = "2026-06-01T00:00:00Z"
"""When a vector is judged that does not say when."""


class Outcome(NamedTuple):
    """What a verifier says of one vector's file."""

    exit_code: int
    name: str
    sentence: str = ""
    position: int = -1
    """Of a DIFFERS: the first differing output token."""
    signature: str = ""
    """What the signatures are worth, in words."""
    receipt_id: str = ""
    question_id: str = ""


def run_vector(vector: Vector) -> Outcome:
    """The verdict on a vector's file under its options, as ``kinetic verify-receipt`` would give it."""
    return run_file(file_bytes(vector["file"]), vector)


def run_file(data: bytes, vector: Vector) -> Outcome:
    """The same for other bytes under the vector's options and engine."""
    from receipts.verify import verify
    from receipts.withhold import read_opening

    options = vector.get("options", {})
    try:
        record, entries = read_receipt(data)
        signature = _judge(options, check_signatures(record, entries))
        _require_challenge(options, record)
        opening = read_opening(options["opening"].encode("utf-8")) if "opening" in options else None
    except KtcError as error:
        return Outcome(error.exit_code, error.name, str(error))
    limit = options.get("limit", limits.MAX_TOKENS)
    verdict = verify(record, Scripted(vector.get("engine", {})), limit=limit, opening=opening)
    ids = receipt_id(record), question_id(record)
    return Outcome(verdict.exit_code, verdict.name, verdict.sentence, verdict.position, signature, *ids)


def _judge(options: Mapping[str, Any], signers: Sequence[str]) -> str:
    """The standing of the signatures; raises SignatureProblem where trust is asked for and missing."""
    from ktc.trust import Trust, judge, parse_time, pinned

    trust: Trust | None = None
    if "keys" in options:
        trust = pinned({name: bytes.fromhex(key) for name, key in options["keys"].items()}, "receipt")
    elif "trust" in options:
        trust = read_trust_of(options["trust"])
    return judge(trust, "receipt", signers, parse_time(options.get("at", NOW))).sentence


def read_trust_of(file: str | Mapping[str, Any]) -> Any:
    """The trust file of a vector, which is its text, or a recipe where it is long."""
    from ktc.trust import read_trust

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trust.toml"
        path.write_bytes(file.encode("utf-8") if isinstance(file, str) else file_bytes(dict(file)))
        return read_trust(path)


def _require_challenge(options: Mapping[str, Any], record: Record) -> None:
    from receipts.verify import require_challenge

    if "challenge" in options:
        require_challenge(record, options["challenge"])


class Drawn(NamedTuple):
    """One draw as a vector writes it."""

    token: int
    runner_up: int = -1
    gap: float = 1.0
    commit: bytes = b""


class Identity(NamedTuple):
    """A model file as an engine knows it."""

    name: str
    size: int
    blake3: str
    sha256: str


class Scripted:
    """An engine that draws what its script says, whatever the receipt says."""

    context = limits.MAX_TOKENS
    """Of a model; a verdict only notes that an answer filled another."""

    def __init__(self, changes: Mapping[str, Any]) -> None:
        script = default_engine() | dict(changes)
        self.profile: str = script["profile"]
        self.architecture: str = script["architecture"]
        self.files: Sequence[Identity] = [Identity(**file) for file in script["files"]]
        self.end_tokens: frozenset[int] = frozenset(script["end_tokens"])
        self.features = FEATURES - frozenset(script["lacks"])
        self._draws = [_drawn(draw) for draw in script["draws"]]
        self._pieces = [bytes.fromhex(piece) for piece in script["pieces"]]
        self._control = frozenset(script["control"])
        self.vocab_size = len(self._pieces)

    def replay(self, record: Record, salt: bytes | None = None) -> Iterator[Drawn]:
        yield from self._draws

    decode_again = replay

    def decode(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._pieces[token] for token in tokens if token not in self._control)

    def piece(self, token: int) -> bytes:
        return self._pieces[token]


def _drawn(draw: Mapping[str, Any]) -> Drawn:
    return Drawn(**{**draw, "commit": bytes.fromhex(draw.get("commit", ""))})
