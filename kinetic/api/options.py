"""What a caller may ask for, and how it becomes settings of the engine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from kinetic.errors import UsageError
from kinetic.types import Sampling
from ktc import limits

Message = Mapping[str, Any]
"""``{"role": "user", "content": "..."}``; what else it may hold is the chat template's business."""


class Options(TypedDict, total=False):
    """What ``generate``, ``stream`` and ``chat`` take besides the prompt. All are optional.

    Sampling: see kinetic.types.Sampling. ``seed`` None or -1 draws a fresh one,
    which the completion reports. ``logit_bias`` maps token ids to what is added.
    """

    system: str
    """System message put before a prompt that is a text."""
    raw: bool
    """Complete the text as it is, without the model's chat template."""
    parse_special: bool
    """Let the caller's texts spell control tokens; otherwise such spellings are plain text."""
    max_tokens: int
    """-1: until an end token or a full context; -2: until the context is full, end tokens or not."""
    stop: str | Sequence[str]
    """Texts that end the answer; they aren't part of it."""
    template_time: str
    """Clock value for templates that ask for one, as in 2026-03-14T15:09:26; by default now, local time."""
    completion_index: int
    """Number of this answer among several to one question with one seed."""
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_last_n: int
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    seed: int | None


_SAMPLING_NAMES = frozenset(item.name for item in fields(Sampling))
_OPTION_NAMES = frozenset(Options.__annotations__)


def settings(options: Options) -> Sampling:
    """Sampling settings of a call. No seed, or -1, draws a fresh one here and nowhere below."""
    if unknown := sorted(set(options) - _OPTION_NAMES):
        raise UsageError(f"there is no option {', '.join(unknown)}", name="UNKNOWN_OPTION")
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _SAMPLING_NAMES}
    if given.get("seed") in (None, -1):
        given["seed"] = secrets.randbits(64)
    bias = given.get("logit_bias", ())
    given["logit_bias"] = tuple(bias.items() if isinstance(bias, Mapping) else bias)
    return Sampling(**given)


def stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Without repetition and in one order, since neither can matter."""
    strings = tuple(sorted({stop} if isinstance(stop, str) else set(stop)))
    if "" in strings:
        raise UsageError("a stop string can't be empty", name="EMPTY_STOP")
    # Refused here and not when the receipt is written, after the answer.
    if len(strings) > limits.MAX_STRINGS or any(len(text.encode()) > limits.MAX_STRING_BYTES for text in strings):
        raise UsageError(
            f"there may be {limits.MAX_STRINGS} stop strings of {limits.MAX_STRING_BYTES} bytes at most",
            name="TOO_MANY_STOPS",
        )
    return strings


def as_messages(prompt: str | Sequence[Message], system: str) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return [{"role": "system", "content": system}, *messages] if system else messages
