"""Receipts made up for tests, and an engine that draws what it is told."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from receipts.features import FEATURES
from receipts.schema import Record, new_record

SEED = bytes(range(32))
"""A secret key, known to everybody."""

PIECES = [b"<end>", b" red", b" blue", b" green", b".", b"\xf0\x9f", b"\x98\xb8", b" one two"]
"""What the token ids of the made-up vocabulary decode to; the first is a control token, and no text."""

END = 0


class File(NamedTuple):
    name: str
    size: int
    blake3: str
    sha256: str


FILES = (File("tiny.gguf", 123_456, "ab" * 32, "cd" * 32),)


def sample(**changes: Any) -> Record:
    """A receipt of " red blue green" that ended by itself; ``changes`` are arguments of ``new_record``."""
    arguments: dict[str, Any] = {
        "profile": "kinetic-1",
        "architecture": "llama",
        "files": FILES,
        "prompt": [3, 1, 4],
        "output": [1, 2, 3, END],
        "text": " red blue green",
        "stop_reason": "end",
        "end_tokens": [END],
        "sampling": {"seed": 7, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
        "claims": {"engine_version": "0.1.0", "device_class": "cpu", "time": "2026-03-14T15:09:26Z"},
    }
    return new_record(**arguments | changes)


def full_sample() -> Record:
    """A receipt with something in every field that can hold something alongside the others."""
    record = sample(
        sampling={"seed": 7, "temperature": 0.8, "logit_bias": [(2, 1.5), (5, float("-inf"))]},
        stop_strings=[" yellow"],
        overrides={"rope_freq_base": 10_000.0, "rope_scaling": "yarn", "yarn_ext_factor": 1.0},
        adapters=[FILES[0]._asdict() | {"name": "lora.gguf", "scale": "0.5"}],
        bundle="01" * 32,
        clock="2026-03-14T15:09:26",
        grammar="02" * 32,
        logit_commit=["03" * 8] * 4,
        commitments=[{"name": "trace", "digest": "04" * 32}],
        certificate="05" * 32,
        ext={"note": "for a test"},
    )
    record["sampling"]["dry_sequence_breakers"] = ["\n"]
    return record


def changed(record: Record, path: str, value: Any) -> Record:
    """A copy with one dotted path set, such as ``model.files.0.size``."""
    copied = copy.deepcopy(record)
    *parents, last = path.split(".")
    table: Any = copied
    for name in parents:
        table = table[int(name) if isinstance(table, list) else name]
    table[int(last) if isinstance(table, list) else last] = value
    return copied


class Draw(NamedTuple):
    token: int
    runner_up: int = 2
    gap: float = 0.004


class ScriptedReplayer:
    """Draws the tokens it is given, whatever the receipt says."""

    profile = "kinetic-1"
    architecture = "llama"
    files: Sequence[File] = FILES
    vocab_size = len(PIECES)
    end_tokens = frozenset([END])
    context = 7
    features = FEATURES

    def __init__(self, *draws: Draw | int) -> None:
        self.draws = [draw if isinstance(draw, Draw) else Draw(draw) for draw in draws]
        self.asked = 0

    def replay(self, record: Record) -> Iterator[Draw]:
        for draw in self.draws:
            self.asked += 1
            yield draw

    def decode(self, tokens: Sequence[int]) -> bytes:
        return b"".join(PIECES[token] for token in tokens if token != END)

    def piece(self, token: int) -> bytes:
        return PIECES[token]
