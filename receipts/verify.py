"""The replay protocol: a receipt and an engine in, a verdict out.

The engine reads the receipt's prompt and output, and tells for every output
position which token plain decoding draws there. The verdict is IDENTICAL if they are the
receipt's, or names the first that isn't. Nothing is executed, and no template is rendered.

Two methods find the same: "replay" reads prompt and output in large batches,
"decode" answers the question once more, token by token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ktc import limits
from ktc.canonical import show
from receipts.checks import check_answer, check_record, check_text
from receipts.decimals import parse_decimal_f32
from receipts.errors import DIFFERS, IDENTICAL, KtcError, LimitExceeded, Malformed, SignatureProblem, Unverifiable
from receipts.features import require_features, require_profile
from receipts.schema import FileLike, Record
from receipts.show import cited

if TYPE_CHECKING:
    from receipts.withhold import Opening

METHODS = ("replay", "decode")

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

    @property
    def commit(self) -> bytes:
        """Digest of the row of logits, where the receipt has such digests (ktc.digest.logits_digest)."""


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
    def context(self) -> int:
        """The most tokens that the model takes, prompt and output together."""

    @property
    def features(self) -> frozenset[str]:
        """Which of ``features.FEATURES`` this engine reruns to the bit."""

    def replay(self, record: Record, salt: bytes | None = None) -> Iterator[Drawn]:
        """One draw per output token, each given the prompt and the *receipt's* tokens before it.

        ``salt``, of a prompt that was withheld, keys the digests of the logits.
        """

    def decode_again(self, record: Record, salt: bytes | None = None) -> Iterator[Drawn]:
        """One draw per output token by plain decoding, each given the prompt and the *drawn* tokens before it."""

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Bytes of output tokens as they continue the prompt; control tokens give none."""

    def piece(self, token: int) -> bytes:
        """One token for people to read, a control token by its name."""


class Place(NamedTuple):
    """One output position of a receipt beside its rerun."""

    expected: int
    """Token id in the receipt."""
    expected_text: str
    got: int
    """Token id that the model draws there, given the receipt's tokens before it."""
    got_text: str
    gap: float
    """Difference of the two highest logits; infinite if only one token could be drawn."""


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
    """Of a DIFFERS: index of the first differing output token, counted from 0. Of a LOGITS_DIFFER: of the logits."""
    expected: int = -1
    """Its id in the receipt."""
    got: int = -1
    """Its id in the rerun."""
    expected_text: str = ""
    got_text: str = ""
    gap: float = 0.0
    """Of a DIFFERS: difference of the two highest logits there."""
    notes: tuple[str, ...] = ()
    method: str = ""
    """How it was rerun: "replay" or "decode"; "" if it was not."""
    signature: str = ""
    """What the signatures are worth here, in words: unsigned, signer unknown, or whose."""
    trail: tuple[Place, ...] = ()
    """Of a DIFFERS, where asked for: every output position, both tokens side by side."""

    def __bool__(self) -> bool:
        raise TypeError("a verdict is not true or false: compare its exit_code")


def verify(
    record: Record,
    replayer: Replayer,
    *,
    limit: int = limits.MAX_TOKENS,
    progress: Progress | None = None,
    opening: Opening | None = None,
    method: str = "replay",
    trail: bool = False,
) -> Verdict:
    """Rerun a receipt and judge it; refusals become verdicts too.

    ``limit`` caps the tokens (prompt and output) of a rerun; ``progress(done, total)`` hears of each output token;
    ``opening`` shows a withheld prompt. With ``trail`` a DIFFERS of a replay holds every position.
    """
    if method not in METHODS:
        raise ValueError(f"the method is {' or '.join(METHODS)}, not {method!r}")
    try:
        checked = check_record(record)  # steps 4 to 7 of FORMAT.md
        opened, salt = open_withheld(checked, opening)  # step 10
        require_rerunnable(opened, replayer, limit)
        ask = replayer.replay if method == "replay" else replayer.decode_again
        draws = ask(opened) if salt is None else ask(opened, salt)
        found = _compare(opened, draws, whole=trail and method == "replay", progress=progress)  # step 11
    except KtcError as error:
        return verdict_of(error)
    return _judged(opened, replayer, found, method, trail)._replace(method=method)


def verdict_of(error: KtcError) -> Verdict:
    """The verdict that a refusal amounts to."""
    return Verdict(error.exit_code, error.name, str(error))


