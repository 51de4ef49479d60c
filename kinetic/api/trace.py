"""Tracing one token of a receipt: its tokens again up to that one, and then what every operation gives.

Two engines run one after the other. The first is the one that answers; it reads the tokens before the row, and
computes the row. The second takes up the state before the row, and taps every operation, so that none is fused with
another: both must give the same logits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinetic import packs, store
from kinetic.api.opening import choose_device, choose_kernel_folder, open_engine
from kinetic.api.profiles import plan
from kinetic.api.rerun_models import Models, _model_errors, _rope
from kinetic.api.trace_file import Op, Traced, digest, header
from kinetic.attest import FEATURES
from kinetic.bits import F32
from kinetic.errors import UsageError
from kinetic.layers.traced import Trace
from kinetic.types import PROFILE
from ktc.digest import logits_digest, token_digest
from ktc.errors import Malformed, Unverifiable
from receipts import checks, encode, identity, sign
from receipts import verify as rules
from receipts.schema import Record

if TYPE_CHECKING:
    from kinetic.backends.base import Ops
    from kinetic.engine import Engine
    from kinetic.engine.token_sequence import Saved, TokenSequence
    from receipts.withhold import Opening

PIECE = 512
"""Tokens read at once before the row."""

MOST_ROWS = 128
"""Rows of the pass that is traced: what the CPU taps at once."""


class Made(NamedTuple):
    """A trace, and what can be said of it alone."""

    trace: Traced
    is_same_unwatched: bool
    """The pass that was not watched gave the same logits."""
    agrees: bool | None
    """With the receipt's digest of these logits; None where it has none."""


class Options(NamedTuple):
    """How to rerun: as ``kinetic.api.verify.Checker``, which see. ``rows`` are computed together in the last pass."""

    model: str | os.PathLike[str] | None = None
    adapters: Sequence[str | os.PathLike[str]] = ()
    device: str = "cpu"
    gpu_layers: int | str = "auto"
    threads: int = 0
    pack_cache: bool = True
    opening: Opening | None = None
    rows: int = 1
    on_hash: store.Progress | None = None
    on_rerun: store.Progress | None = None
    progress: Callable[[str], None] | None = None


def trace(receipt: str | os.PathLike[str] | bytes, token: int, **options: Any) -> Made:
    """Output token ``token`` of a receipt, counted from 0. ``options`` are those of ``Options``.

    Raises UsageError for a token that the answer has not, and every KtcError that ends a verification.
    """
    asked = Options(**options)
    device, layers = choose_device(asked.device, asked.progress, asked.gpu_layers)
    if not 1 <= asked.rows <= MOST_ROWS:
        raise UsageError(f"the rows of the last pass are from 1 to {MOST_ROWS}", name="BAD_ROWS")
    record, entries = encode.read_receipt(receipt)
    sign.check_signatures(record, entries)
    opened, salt = rules.open_withheld(checks.check_record(record), asked.opening)
    rules.require_judgeable(opened, PROFILE, FEATURES)
    output = opened["output"]["tokens"]
    if not 0 <= token < len(output):
        has = f"tokens 0 to {len(output) - 1}" if output else "no tokens"
        raise UsageError(f"the answer has {has}, and --token asks for {token}", name="NO_SUCH_TOKEN")
    before = [*opened["prompt"]["tokens"], *output[:token]]
    with contextlib.closing(_Rerun(opened, asked, device, layers)) as rerun:
        ops, plain, engine = rerun.run(before)
    head = header(
        engine_id=engine.engine_id,
        device_class=engine.device_class,
        threads=engine.threads,
        rows=min(asked.rows, len(before)),
        model=record["model"],
        adapters=record["adapters"],
        overrides=record["overrides"],
        receipt=identity.receipt_id(record),
        token=token,
        position=len(before) - 1,
        input=token_digest(before),
        logits=digest(_bytes(plain)).hex(),
    )
    agrees = None
    if record["logit_commit"]:
        agrees = logits_digest(_bytes(plain), salt or b"").hex() == record["logit_commit"][token]
    return Made(Traced(head, ops), ops[-1].values == _bytes(plain), agrees)


class _Rerun:
    """A receipt's model, opened twice."""

    def __init__(self, record: Record, asked: Options, device: str, layers: int | None) -> None:
        """``device`` and ``layers`` are those that ``asked`` means."""
        self._record, self._asked, self._device, self._layers = record, asked, device, layers
        # They only find the files.
        self._models = Models(asked.model, asked.adapters, {}, asked.on_hash, asked.progress)

    def run(self, tokens: Sequence[int]) -> tuple[list[Op], F32, Any]:
        """Operations of the last token's row, its logits float32 [V] unwatched, and the identity of the engine."""
        watch = Trace()
        with self._engine(None) as engine:
            _require_readable(tokens, engine)
            plain, saved = self._read(tokens, engine.sequence())
            about = engine.identity
        with self._engine(watch) as engine:
            sequence = engine.sequence()
            if saved.tokens:
                sequence.restore(saved)
            last = tokens[len(saved.tokens) :]
            sequence.feed(last, (len(last) - 1,))
            ops = [Op(*tapped, _bytes(rows[-1])) for tapped, rows in watch.rows(engine.taps())]
        self._models.require_unchanged()
        return ops, plain, about

    @contextlib.contextmanager
    def _engine(self, watch: Callable[[Ops], Ops] | None) -> Iterator[Engine]:
        asked = self._asked
        loaded, found, adapters = self._models.files(self._record)
        keeps = asked.pack_cache and not adapters
        with _model_errors():
            choose_kernel_folder(asked.progress)
            engine = open_engine(
                loaded,
                self._device,
                plan(loaded.profiles, self._device, asked.threads).threads,
                0,
                packs.cache_of(loaded, lambda: found) if keeps else None,
                asked.progress,
                adapters,
                _rope(self._record),
                gpu_layers=self._layers,
                watch=watch,
            )
            try:
                yield engine
            finally:
                engine.close()

    def _read(self, tokens: Sequence[int], sequence: TokenSequence) -> tuple[F32, Saved]:
        """Logits of the last token, computed with the rows before it as asked, and the sequence as it was before."""
        first = max(0, len(tokens) - self._asked.rows)
        for start in range(0, first, PIECE):
            end = min(first, start + PIECE)
            sequence.feed(tokens[start:end])
            if self._asked.on_rerun:
                self._asked.on_rerun(end, len(tokens))
        saved = sequence.save()
        return sequence.feed(tokens[first:], (len(tokens) - first - 1,))[0], saved

    def close(self) -> None:
        self._models.close()


def _require_readable(tokens: Sequence[int], engine: Engine) -> None:
    if max(tokens) >= engine.vocab_size:
        raise Malformed(f"token id {max(tokens)} is not in the vocabulary of {engine.vocab_size}", name="TOKEN_RANGE")
    if len(tokens) > engine.context:
        raise Unverifiable(f"this model reads {engine.context} tokens and no {len(tokens)}", name="REPLAY_ENDED")


def _bytes(row: F32) -> bytes:
    return np.ascontiguousarray(row, "<f4").tobytes()
