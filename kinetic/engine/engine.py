"""One model on one device: prompt in, steps out, and the replay that verifies them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetic import models
from kinetic.backends import open_backend
from kinetic.bits import F32
from kinetic.engine.drafts import GAP, Drafter, ModelSource, NgramSource, RowCosts
from kinetic.engine.passes import Passes
from kinetic.engine.seeing import Seeing, hidden_drafter
from kinetic.engine.token_sequence import TokenSequence
from kinetic.engine.warm import DiskStore, Warm
from kinetic.errors import ContextOverflow, UnsupportedModel, UsageError
from kinetic.layers.adapted import Lora, adapted
from kinetic.sampling import Sampler
from kinetic.types import Batch, PackCache, PrefixCache, Request, Step

if TYPE_CHECKING:
    from kinetic.backends.base import Backend, Ops, Program, Weights
    from kinetic.engine.drafts import Source
    from kinetic.gguf import Gguf
    from kinetic.models.family import HiddenDrafter

PROMPT_ROWS = 512
"""Rows of one pass over a prompt. Any number gives the same bits; this one keeps a pass short enough to interrupt."""

WARM_BYTES = 1 << 30
"""Of keys and values of earlier prompts, unless another limit is given."""

REPLAY_ROWS = 128
"""Rows of one pass when every row's logits are wanted: 128 x 262,144 float32 are 134 MB."""

Progress = Callable[[int, int], None]

Digest = Callable[[F32], bytes]
"""Digest of a row of logits as the model gives them: float32 [V], before bias and penalties."""


@dataclass(frozen=True)
class EngineIdentity:
    """Claims for a receipt: which code, on what kind of device. Known once a model is loaded."""

    engine_id: str
    device_class: str
    device_name: str
    threads: int