def open_withheld(record: Record, opening: Opening | None) -> tuple[Record, bytes | None]:
    """The record with its prompt in place, and the salt if it was withheld. A prompt that is shown has no opening."""
    if not record["prompt"]["commitment"]:
        if opening is not None:
            raise Malformed("the receipt shows its prompt, so this opening is another's", name="OPENING")
        return record, None
    if opening is None:
        raise _withheld()
    from receipts.withhold import open_prompt

    return open_prompt(record, opening), opening.salt


def require_challenge(record: Record, challenge: str) -> None:
    """Raise SignatureProblem unless the receipt answers this challenge, in lower-case hex (step 9 of FORMAT.md)."""
    if record["challenge"] != challenge:
        has = f"answers another challenge, {record['challenge']}" if record["challenge"] else "answers no challenge"
        raise SignatureProblem(f"the receipt {has}, and {challenge} was asked for", name="CHALLENGE")


def require_rerunnable(record: Record, replayer: Replayer, limit: int = limits.MAX_TOKENS) -> None:
    """Raise Unverifiable, Malformed or LimitExceeded unless this engine can judge this receipt."""
    require_judgeable(record, replayer.profile, replayer.features, limit)
    _require_model(record, replayer)
    _require_vocabulary(record, replayer.vocab_size)


def require_judgeable(record: Record, profile: str, features: frozenset[str], limit: int = limits.MAX_TOKENS) -> None:
    """The part of ``require_rerunnable`` that needs no model: worth asking before one is hashed and loaded."""
    require_profile(record, profile)
    if record["prompt"]["commitment"]:
        raise _withheld()
    require_features(record, features)
    cost = len(record["prompt"]["tokens"]) + len(record["output"]["tokens"])
    if cost > limit:
        raise LimitExceeded(f"a rerun would take {cost:,} tokens, and the limit is {limit:,}", name="RERUN_COST")


def _withheld() -> Unverifiable:
    return Unverifiable("the prompt is withheld, and its opening was not given", name="WITHHELD")


def _require_model(record: Record, replayer: Replayer) -> None:
    claimed = [(file["size"], file["blake3"], file["sha256"]) for file in record["model"]["files"]]
    opened = [(file.size, file.blake3, file.sha256) for file in replayer.files]
    if claimed != opened or record["model"]["architecture"] != replayer.architecture:
        name = record["model"]["files"][0]["name"]
        raise Unverifiable(f"the receipt names another model than the one opened: {show(name, 80)}", name="MODEL")


def _require_vocabulary(record: Record, size: int) -> None:
    tokens = [*record["prompt"]["tokens"], *record["output"]["tokens"], *record["stop"]["end_tokens"]]
    tokens += [entry["token"] for entry in record["sampling"]["logit_bias"]]
    if tokens and max(tokens) >= size:
        raise Malformed(f"token id {max(tokens)} is not in the vocabulary of {size}", name="TOKEN_RANGE")


class _Comparison:
    """A receipt's tokens and digests of logits beside what the rerun draws, up to the first token that differs.

    ``position`` is that token's, ``logits`` that of the first digest that differs; -1 if there is none.
    """

    def __init__(self, record: Record) -> None:
        self.tokens: list[int] = record["output"]["tokens"]
        self.commits: list[str] = record["logit_commit"]
        self.draws: list[Drawn] = []
        self.position = self.logits = -1

    @property
    def is_settled(self) -> bool:
        return self.position >= 0

    def add(self, drawn: Drawn) -> None:
        at = len(self.draws)
        self.draws.append(drawn)
        if self.is_settled:
            return
        if self.logits < 0 and at < len(self.commits) and drawn.commit.hex() != self.commits[at]:
            self.logits = at
        if drawn.token != self.tokens[at]:
            self.position = at


def _compare(record: Record, draws: Iterator[Drawn], *, whole: bool, progress: Progress | None) -> _Comparison:
    found = _Comparison(record)
    try:
        while len(found.draws) < len(found.tokens) and (whole or not found.is_settled):
            drawn = _next(draws, found)
            if drawn is None:
                break
            found.add(drawn)
            if progress and (whole or not found.is_settled):
                progress(len(found.draws), len(found.tokens))
    finally:
        if isinstance(draws, Generator):
            draws.close()  # now, since a model serves one rerun at a time
    return found


