"""Rerun receipts on this machine: find the model by its hashes, hash it again, replay, judge.

    with Checker(trust=trust) as checker:
        for path in paths:
            print(checker.verify(path).sentence)

A model is hashed when it is opened, and stays open for the receipts that name
the same. After each rerun its file must still have the size and the times that
it had when it was hashed. One that was written to without that is believed: an
answer is as good as this check, and a new ``Checker`` hashes anew.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kinetic import store
from kinetic.api.rerun_models import Models
from kinetic.attest import FEATURES
from kinetic.errors import KineticError, UsageError
from kinetic.types import PROFILE, ModelIdentity, Step
from ktc import errors
from ktc.errors import KtcError, Unverifiable
from receipts import checks, encode, identity, sign
from receipts import verify as rules
from receipts.report.rows import Row, Timing
from receipts.schema import Record

if TYPE_CHECKING:
    from kinetic.api.model import Model
    from ktc.trust import Standing, Trust
    from receipts.withhold import Opening


class Examined(NamedTuple):
    """A receipt whose form and signatures hold, before it is rerun."""

    record: Record
    standing: Standing


class Checker:
    """Verifies receipts one after the other. Not thread-safe; close it to give up the model it holds.

    Without ``model`` the file is looked for by a receipt's digests, never by a
    name in the receipt, and so are adapters, first among ``adapters``. They are
    hashed again in any case, and what was hashed is what runs. ``trust`` and
    ``at`` (seconds since 1970, else when this is made) judge signatures;
    ``challenge`` (hex) must have been answered; ``opening`` shows a prompt that
    was withheld, and where none was it is refused; ``method`` and ``trail`` are
    those of ``receipts.verify.verify``. ``on_hash`` is told bytes, ``on_rerun``
    tokens of prompt and output: (done, in all). ``progress`` gets news of a line.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        adapters: Sequence[str | os.PathLike[str]] = (),
        device: str = "cpu",
        gpu_layers: int | str = "auto",
        cpu_moe: int | str = 0,
        threads: int = 0,
        pack_cache: bool = True,
        trust: Trust | None = None,
        at: int | None = None,
        challenge: str | None = None,
        opening: Opening | None = None,
        method: str = "replay",
        trail: bool = False,
        on_hash: store.Progress | None = None,
        on_rerun: store.Progress | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if method not in rules.METHODS:
            raise UsageError(f"there is no method {method}: it is {' or '.join(rules.METHODS)}", name="NO_METHOD")
        self._trust, self._opening = trust, opening
        self.at = int(time.time()) if at is None else at
        """When signatures are judged, all of them, in seconds since 1970."""
        self._challenge = None if challenge is None else _parse_challenge(challenge)
        self.device, self.method, self.trail, self._on_rerun = device, method, trail, on_rerun
        self.timing: Timing | None = None
        """Of the last rerun; None if it came to none."""
        machine = {"device": device, "gpu_layers": gpu_layers, "cpu_moe": cpu_moe, "threads": threads}
        machine["pack_cache"] = pack_cache
        self._models = Models(model, adapters, machine, on_hash, progress)

    def verify(self, receipt: str | os.PathLike[str] | bytes) -> rules.Verdict:
        """The verdict on one receipt file, or on its bytes; every refusal is a verdict too."""
        try:
            examined = self.examine(receipt)
        except KtcError as error:
            return rules.verdict_of(error)
        return self.rerun(examined)

    def examine(self, receipt: str | os.PathLike[str] | bytes) -> Examined:
        """Everything but the rerun (steps 1 to 9 of FORMAT.md). Raises any KtcError."""
        if not isinstance(receipt, bytes) and os.path.isdir(receipt):
            message = f"{os.fspath(receipt)} is a folder: `kinetic audit` verifies all receipts in one"
            raise errors.FileProblem(message, name="NOT_A_FILE")
        record, entries = encode.read_receipt(receipt)
        standing = sign.judge_signatures(record, entries, self._trust, self.at)
        if self._challenge is not None:
            rules.require_challenge(record, self._challenge)
        return Examined(record, standing)

    def rerun(self, examined: Examined) -> rules.Verdict:
        """The verdict of the rerun, along with what the signatures are worth."""
        return with_standing(self.rerun_record(examined.record), examined.standing)

    def rerun_record(self, record: Record) -> rules.Verdict:
        """The verdict of the rerun alone (steps 10 to 14)."""
        self.timing = None
        try:
            return self._rerun(record)
        except KtcError as error:
            return rules.verdict_of(error)

    def _rerun(self, record: Record) -> rules.Verdict:
        opened, _ = rules.open_withheld(record, self._opening)
        rules.require_judgeable(opened, PROFILE, FEATURES)  # costs less than hashing a model
        started = time.perf_counter()
        model, identity = self._models.get(record)
        replayer, opened_at = _Replayer(model, identity, self._on_rerun), time.perf_counter()
        verdict = rules.verify(record, replayer, opening=self._opening, method=self.method, trail=self.trail)
        seconds, count = time.perf_counter() - opened_at, len(verdict.trail) or verdict.checked
        self.timing = Timing(opened_at - started, seconds, count / seconds if seconds else 0.0)
        self._models.require_unchanged()
        return verdict

    def require_model(self, record: Record) -> None:
        """Raises Unverifiable unless the receipt's model is here, found and hashed as for a rerun."""
        self._models.require(record)

    def facts(self) -> list[tuple[str, str]]:
        """What stands above a report: by what means it was verified."""
        judged = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at))
        return [("profile", PROFILE), ("device", self.device), ("method", self.method), ("judged at", judged)]

    def close(self) -> None:
        self._models.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def check_file(checker: Checker, file: str) -> Row:
    """One file's verdict as a row of a report."""
    started = time.perf_counter()
    try:
        examined = checker.examine(file)
    except KtcError as error:
        return Row(file, rules.verdict_of(error), seconds=time.perf_counter() - started)
    verdict = checker.rerun(examined)
    row = row_of(file, examined.record, verdict)
    return row._replace(seconds=time.perf_counter() - started, timing=checker.timing)