class Engine:
    """Not thread-safe: one completion at a time. Key/value memory grows as positions are used."""

    prompt_rows = 0
    """Rows of a prompt at once; 0: PROMPT_ROWS. Set to fewer where that is faster, as a bundle's profile does."""

    reused = 0
    """Of the last prompt, the tokens that were not computed anew. No bit depends on it."""

    drafter: Drafter | None
    """What guesses tokens ahead, if anything. No bit depends on it."""

    def __init__(
        self,
        gguf: Gguf,
        weights: Weights,
        *,
        backend: str = "cpu",
        gpu_layers: int | None = None,
        cpu_moe: int = 0,
        threads: int = 0,
        context: int = 0,
        progress: Callable[[str], None] | None = None,
        packs: PackCache | None = None,
        watch: Callable[[Ops], Ops] | None = None,
        adapters: Sequence[Lora] = (),
        off: Collection[str] = (),
        draft: Engine | HiddenDrafter | None = None,
        clock: Callable[[], float] | None = None,
        prefixes: PrefixCache | None = None,
        warm_bytes: int = WARM_BYTES,
    ) -> None:
        """``context`` 0 is the model's own length; more than that is refused. ``progress`` gets one-line news.
        ``gpu_layers`` and ``cpu_moe`` are as in ``backends.open_backend``. ``packs`` is where the backend may keep the
        weights for the next time. ``watch`` makes the operations that the model is built with from a backend's own: it
        may tap them (``taps``), or compute something else. ``adapters`` are fitted to this model (kinetic.adapters);
        with them there are no ``packs``, which hold the model's weights alone.
        ``off`` names speed-ups to do without (``types.SPEED_UPS``), ``draft`` is a smaller model with the same
        vocabulary that guesses ahead, and closed with this one, or a drafter that reads the hidden rows of this model;
        without one, that is the model's own layer for one token more. ``clock`` tells in seconds what passes cost.
        ``prefixes`` is where to keep what was computed of prompts for the next start, ``warm_bytes`` what that may take
        in memory. What the operations are watched for is kept in no file.
        """
        self._off = frozenset(off)
        family = self._family = models.build(gguf, weights)
        self.context, self.vocab_size = _context(context, family.context_length), family.vocab_size
        place: dict[str, Any] = {"gpu_layers": gpu_layers, "context": self.context, "cpu_moe": cpu_moe, "clock": clock}
        device = open_backend(backend, threads=threads, **place)
        is_wanted = "drafts" not in off and not watch
        small, forward = hidden_drafter(family, draft) if is_wanted else (None, family.forward)
        if adapters:
            forward, packs = adapted(forward, adapters, weights), None
        watched = (lambda ops: forward(watch(ops))) if watch else forward
        self._loaded = (
            None if family.embedding.only else device.load(watched, family.attention, progress, packs, family.states)
        )
        self.identity = EngineIdentity(device.engine_id, device.device_class, device.device_name, device.threads)
        self._seeing = self._make_seeing(device, small, progress, warm_bytes) if small else None
        self._warm = None if "warm" in off else self._make_warm(None if watch else prefixes, warm_bytes)
        self._draft, self._clock = draft if isinstance(draft, Engine) else None, clock
        self._costs = RowCosts()
        self.drafter = None if self._loaded is None or "drafts" in off else self.fresh_drafter()

    def _make_seeing(
        self, device: Backend, small: HiddenDrafter, progress: Callable[[str], None] | None, memory: int
    ) -> Seeing:
        return Seeing(device, self._program, small, progress, None if "warm" in self._off else memory)

    def _make_warm(self, prefixes: PrefixCache | None, memory: int) -> Warm | None:
        """``memory`` in bytes, of which a drafter of hidden rows has its part."""
        if self._loaded is None or not self._loaded.can_keep:
            return None
        memory -= self._seeing.memory if self._seeing else 0
        facts = (self.identity.engine_id, repr(self._family.attention), repr(self._family.states))
        return Warm(self._loaded, memory, DiskStore(prefixes, self._loaded, facts) if prefixes else None)

    @property
    def _program(self) -> Program:
        """Raises UnsupportedModel for a model that gives no logits."""
        if self._loaded is None:
            raise UnsupportedModel(
                f"a {self._family.architecture} model makes embeddings and no text: use `kinetic embed`",
                name="EMBEDDING_MODEL",
            )
        return self._loaded

    def fresh_drafter(self, costs: RowCosts | None = None) -> Drafter:
        """One that knows nothing of earlier requests, but what passes cost."""
        self._costs = costs or self._costs
        sources: list[Source] = [NgramSource()]
        if self._draft:
            if self._draft.vocab_size != self.vocab_size:
                raise UsageError(
                    f"the draft model has a vocabulary of {self._draft.vocab_size} tokens and the model one of"
                    f" {self.vocab_size}: a draft model needs the same vocabulary",
                    name="OTHER_VOCABULARY",
                )
            sources.append(ModelSource(self._draft._program, self._draft.context, self._clock))
        if self._seeing:
            sources.append(self._seeing.source(self._clock))
        return Drafter(sources, self._costs, can_branch=self._program.can_branch)

    # ---- asking

    def generate(
        self,
        request: Request,
        should_stop: Callable[[], bool] | None = None,
        on_prompt: Progress | None = None,
        digest: Digest | None = None,
    ) -> Generator[Step, None, None]:
        """Steps until an end token, ``max_tokens``, the end of the context, or ``should_stop()``.

        ``on_prompt`` is told (prompt tokens done, in all); ``digest`` gives each step its ``commit``.
        Raises ContextOverflow before anything runs, NonFinite.
        """
        sampler = self._sampler(request)
        history = list(request.prompt)
        best = 0 if digest or "shortlist" in self._off else sampler.best
        if self.drafter:
            self.drafter.begin(history)
        row = self._prompt(history, should_stop, on_prompt, best)
        limit = self.context - len(history)
        limit = limit if request.max_tokens < 0 else min(limit, request.max_tokens)
        look = self._seeing.rows if self._seeing else None
        passes = Passes(self._program, self.drafter, len(history), sampler.choice, self._clock, look, best)
        try:
            while row is not None and limit > 0:
                step = self._step(sampler, row, history, digest)
                yield step
                history.append(step.token)
                limit -= 1
                if step.token in request.end_tokens or limit == 0 or (should_stop and should_stop()):
                    return
                row = passes.row(history, limit - 1)
        finally:
            passes.settle(history)
            if self._warm:
                self._warm.settle(history)

    def prefill(
        self, tokens: Sequence[int], should_stop: Callable[[], bool] | None = None, on_prompt: Progress | None = None
    ) -> int:
        """Computes ahead what a prompt will probably begin with. Returns how many of ``tokens`` are then there; 0 where
        warm starts are off. What is there already is kept as far as it is the same. No answer depends on it.
        """
        if self._warm is None:
            return 0
        self._check(tokens)
        if self.drafter:
            self.drafter.read_ahead(tokens)
        try:
            self._prompt(tokens, should_stop, on_prompt, ahead=True)
        finally:
            self._warm.settle(tokens)
        return self._program.length(0)

    def keep(self) -> None:
        """After an answer: what was computed of it goes to files, if there is a place, beside what comes next."""
        if self._warm:
            self._warm.keep()

    def replay(
        self,
        request: Request,
        output: Sequence[int],
        on_progress: Progress | None = None,
        digest: Digest | None = None,
    ) -> Generator[Step, None, None]:
        """For each position of ``output``: what plain decoding draws there, given the prompt and the output before.

        Sound because a row of a batch has the bits that it has alone. Reads no saved state. ``on_progress`` is told
        (tokens done, in all), those of the prompt included; ``digest`` is as in ``generate``.
        """
        sampler = self._sampler(request)
        # What goes beyond the context plain decoding never draws: the steps end there, as those of ``generate`` do.
        output = output[: self.context - len(request.prompt)]
        whole = [*request.prompt, *output]
        tokens = whole[:-1]
        first = len(request.prompt) - 1
        self._begin_anew()
        start = 0
        while start < len(tokens) and output:
            rows_at_once = PROMPT_ROWS if start + PROMPT_ROWS <= first else REPLAY_ROWS
            end = min(len(tokens), start + rows_at_once)
            wanted = tuple(range(max(first - start, 0), end - start))
            rows = self._program.rows(_batch(tokens[start:end], start, wanted), sampler.choice)
            if on_progress:
                on_progress(end, len(tokens))
            for offset, row in zip(wanted, rows, strict=True):
                yield self._step(sampler, row, whole[: start + offset + 1], digest)
            start = end

    def logits(self, tokens: Sequence[int], first: int = 0) -> F32:
        """Logits float32 [len(tokens) - first, V] of rows ``first`` and later, of a fresh sequence."""
        return np.concatenate(list(self.passes(tokens, first, REPLAY_ROWS)))

    def passes(self, tokens: Sequence[int], first: int = 0, rows: int = PROMPT_ROWS) -> Iterator[F32]:
        """As ``logits``, pass by pass: ``rows`` at most are computed at once, and each pass gives those it has."""
        self._begin_anew()
        for start in range(0, len(tokens), rows):
            piece = tokens[start : start + rows]
            yield self._logits(piece, start, tuple(range(min(max(first - start, 0), len(piece)), len(piece))))

    def sequence(self) -> TokenSequence:
        """A fresh sequence of tokens, to go forth and back in; answers and other passes end it."""
        self._begin_anew()
        return TokenSequence(self._program)

    def taps(self) -> dict[str, F32]:
        """What was tapped in the last pass, by name: see ``backends.base.Ops.tap``."""
        return self._program.taps()

    def close(self) -> None:
        if self._warm:
            self._warm.close()
        if self._loaded is not None:
            self._loaded.close()
        if self._seeing:
            self._seeing.close()
        if self._draft:
            self._draft.close()

    # ---- parts

    def _begin_anew(self) -> None:
        """Makes the sequence empty, whatever was kept of it."""
        if self._warm:
            self._warm.forget()
        self._program.truncate(0, 0)

    def _sampler(self, request: Request) -> Sampler:
        self._check(request.prompt)
        return Sampler(request.sampling, request.completion_index, self.vocab_size, request.breakers)

    def _check(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise UsageError("the prompt is empty: it must have at least one token", name="EMPTY_PROMPT")
        bad = [token for token in prompt if not 0 <= token < self.vocab_size]
        if bad:
            raise UsageError(f"token {bad[0]} is not in the vocabulary of {self.vocab_size}", name="BAD_TOKEN")
        if len(prompt) >= self.context:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens and the context holds {self.context}: "
                "shorten it, or raise --ctx-size if the model allows"
            )

    def _prompt(
        self,
        tokens: Sequence[int],
        should_stop: Callable[[], bool] | None,
        on_prompt: Progress | None,
        best: int = 0,
        *,
        ahead: bool = False,
    ) -> F32 | None:
        """Logits float32 [V] after the prompt, the ``best`` ones at least; None if stopped on the way, or if it is only
        computed ahead."""
        at_once = self.prompt_rows or PROMPT_ROWS
        total, row = len(tokens), None
        if self._warm:
            start = self.reused = self._seen_from(self._warm.begin([*tokens, 0] if ahead else tokens))
            ends = self._warm.ends(start, total, at_once, at_end=ahead)
        else:
            self._program.truncate(0, 0)
            start, ends = 0, iter([*range(at_once, total, at_once), total])
        first = start
        for end in ends:
            if start > first and should_stop and should_stop():
                return None
            outputs = (end - start - 1,) if end == total and not ahead else ()
            rows = self._logits(tokens[start:end], start, outputs, best)
            if self._seeing and self.drafter and self.drafter.sees:
                self.drafter.see(start, tokens[start:end], self._seeing.rows())
            start, row = end, rows[0] if len(rows) else None
            if on_prompt:
                on_prompt(end, total)
        return row

    def _seen_from(self, start: int) -> int:
        """Where to begin behind ``start`` positions: where that is cheap, so that a drafter misses no hidden row."""
        if self._program.state_bytes or not (self._seeing and self.drafter and self.drafter.sees):
            return start
        wanted = self.drafter.wanted
        return self._program.truncate(0, wanted) if start - GAP <= wanted < start else start

    def _logits(self, tokens: Sequence[int], start: int, outputs: tuple[int, ...], best: int = 0) -> F32:
        return self._program.run(_batch(tokens, start, outputs), best=best)

    def _step(self, sampler: Sampler, row: F32, history: Sequence[int], digest: Digest | None) -> Step:
        draw = sampler.draw(row, history, self._program.candidates, self._program.exp)
        commit = digest(row) if digest else b""  # after the draw, which changes no row and refuses some
        return Step(draw.token, len(history), draw.runner_up, draw.gap, commit)


def _batch(tokens: Sequence[int], start: int, outputs: tuple[int, ...]) -> Batch:
    return Batch(tuple(tokens), tuple(range(start, start + len(tokens))), (0,) * len(tokens), outputs)


def _context(wanted: int, longest: int) -> int:
    if wanted > longest:
        message = f"a context of {wanted} is more than the {longest} this model was made for"
        raise UsageError(f"{message}; --rope-scale stretches its positions", name="CONTEXT_TOO_LONG")
    return wanted or longest
