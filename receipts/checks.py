"""What a receipt must agree with itself about, beyond the form of each field (steps 6, 7, 12 and 13 of FORMAT.md).

Two groups, for a reason: the question must agree before anything is rerun, but
the answer's own redundancy (its digest, the stop reason, the text) is judged
after the rerun, which can say *which* token was changed.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence

from ktc.digest import token_digest
from ktc.errors import Malformed, Unverifiable
from receipts.batch import check_parent
from receipts.identity import challenge_seed
from receipts.idle import idle_settings
from receipts.schema import Record, check_form

Decode = Callable[[Sequence[int]], bytes]
"""Bytes of output tokens as they continue the prompt; control tokens give none."""

KNOWN_EXTENSIONS: frozenset[str] = frozenset()
"""Critical extensions this version understands."""


def check_record(record: object) -> Record:
    """The record itself if its form holds and its question agrees with itself."""
    checked = check_form(record)
    _check_model(checked)  # step 6
    _check_prompt(checked)
    _check_critical(checked)
    _check_challenge(checked)  # after the above: a question holds its critical extensions
    check_parent(checked)
    _require_understood(checked)  # step 7
    return checked


def parse_challenge(text: str) -> str:
    """A challenge as a receipt has it: lower-case hex of 16 to 64 bytes. Raises Malformed."""
    hexadecimal = text.lower()
    if not re.fullmatch("(?:[0-9a-f]{2}){16,64}", hexadecimal):
        raise Malformed("a challenge is 16 to 64 bytes in hex, 32 to 128 digits", name="CHALLENGE")
    return hexadecimal


def check_answer(record: Record) -> None:
    """Raise Malformed if output, digest, stop reason, text and limits contradict each other (step 12)."""
    output = record["output"]
    if token_digest(output["tokens"]) != output["digest"]:
        raise Malformed("receipt.output.digest is not the digest of the output tokens", name="OUTPUT_DIGEST")
    if len(record["logit_commit"]) not in (0, len(output["tokens"])):
        raise Malformed("receipt.logit_commit must have one entry per output token, or none", name="LOGIT_COMMIT")
    _check_stop(record)
    for stop in record["stop"]["strings"]:
        if stop in record["text"]:
            raise Malformed("receipt.text goes on past a stop string", name="STOP_STRING")


def output_text(record: Record, decode: Decode) -> str:
    """The text that the output tokens give: what ``text`` must be.

    The end token is no text. Bytes that are no UTF-8 become U+FFFD. The text is
    cut before the stop string that is complete first.
    """
    text = decode(_spoken(record)).decode("utf-8", errors="replace")
    return text[: _stop_position(text, record["stop"]["strings"])]


def check_text(record: Record, decode: Decode) -> None:
    """Raise Malformed unless text and stop string are what the output tokens give (step 13 of FORMAT.md)."""
    if output_text(record, decode) != record["text"]:
        raise Malformed("receipt.text is not the text of the output tokens", name="TEXT")
    strings, reason = record["stop"]["strings"], record["stop"]["reason"]
    spoken = _spoken(record)
    if (reason == "stop") != _stops(decode(spoken), strings):
        raise Malformed(f"the stop reason is '{reason}', and the text says otherwise", name="STOP_REASON")
    if reason == "stop" and _stops(decode(spoken[:-1]), strings):
        raise Malformed("tokens follow the one that completed a stop string", name="STOP_REASON")


def _check_model(record: Record) -> None:
    if not record["model"]["files"]:
        raise Malformed("receipt.model.files names no file", name="NO_MODEL")


def _check_prompt(record: Record) -> None:
    prompt = record["prompt"]
    if prompt["commitment"]:
        if prompt["tokens"] or prompt["digest"]:
            raise Malformed("a withheld prompt shows neither tokens nor their digest", name="PROMPT")
    elif not prompt["tokens"]:
        raise Malformed("receipt.prompt.tokens is empty", name="PROMPT")
    elif token_digest(prompt["tokens"]) != prompt["digest"]:
        raise Malformed("receipt.prompt.digest is not the digest of the prompt tokens", name="PROMPT_DIGEST")


def _check_critical(record: Record) -> None:
    for name in record["crit"]:
        if name not in record["ext"]:
            raise Malformed(f"receipt.crit names '{name}', which receipt.ext does not hold", name="CRITICAL")


def _require_understood(record: Record) -> None:
    for name in record["crit"]:
        if name not in KNOWN_EXTENSIONS:
            raise Unverifiable(f"the receipt needs the extension '{name}', unknown here", name="CRITICAL")


def _check_challenge(record: Record) -> None:
    if not record["challenge"]:
        return
    if record["sampling"]["seed"] != challenge_seed(record):
        raise Malformed("receipt.sampling.seed is not the one its challenge gives", name="CHALLENGE_SEED")
    if idle := idle_settings(record):
        why = "has no effect and is not left plain, so that the seed of the challenge could be chosen with it"
        raise Malformed(f"receipt.{idle[0]} {why}", name="CHALLENGE_SETTING")


def _check_stop(record: Record) -> None:
    """The stop reason against the tokens. The engine looks for reasons in the order of STOP_REASONS."""
    tokens, most, stop = record["output"]["tokens"], record["max_tokens"], record["stop"]
    end_tokens, reason = set(stop["end_tokens"]), stop["reason"]
    if 0 <= most < len(tokens):
        raise _at_odds(f"{len(tokens)} tokens are more than max_tokens, {most}")
    early = next((at for at, token in enumerate(tokens) if token in end_tokens), None)
    if early is not None and early < len(tokens) - 1:
        raise _at_odds(f"token {early} is an end token, yet tokens follow it")
    if (early is not None) != (reason == "end"):
        raise _at_odds(f"the reason is '{reason}', yet the last token is {'an' if reason != 'end' else 'no'} end token")
    if reason == "stop" and not (tokens and stop["strings"]):
        raise _at_odds("the reason is 'stop', yet there are no tokens or no stop strings")
    if reason == "length" and len(tokens) != most:
        raise _at_odds(f"the reason is 'length', yet {len(tokens)} tokens are not max_tokens, {most}")
    if reason == "context":
        _check_context(record)


def _check_context(record: Record) -> None:
    """The context is full when prompt and output together have as many tokens as it has places."""
    context, prompt = record["overrides"]["context"], record["prompt"]
    if context == 0:
        raise _at_odds("the reason is 'context', yet overrides.context does not record its size")
    total = len(prompt["tokens"]) + len(record["output"]["tokens"])
    if not prompt["commitment"] and total != context:
        raise _at_odds(f"the reason is 'context', yet {total} tokens do not fill {context} places")


def _at_odds(why: str) -> Malformed:
    return Malformed(f"receipt.stop is at odds with the output: {why}", name="STOP_REASON")


def _spoken(record: Record) -> list[int]:
    """Output tokens that make text: all but the end token."""
    tokens: list[int] = record["output"]["tokens"]
    return tokens[:-1] if record["stop"]["reason"] == "end" else tokens


def _stops(data: bytes, strings: Sequence[str]) -> bool:
    """Whether a stream of these bytes has shown a stop string; a character cut in half is not shown yet."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    return _stop_position(text, strings) < len(text)


def _stop_position(text: str, strings: Sequence[str]) -> int:
    """Where the stop string begins that is complete first, of several at once the longest; or the text's length.

    "Complete first" is what a reader of the stream sees, however the text was cut into tokens.
    """
    ends = [(at + len(string), at) for string in strings if (at := text.find(string)) >= 0]
    return min(ends, default=(len(text), len(text)))[1]
