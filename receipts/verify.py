"""The replay protocol: a receipt and an engine in, a verdict out.

The engine reads the receipt's prompt and output, and tells for every output
position which token plain decoding draws there. The verdict is IDENTICAL if
they are the receipt's, or names the first that isn't. Nothing in the receipt
is executed, and no template is rendered.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ktc import limits
from receipts.checks import check_answer, check_record
from receipts.decimals import parse_decimal_f32
from receipts.errors import DIFFERS, IDENTICAL, KtcError, LimitExceeded, Malformed, Unverifiable
from receipts.features import require_features
from receipts.schema import FileLike, Record

Progress = Callable[[int, int], None]


class Drawn(Protocol):
    """What plain decoding draws at one output position."""

    @property
    def token(self) -> int: ...
    @property
    def runner_up(self) -> int:
        """Id of the second highest logit, or -1."""

    @property
    def gap(self) -> float:
        """Difference of the two highest logits; infinite if only one token could be drawn."""


class Replayer(Protocol):
    """An engine with one model open."""

    @property
    def profile(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def files(self) -> Sequence[FileLike]: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def end_tokens(self) -> frozenset[int]:
        """The model's own end tokens."""

    @property
    def features(self) -> frozenset[str]:
        """Which of ``features.FEATURES`` this engine reruns to the bit."""

    def replay(self, record: Record) -> Iterator[Drawn]:
        """One draw per output token, each given the prompt and the *receipt's* tokens before it."""

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Bytes of output tokens as they continue the prompt; control tokens give none."""

    def piece(self, token: int) -> bytes:
        """One token for people to read, a control token by its name."""


class Verdict(NamedTuple):
    """What verification found. ``exit_code`` decides; ``sentence`` is for people."""

    exit_code: int
    name: str
    sentence: str
    checked: int = 0
    """Output tokens that were compared."""
    is_prefix: bool = False
    """The run was interrupted: the answer is a beginning."""
    position: int = -1
    """Of a DIFFERS: index of the first differing output token, counted from 0."""
    expected: int = -1
    """Its id in the receipt."""
    got: int = -1
    """Its id in the rerun."""
    expected_text: str = ""
    got_text: str = ""
    gap: float = 0.0
    """Of a DIFFERS: difference of the two highest logits there."""
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        raise TypeError("a verdict is not true or false: compare its exit_code")


def verify(
    record: Record, replayer: Replayer, *, limit: int = limits.MAX_TOKENS, progress: Progress | None = None
) -> Verdict:
    """Rerun a receipt and judge it; refusals become verdicts too.

    ``limit`` caps the tokens (prompt and output) a rerun may cost;
    ``progress(done, total)`` is called after each output token.
    """
    try:
        require_rerunnable(check_record(record), replayer, limit)  # steps 4 to 7, and 9, of FORMAT.md
        difference = _first_difference(record, replayer, progress)  # step 10
        if difference is None:
            check_answer(record)  # step 11
            _check_text(record, replayer)  # step 12
    except KtcError as error:
        return verdict_of(error)
    return _identical(record, replayer) if difference is None else difference


def verdict_of(error: KtcError) -> Verdict:
    """The verdict that a refusal amounts to."""
    return Verdict(error.exit_code, error.name, str(error))


def require_rerunnable(record: Record, replayer: Replayer, limit: int = limits.MAX_TOKENS) -> None:
    """Raise Unverifiable, Malformed or LimitExceeded unless this engine can judge this receipt."""
    require_judgeable(record, replayer.profile, replayer.features, limit)
    _require_model(record, replayer)
    _require_vocabulary(record, replayer.vocab_size)


def require_judgeable(record: Record, profile: str, features: frozenset[str], limit: int = limits.MAX_TOKENS) -> None:
    """The part of ``require_rerunnable`` that needs no model: worth asking before one is hashed and loaded."""
    if record["profile"] != profile:
        message = f"the receipt was made under {record['profile']}, this engine computes {profile}"
        raise Unverifiable(message, name="PROFILE")
    if record["prompt"]["commitment"]:
        raise Unverifiable("the prompt is withheld, and its opening was not given", name="WITHHELD")
    require_features(record, features)
    cost = len(record["prompt"]["tokens"]) + len(record["output"]["tokens"])
    if cost > limit:
        raise LimitExceeded(f"a rerun would take {cost:,} tokens, and the limit is {limit:,}", name="RERUN_COST")


def output_text(record: Record, decode: Callable[[Sequence[int]], bytes]) -> str:
    """The text that the output tokens give: what ``text`` must be.

    The end token is no text. Bytes that are no UTF-8 become U+FFFD. The text is
    cut before the stop string that is complete first.
    """
    text = decode(_spoken(record)).decode("utf-8", errors="replace")
    return text[: _stop_position(text, record["stop"]["strings"])]


def _require_model(record: Record, replayer: Replayer) -> None:
    claimed = [(file["size"], file["blake3"], file["sha256"]) for file in record["model"]["files"]]
    opened = [(file.size, file.blake3, file.sha256) for file in replayer.files]
    if claimed != opened or record["model"]["architecture"] != replayer.architecture:
        name = record["model"]["files"][0]["name"]
        raise Unverifiable(f"the receipt names another model than the one opened: {name}", name="MODEL")


def _require_vocabulary(record: Record, size: int) -> None:
    tokens = [*record["prompt"]["tokens"], *record["output"]["tokens"], *record["stop"]["end_tokens"]]
    tokens += [entry["token"] for entry in record["sampling"]["logit_bias"]]
    if tokens and max(tokens) >= size:
        raise Malformed(f"token id {max(tokens)} is not in the vocabulary of {size}", name="TOKEN_RANGE")


def _first_difference(record: Record, replayer: Replayer, progress: Progress | None) -> Verdict | None:
    tokens = record["output"]["tokens"]
    draws = iter(replayer.replay(record))
    for position, expected in enumerate(tokens):
        drawn = next(draws, None)
        if drawn is None:
            raise Unverifiable(f"the rerun ended before token {position}", name="REPLAY_ENDED")
        if drawn.token != expected:
            return _differs(record, position, drawn, replayer)
        if progress:
            progress(position + 1, len(tokens))
    return None


def _differs(record: Record, position: int, drawn: Drawn, replayer: Replayer) -> Verdict:
    expected = record["output"]["tokens"][position]
    says, gives = _text_of(replayer, expected), _text_of(replayer, drawn.token)
    sentence = (
        f"token {position}: receipt says {_quoted(says)} (id {expected}), "
        f"rerun gives {_quoted(gives)} (id {drawn.token}); {_distance(record, expected, drawn)}"
    )
    return Verdict(
        DIFFERS,
        "DIFFERS",
        sentence,
        checked=position + 1,
        position=position,
        expected=expected,
        got=drawn.token,
        expected_text=says,
        got_text=gives,
        gap=drawn.gap,
    )


def _text_of(replayer: Replayer, token: int) -> str:
    return replayer.piece(token).decode("utf-8", errors="replace")


def _quoted(text: str) -> str:
    """Safe to print, and short."""
    quoted = repr(text)
    return quoted if len(quoted) <= 40 else quoted[:37] + "...'"


def _distance(record: Record, expected: int, drawn: Drawn) -> str:
    """How close it was; "the two" only where the tokens named are the best and the second best."""
    if not math.isfinite(drawn.gap):
        return "no other token could be drawn"
    is_greedy = parse_decimal_f32(record["sampling"]["temperature"]) == 0
    pair = "the two" if is_greedy and drawn.runner_up == expected else "the two best there"
    apart = f"{drawn.gap:.3f}" if drawn.gap >= 0.001 or drawn.gap == 0 else f"{drawn.gap:.1e}"
    return f"{pair} were {apart} apart"


def _check_text(record: Record, replayer: Replayer) -> None:
    """Text and stop string, recomputed from the tokens."""
    if output_text(record, replayer.decode) != record["text"]:
        raise Malformed("receipt.text is not the text of the output tokens", name="TEXT")
    strings, reason = record["stop"]["strings"], record["stop"]["reason"]
    spoken = _spoken(record)
    if (reason == "stop") != _stops(replayer.decode(spoken), strings):
        raise Malformed(f"the stop reason is '{reason}', and the text says otherwise", name="STOP_REASON")
    if reason == "stop" and _stops(replayer.decode(spoken[:-1]), strings):
        raise Malformed("tokens follow the one that completed a stop string", name="STOP_REASON")


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


def _identical(record: Record, replayer: Replayer) -> Verdict:
    count, is_prefix = len(record["output"]["tokens"]), record["stop"]["reason"] == "interrupt"
    notes = []
    if frozenset(record["stop"]["end_tokens"]) != replayer.end_tokens:
        notes.append("the end tokens are not the model's own")
    tokens_are = "1 token is the one" if count == 1 else f"{count} tokens are the ones"
    sentence = f"{'its' if count == 1 else 'all'} {tokens_are} this model draws"
    if is_prefix:
        sentence = f"the run was interrupted; its {tokens_are} this model draws first"
    return Verdict(IDENTICAL, "IDENTICAL", "; ".join([sentence, *notes]), count, is_prefix, notes=tuple(notes))
