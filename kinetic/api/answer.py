"""Answers: streamed in pieces of text, and finished with all that a receipt needs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kinetic import store
from kinetic.errors import UsageError
from kinetic.text.stream import TextStream
from kinetic.types import Request, Sampling, Step

if TYPE_CHECKING:
    from kinetic.api.model import Model
    from kinetic.attest import Saved
    from kinetic.engine import Engine
    from kinetic.engine.engine import Digest
    from ktc.signature import KeyPair
    from receipts.withhold import Opening


@dataclass(frozen=True)
class Stats:
    """Seconds and tokens of one completion. The prompt's time includes drawing the first token."""

    prompt_tokens: int
    prompt_seconds: float
    decode_tokens: int
    """Tokens after the first."""
    decode_seconds: float
    drafted: int = 0
    """Tokens guessed ahead, and checked; no answer depends on a guess."""
    accepted: int = 0
    """Of them those that were right."""
    rows: int = 0
    """Of all passes after the prompt's: guesses, and one row a pass that is none."""

    @property
    def prompt_speed(self) -> float:
        """Prompt tokens per second; 0 if there was no time to measure."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def decode_speed(self) -> float:
        """Generated tokens per second; 0 if there were fewer than two."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True)
class Completion:
    """A finished answer: the text, the tokens it was decoded from (an end token included), and how it ended."""

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    stop_reason: str
    """One of kinetic.types.STOP_REASONS."""
    sampling: Sampling
    """The settings in force, seed included: ``**dataclasses.asdict(sampling)`` asks for the same answer."""
    stats: Stats
    commits: tuple[bytes, ...] = field(repr=False)
    """With ``commit_logits``: digest of the logits that each token was drawn from; else empty."""
    _salt: bytes = field(repr=False, compare=False)
    _decode: Callable[[Sequence[int]], bytes] = field(repr=False, compare=False)
    _make_receipt: Callable[[], dict[str, Any]] = field(repr=False, compare=False)

    @property
    def seed(self) -> int:
        """The seed that was used, whether given or drawn."""
        return self.sampling.seed

    def receipt(self) -> dict[str, Any]:
        """The unsigned receipt of this answer (RECEIPT in receipts.schema). Hashes the model's files if need be."""
        return self._make_receipt()

    def opening(self) -> Opening | None:
        """What shows the prompt to whoever gets it, where the receipt withholds it; else None."""
        return self._opening(self.receipt())

    def _opening(self, record: dict[str, Any]) -> Opening | None:
        from kinetic import attest

        return attest.opening_of(record, self._salt, self.prompt_tokens) if self._salt else None

    def save_receipt(
        self,
        path: str | os.PathLike[str],
        *,
        sign: KeyPair | None = None,
        opening: str | os.PathLike[str] | None = None,
        certificate: str = "",
    ) -> Saved:
        """Write the receipt as JSON, or as CBOR if the name ends in .cbor; signed with ``sign``, if given.

        ``certificate`` is the name, hex, of a device certificate that it cites.
        Where it withholds the prompt, its opening is written first: to the
        file ``opening``, which must not exist, or by default beside the
        receipt, ``answer.json`` to ``answer.opening.json``. Raises FileProblem,
        SignatureProblem, Malformed, Unverifiable or LimitExceeded, and then neither file is written.
        """
        from kinetic import attest

        if opening is not None and not self._salt:
            raise UsageError("the receipt shows its prompt, so there is no opening to write", name="NO_OPENING")
        record = self.receipt() | {"certificate": certificate}
        place = None if opening is None else Path(opening)
        return attest.save(
            record,
            Path(path),
            decode=self._decode,
            key=sign,
            opening=self._opening(record),
            opening_file=place,
        )


@dataclass(frozen=True)
class Question:
    """A completion's input in token ids, and what its text needs."""

    request: Request
    stop: tuple[str, ...]
    template_time: str
    digest: Digest | None = field(default=None, repr=False)
    """What is kept of each row of logits for the receipt, if anything."""
    salt: bytes = field(default=b"", repr=False)
    """Where there is one, the receipt withholds the prompt."""
    challenge: str = ""