def row_of(file: str, record: Record, verdict: rules.Verdict) -> Row:
    """A row about a receipt that could be read."""
    return Row(
        file,
        verdict,
        receipt_id=identity.receipt_id(record),
        question_id=identity.question_id(record),
        model=record["model"]["files"][0]["name"],
        prompt_tokens=len(record["prompt"]["tokens"]),
        output_tokens=len(record["output"]["tokens"]),
    )


def verify_receipt(
    receipt: str | os.PathLike[str] | bytes, model: str | os.PathLike[str] | None = None, **options: Any
) -> rules.Verdict:
    """The verdict on one receipt file, or on its bytes. ``options`` are those of ``Checker``."""
    with Checker(model, **options) as checker:
        return checker.verify(receipt)


def with_standing(verdict: rules.Verdict, standing: Standing) -> rules.Verdict:
    """The verdict with what its signatures are worth, and a warning where they are worth less than was hoped."""
    verdict = verdict._replace(signature=standing.sentence)
    if not standing.warning:
        return verdict
    sentence, notes = f"{verdict.sentence}; {standing.warning}", (*verdict.notes, standing.warning)
    return verdict._replace(sentence=sentence, notes=notes)


def _parse_challenge(challenge: str) -> str:
    try:
        return checks.parse_challenge(challenge)
    except KtcError as error:
        raise UsageError(str(error), name=error.name) from None


class _Replayer:
    """A model as ``receipts.verify`` wants to see it."""

    profile = PROFILE
    features = FEATURES

    def __init__(self, model: Model, identity: ModelIdentity, on_rerun: store.Progress | None) -> None:
        self._model, self._on_rerun = model, on_rerun
        self.files, self.architecture = identity.files, identity.architecture
        self.vocab_size = model.tokenizer.vocab_size
        self.end_tokens, self.context = model.tokenizer.end_tokens, model.context

    def replay(self, record: Record, salt: bytes | None = None) -> Iterator[Step]:
        with _rerun_errors():
            yield from self._model.replay(record, self._on_rerun, salt=salt)

    def decode_again(self, record: Record, salt: bytes | None = None) -> Iterator[Step]:
        with _rerun_errors():
            yield from _decode_again(self._model, record, self._on_rerun, salt)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._model.tokenizer.piece(token) for token in tokens)

    def piece(self, token: int) -> bytes:
        return self._model.tokenizer.piece(token, special=True)


def _decode_again(
    model: Model, record: Record, on_progress: store.Progress | None, salt: bytes | None
) -> Iterator[Step]:
    """As many steps of plain decoding as the receipt has output tokens, as the question of a new answer gives them."""
    from kinetic.api.model import _digest

    count, question = len(record["output"]["tokens"]), model._question_of(record)
    before, total = len(question.prompt), len(question.prompt) + count
    # Where an answer ends is judged from its tokens; here each of them must be drawn, whatever they are.
    request = replace(question, max_tokens=count, end_tokens=frozenset())
    digest = _digest(salt or b"") if record["logit_commit"] else None

    def on_prompt(done: int, _: int) -> None:
        if on_progress:
            on_progress(done, total)

    with model._held() as engine, contextlib.closing(engine.generate(request, None, on_prompt, digest)) as steps:
        for done, step in enumerate(steps, start=before + 1):
            if on_progress:
                on_progress(done, total)
            yield step


@contextlib.contextmanager
def _rerun_errors() -> Iterator[None]:
    try:
        yield
    except KineticError as error:
        raise Unverifiable(f"the rerun failed: {error}", name=error.name) from error