def _next(draws: Iterator[Drawn], found: _Comparison) -> Drawn | None:
    """The next draw. Once the verdict is settled, what goes wrong later takes nothing from it."""
    try:
        drawn = next(draws, None)
    except KtcError:
        if found.is_settled:
            return None
        raise
    if drawn is None and not found.is_settled:
        raise Unverifiable(f"the rerun ended before token {len(found.draws)}", name="REPLAY_ENDED")
    return drawn


def _judged(record: Record, replayer: Replayer, found: _Comparison, method: str, trail: bool) -> Verdict:
    by = " by plain decoding" if method == "decode" else ""
    if found.is_settled:
        verdict = _differs(record, replayer, found, by)
        return verdict._replace(trail=_trail(replayer, found)) if trail else verdict
    try:
        check_answer(record)  # step 12
        check_text(record, replayer.decode)  # step 13
    except KtcError as error:
        return verdict_of(error)
    return _logits_differ(replayer, found) if found.logits >= 0 else _identical(record, replayer, by)  # step 14


def _differs(record: Record, replayer: Replayer, found: _Comparison, by: str) -> Verdict:
    position = found.position
    drawn, expected = found.draws[position], found.tokens[position]
    says, gives = _text_of(replayer, expected), _text_of(replayer, drawn.token)
    sentence = (
        f"token {position}: receipt says {_quoted(says)} (id {expected}), "
        f"rerun{by} gives {_quoted(gives)} (id {drawn.token}); {_distance(record, expected, drawn)}"
    )
    notes = []
    if found.logits >= 0:
        notes.append(f"the logits differ from token {found.logits} on")
    elif position < len(found.commits):
        notes.append("the logits up to there agree")
    return Verdict(
        DIFFERS,
        "DIFFERS",
        "; ".join([sentence, *notes]),
        checked=position + 1,
        position=position,
        expected=expected,
        got=drawn.token,
        expected_text=says,
        got_text=gives,
        gap=drawn.gap,
        notes=tuple(notes),
    )


def _logits_differ(replayer: Replayer, found: _Comparison) -> Verdict:
    """The tokens agree, and the receipt's digests of the logits don't: it was computed otherwise, or changed."""
    position = found.logits
    token = found.tokens[position]
    text = _text_of(replayer, token)
    return Verdict(
        DIFFERS,
        "LOGITS_DIFFER",
        f"token {position}: the tokens agree, but the receipt's digest of the logits is not this model's",
        checked=len(found.tokens),
        position=position,
        expected=token,
        got=token,
        expected_text=text,
        got_text=text,
        gap=found.draws[position].gap,
    )


def _trail(replayer: Replayer, found: _Comparison) -> tuple[Place, ...]:
    pairs = zip(found.tokens, found.draws, strict=False)  # plain decoding ends at the first difference
    return tuple(
        Place(expected, _text_of(replayer, expected), drawn.token, _text_of(replayer, drawn.token), drawn.gap)
        for expected, drawn in pairs
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


def _identical(record: Record, replayer: Replayer, by: str) -> Verdict:
    count, is_prefix = len(record["output"]["tokens"]), record["stop"]["reason"] == "interrupt"
    notes = _foreign(record, replayer)
    sentence = "; ".join([_agreement(record, count, is_prefix, by), *cited(record), *notes])
    return Verdict(IDENTICAL, "IDENTICAL", sentence, count, is_prefix, notes=tuple(notes))


def _agreement(record: Record, count: int, is_prefix: bool, by: str) -> str:
    if count == 0:
        why = "the run was interrupted before its first token" if is_prefix else "the answer has no tokens"
        return f"{why}: there was nothing to compare"
    tokens_are = "1 token is the one" if count == 1 else f"{count} tokens are the ones"
    sentence = f"{'its' if count == 1 else 'all'} {tokens_are} this model draws{by}"
    if is_prefix:
        sentence = f"the run was interrupted; its {tokens_are} this model draws{by} first"
    if record["logit_commit"]:
        sentence += ", and its logits agree" if count == 1 else f", and the logits of all {count} agree"
    return sentence


def _foreign(record: Record, replayer: Replayer) -> list[str]:
    """What ended the answer, or could have, and is the issuer's choice and not the model's."""
    stop = record["stop"]
    foreign = {
        "the end tokens are": frozenset(stop["end_tokens"]) != replayer.end_tokens,
        "the context is": stop["reason"] == "context" and record["overrides"]["context"] != replayer.context,
    }
    return [f"{what} not the model's own" for what, is_foreign in foreign.items() if is_foreign]
