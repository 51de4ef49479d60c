"""What a caller may ask for, and how it becomes settings of the engine."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Real
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
    ``challenge``, ``commit_logits`` and ``withhold_prompt`` are about the receipt.
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
    tools: Sequence[Mapping[str, Any]]
    """Tools the model may call, as the chat template takes them: OpenAI's JSON."""
    template_vars: Mapping[str, Any]
    """More variables of the chat template, such as enable_thinking or documents."""
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
    typ_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    seed: int | None
    challenge: str
    """Lower-case hex of 16 to 64 bytes that somebody else chose: the seed comes from them and the question."""
    commit_logits: bool
    """Put a digest of the logits into the receipt for each token of the answer."""
    withhold_prompt: bool
    """Put a commitment into the receipt instead of the prompt, which an opening then shows."""


_SAMPLING_NAMES = frozenset(item.name for item in fields(Sampling))
_NUMBERS = frozenset(item.name for item in fields(Sampling) if item.type == "float")
_OPTION_NAMES = frozenset(Options.__annotations__)
_SWITCHES = ("commit_logits", "withhold_prompt")
_CHALLENGE = re.compile(r"(?:[0-9a-f]{2}){16,64}")


def settings(options: Options) -> Sampling:
    """Sampling settings of a call. No seed, or -1, draws a fresh one here and nowhere below.

    With a challenge it is only a placeholder: the seed needs the whole question.
    """
    if unknown := sorted(set(options) - _OPTION_NAMES):
        raise UsageError(f"there is no option {', '.join(unknown)}", name="UNKNOWN_OPTION")
    _require_types(options)
    _require_challenge(options)
    given: dict[str, Any] = {name: value for name, value in options.items() if name in _SAMPLING_NAMES}
    if given.get("seed") in (None, -1):
        given["seed"] = secrets.randbits(64)
    bias = given.get("logit_bias", ())
    given["logit_bias"] = tuple(bias.items() if isinstance(bias, Mapping) else bias)
    return Sampling(**given)


def _require_types(options: Options) -> None:
    """Refuses what the arithmetic below would stumble over; ranges are kinetic.sampling's business."""
    for name, value in options.items():
        if name in _NUMBERS and not _is_number(value):
            raise UsageError(f"{name} is {value!r}, but must be a number", name=f"BAD_{name.upper()}")
    for name in _SWITCHES:
        if not isinstance(options.get(name, False), bool):
            raise UsageError(f"{name} must be True or False", name=f"BAD_{name.upper()}")
    max_tokens = options.get("max_tokens", -1)
    if not (isinstance(max_tokens, int) and -2 <= max_tokens < 2**31):
        raise UsageError(f"max_tokens is {max_tokens}, but must be from -2 to 2^31 - 1", name="BAD_MAX_TOKENS")
    require_template_options(options)
    breakers: Any = options.get("dry_sequence_breakers", ())
    if not isinstance(breakers, Sequence) or not all(isinstance(text, str) for text in breakers):
        raise UsageError("dry_sequence_breakers must be a list of texts", name="BAD_DRY_SEQUENCE_BREAKERS")
    bias: Any = options.get("logit_bias", ())
    pairs = bias.items() if isinstance(bias, Mapping) else bias
    is_list = isinstance(pairs, Iterable) and not isinstance(bias, str)
    if not is_list or not all(isinstance(pair, Sequence) and len(pair) == 2 and _is_number(pair[1]) for pair in pairs):
        raise UsageError("logit_bias must map token ids to numbers", name="BAD_LOGIT_BIAS")


def require_template_options(options: Options) -> None:
    """Raises UsageError unless tools and template_vars are what a chat template can be given."""
    tools: object = options.get("tools", ())
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise UsageError("tools must be a list of objects", name="BAD_TOOLS")
    variables: object = options.get("template_vars", {})
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise UsageError("template_vars must map names to values", name="BAD_TEMPLATE_VARS")
    if variables.keys() & {"messages", "tools"}:
        raise UsageError("messages and tools are no template_vars: they have places of their own", name="BAD_VARIABLE")


def _require_challenge(options: Options) -> None:
    if "challenge" not in options:
        return
    challenge: object = options["challenge"]
    if not isinstance(challenge, str) or not _CHALLENGE.fullmatch(challenge):
        raise UsageError("a challenge is 32 to 128 lower-case hex digits, two a byte", name="BAD_CHALLENGE")
    if options.get("seed") not in (None, -1):
        message = "the seed comes from the challenge: leave out the seed, or the challenge"
        raise UsageError(message, name="CHALLENGE_SEED")


def fresh_salt(options: Options) -> bytes:
    """As many bytes as a key of BLAKE3 has, if the prompt is to be withheld; else none."""
    return secrets.token_bytes(32) if options.get("withhold_prompt") else b""


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def require_count(what: str, count: int, automatic: str) -> None:
    if count < 0:
        raise UsageError(f"{what} is {count}, but must be 0 ({automatic}) or more", name="BAD_ARGUMENTS")


def require_messages(messages: object) -> None:
    """Raises UsageError unless this is a conversation of one message at least."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise UsageError("a conversation is a list of one message or more; generate() takes a text", name="NO_MESSAGES")
    if not all(isinstance(message, Mapping) for message in messages):
        raise UsageError('each message must be like {"role": "user", "content": "..."}', name="BAD_MESSAGE")


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