class Stream(Iterator[str]):
    """Pieces of an answer as they come, whole characters only; ``completion`` once it has ended."""

    def __init__(self, model: Model, question: Question, on_progress: store.Progress | None = None) -> None:
        self.seed = question.request.sampling.seed
        # The generator must not lead back to this object, or an abandoned stream would keep the model busy.
        self._run = _Run(model, question, on_progress)
        self._pieces = self._run.pieces()

    def __next__(self) -> str:
        return next(self._pieces)

    def stop(self) -> None:
        """End the answer after the token in hand; may be called from a signal handler or another thread."""
        self._run.asked_to_stop = True

    def close(self) -> None:
        """End the answer now. What was produced so far becomes the completion."""
        self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def is_finished(self) -> bool:
        """Whether there is a completion: the stream ended, was stopped, or was closed after it had begun."""
        return self._run.completion is not None

    @property
    def completion(self) -> Completion:
        """The finished answer. Raises UsageError before the stream has ended."""
        if self._run.completion is None:
            raise UsageError("the answer is not finished: read the stream to its end, or close it", name="NOT_FINISHED")
        return self._run.completion


class _Run:
    """One answer in the making."""

    def __init__(self, model: Model, question: Question, on_progress: store.Progress | None) -> None:
        self.model, self.question, self.on_progress = model, question, on_progress
        self.tokens: list[int] = []
        self.commits: list[bytes] = []
        self.shown: list[str] = []
        self.asked_to_stop = False
        self.completion: Completion | None = None

    def pieces(self) -> Generator[str, None, None]:
        clock, text = _Clock(), TextStream(self.model.tokenizer, self.question.stop)
        with self.model._held() as engine, contextlib.closing(self._steps(engine)) as steps:
            clock.start()
            try:
                for step in steps:
                    clock.tick()
                    self.tokens.append(step.token)
                    if self.question.digest:
                        self.commits.append(step.commit)
                    if step.token in self.question.request.end_tokens:
                        break  # an end token is no text, whatever its piece
                    if piece := text.feed(step.token):
                        self.shown.append(piece)
                        yield piece
                        self.model._require_open()
                    if text.stopped is not None:
                        break
            except GeneratorExit:
                steps.close()
                self._finish(text, clock, engine)
                raise
            steps.close()  # before the count of its guesses
            if tail := self._finish(text, clock, engine):
                yield tail

    def _steps(self, engine: Engine) -> Generator[Step, None, None]:
        return engine.generate(
            self.question.request,
            should_stop=lambda: self.asked_to_stop,
            on_prompt=self.on_progress,
            digest=self.question.digest,
        )

    def _finish(self, text: TextStream, clock: _Clock, engine: Engine) -> str:
        stopped, tail = text.stopped is not None, text.finish()
        request = self.question.request
        stats = clock.stats(len(request.prompt), len(self.tokens))
        if engine.drafter:
            tally = engine.drafter.tally
            stats = replace(stats, drafted=tally.drafted, accepted=tally.accepted, rows=tally.rows)
        self.completion = self.model._completion(
            self.question,
            tokens=tuple(self.tokens),
            commits=tuple(self.commits),
            text="".join(self.shown) + tail,
            stop_reason=_stop_reason(request, self.tokens, stopped, self.model.context),
            stats=stats,
        )
        return tail


class _Clock:
    """Times of the start, the first and the last token."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._start = self._first = self._last = time.perf_counter()
        self._ticked = False

    def tick(self) -> None:
        self._last = time.perf_counter()
        if not self._ticked:
            self._first, self._ticked = self._last, True

    def stats(self, prompt_tokens: int, tokens: int) -> Stats:
        return Stats(prompt_tokens, self._first - self._start, max(tokens - 1, 0), self._last - self._first)


def _stop_reason(request: Request, tokens: Sequence[int], stopped: bool, context: int) -> str:
    """Why a completion ended; where several reasons fit, the first in the order of STOP_REASONS."""
    if tokens and tokens[-1] in request.end_tokens:
        return "end"
    if stopped:
        return "stop"
    if len(tokens) == request.max_tokens:
        return "length"
    return "context" if len(request.prompt) + len(tokens) == context else "interrupt"
