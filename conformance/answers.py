"""Questions that cases ask, and the measure for what a speed-up answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from blake3 import blake3

from conformance.case import DoesNotHold, Evidence
from conformance.setting import Subject
from kinetic.types import Request, Sampling, Step

SETTINGS = {
    "greedy": Sampling(temperature=0),
    "drawn": Sampling(temperature=0.8, seed=7),
    "hot": Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=2**64 - 1),
    "penalised": Sampling(temperature=0.8, seed=1, repeat_penalty=1.3, presence_penalty=0.2, repeat_last_n=-1),
}

PROMPT, ANSWER = 20, 24
"""Tokens."""


def request(subject: Subject, sampling: Sampling, prompt: int = PROMPT, answer: int = ANSWER) -> Request:
    """A question to a model: its first tokens, without an end token, so that the answer has its whole length."""
    return Request(tuple(subject.tokens[:prompt]), sampling, answer)


def plain_steps(subject: Subject, asked: Request) -> list[Step]:
    """Plain decoding: the prompt too is read one row at a time, on one thread, with nothing kept from before."""
    if asked not in subject.answers:
        subject.answers[asked] = subject.probe().answer(asked, rows_at_once=1)
    return subject.answers[asked]


def tokens_digest(tokens: Sequence[int]) -> str:
    """BLAKE3 of tokens, each as four bytes, little-endian; hex."""
    return blake3(b"".join(token.to_bytes(4, "little") for token in tokens)).hexdigest()


def require_same_steps(found: Sequence[Step], expected: Sequence[Step], how: str) -> None:
    """Tokens, runners-up, gaps and digests of logits: a step is the same or it is not."""
    for number, (one, other) in enumerate(zip_longest(found, expected)):
        if one is None or other is None:
            raise DoesNotHold(f"{len(found)} tokens {how}, and {len(expected)} of plain decoding")
        if one.token != other.token:
            raise DoesNotHold(f"token {number} {how} is {one.token}, and {other.token} of plain decoding")
        if one != other:
            raise DoesNotHold(f"the logits of token {number} {how} have other bits than those of plain decoding")


def evidence(steps: Sequence[Step]) -> Evidence:
    return Evidence(
        f"{len(steps)} tokens and the logits they were drawn from, bit for bit those of plain decoding",
        tokens_digest([step.token for step in steps]),
    )
