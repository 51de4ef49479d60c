"""A model row by row, and single operations on any backend: what the conformance suite sees of the engine.

    with Probe("model.gguf", device="cpu", threads=1, isa="plain") as probe:
        logits = probe.feed(tokens, [1])

Answers come from ``kinetic.api.Model``; nothing here is needed for them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kinetic import rng, store
from kinetic.backends import known, open_backend, others_than, rope_tables
from kinetic.backends.base import Attention, Forward, State, Weight
from kinetic.bits import F32
from kinetic.engine import Engine
from kinetic.engine.drafts import Branch, Drafter, Rates, RowCosts
from kinetic.engine.engine import WARM_BYTES
from kinetic.engine.warm import Warm
from kinetic.formats import RUNNABLE, Format, by_type
from kinetic.formats.samples import put_scales
from kinetic.loader import open_model_file
from kinetic.sampling import Sampler
from kinetic.text import load_tokenizer
from kinetic.text.bpe import BYTE_CHARACTERS
from kinetic.types import SPEED_UPS, Batch, ModelIdentity, PackCache, Request, Sampling, Step

if TYPE_CHECKING:
    from kinetic.backends.base import Program
    from kinetic.text.tokenizer import Tokenizer

__all__ = [
    "BYTE_CHARACTERS",
    "Format",
    "Probe",
    "bare",
    "describe_backend",
    "draw",
    "find_model",
    "formats",
    "frequencies",
    "identity_of",
    "instruction_sets",
    "is_device",
    "keeps_packs",
    "others_than",
    "put_scales",
    "random_bits",
    "run_operations",
    "tokenizer_of",
    "usable_cores",
]

frequencies = rope_tables.frequencies
random_bits = rng.random_bits
is_device = known


def formats() -> dict[str, Format]:
    """The weight formats that this build can run, by name, in the order of their numbers."""
    known = [by_type(type_id, "") for type_id in sorted(RUNNABLE)]
    return {fmt.NAME: fmt for fmt in known}


def instruction_sets() -> tuple[list[str], list[str]]:
    """Those of the CPU backend that this processor has, best first, and those that it lacks."""
    from kinetic.backends.cpu import target
    from kinetic.backends.cpu.dots import LANES

    here = target.available()
    return here, [isa for isa in LANES if isa not in here]


def describe_backend(device: str, threads: int = 0) -> dict[str, str]:
    """Engine id, device class and device name, as receipts claim them. Raises UsageError for what can't be had."""
    backend = open_backend(device, threads=threads)
    return {
        "engine_id": backend.engine_id,
        "device_class": backend.device_class,
        "device_name": backend.device_name,
    }


def usable_cores() -> int:
    """Processors that this process may use: as many threads compute by default."""
    from kinetic.backends.cpu.system import available_cores

    return available_cores()


def find_model(model: str | os.PathLike[str]) -> Path:
    """The file of a model: a path, or a name from ``kinetic models``. Raises FileProblem."""
    return store.resolve(model)


def keeps_packs() -> bool:
    """Whether packed weights can be kept on this system at all."""
    from kinetic.backends.cpu import packs

    return packs.IS_POSSIBLE


def identity_of(path: str | os.PathLike[str]) -> ModelIdentity:
    """The files of a model with their digests; of a bundle those of the model in it."""
    with open_model_file(Path(path)) as loaded:
        return loaded.identity()


def tokenizer_of(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a model file; no weight is read."""
    with open_model_file(Path(path)) as loaded:
        return load_tokenizer(loaded.gguf.metadata)


def run_operations(
    forward: Forward,
    layers: Sequence[Attention],
    batches: Sequence[Batch],
    *,
    device: str = "cpu",
    threads: int = 1,
    isa: str = "",
    progress: Callable[[str], None] | None = None,
    states: Sequence[State] = (),
) -> list[F32]:
    """What a forward pass written with ``backends.base.Ops`` gives for each batch, every one on an empty cache."""
    with backend_environment(isa):
        program = open_backend(device, threads=threads).load(forward, layers, progress, None, states)
    try:
        found = []
        for batch in batches:
            for sequence in set(batch.sequences):
                program.truncate(sequence, 0)
            found.append(program.run(batch))
        return found
    finally:
        program.close()


@contextlib.contextmanager
def bare(device: str = "cpu", isa: str = "", *, width: int = 1) -> Iterator[Program]:
    """A backend without a model, for ``exp`` and ``candidates`` of ``width`` numbers: it holds one row of zeros."""

    def least(ops: Any) -> Any:
        return ops.embed(Weight("least", 0, (1, width), np.zeros((1, 4 * width), np.uint8)))

    with backend_environment(isa):
        program = open_backend(device, threads=1).load(least, (), None)
    try:
        yield program
    finally:
        program.close()


def draw(program: Program, row: F32, history: Sequence[int], sampling: Sampling, completion_index: int = 0) -> int:
    """The token that follows ``history`` by its logits, row float32 [V], drawn with a backend's own functions."""
    sampler = Sampler(sampling, completion_index, len(row))
    return sampler.draw(row, history, program.candidates, program.exp).token


@contextlib.contextmanager
def backend_environment(isa: str) -> Iterator[None]:
    """Backends are opened in here: with the user's folder of kernels, for an instruction set ("": the best)."""
    if not os.environ.get("KINETIC_KERNELS"):
        os.environ["KINETIC_KERNELS"] = str(store.folder("kernels"))
    before = os.environ.get("KINETIC_CPU_ISA")
    if isa:
        os.environ["KINETIC_CPU_ISA"] = isa
    try:
        yield
    finally:
        if isa and before is None:
            del os.environ["KINETIC_CPU_ISA"]
        elif before is not None:
            os.environ["KINETIC_CPU_ISA"] = before


class Probe:
    """A model on a device. ``packs`` is where packed weights are kept; without it none are. Close it when done.

    ``isa`` names an instruction set of the CPU backend, "" the best. Raises what ``Model`` raises.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        threads: int = 1,
        isa: str = "",
        packs: PackCache | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._loaded = open_model_file(store.resolve(model))
        try:
            with backend_environment(isa):
                self._engine = Engine(
                    self._loaded.gguf,
                    self._loaded.weights,
                    backend=device,
                    threads=threads,
                    progress=progress,
                    packs=packs,
                    off=SPEED_UPS,
                )
        except BaseException:
            self._loaded.close()
            raise
        self._program = self._engine._program
        self.vocab_size, self.context = self._engine.vocab_size, self._engine.context
        self.architecture = str(self._loaded.gguf.metadata.get("general.architecture"))

    # --- rows of logits ---

    def run(self, batch: Batch) -> F32:
        """One pass: logits float32 [len(batch.outputs), V]."""
        return self._program.run(batch)

    def forget(self, sequence: int = 0, length: int = 0) -> int:
        """Forget the positions of a sequence from ``length`` on. Returns how many are left: recurrent models may have
        to forget more."""
        return self._program.truncate(sequence, length)

    def feed(self, tokens: Sequence[int], sizes: Iterable[int], start: int = 0, sequence: int = 0) -> Iterator[F32]:
        """Logits of all rows of ``tokens`` from position ``start`` on, in passes of ``sizes`` (the last repeats)."""
        done, size, remaining = 0, 1, iter(sizes)
        while done < len(tokens):
            size = next(remaining, size)
            piece = tuple(tokens[done : done + size])
            rows = range(len(piece))
            positions = tuple(start + done + i for i in rows)
            yield self.run(Batch(piece, positions, (sequence,) * len(piece), tuple(rows)))
            done += len(piece)

    # --- answers ---

    def answer(self, request: Request, rows_at_once: int = 0) -> list[Step]:
        """Plain decoding, the prompt read in passes of so many rows (0: as many as the engine takes)."""
        self._engine.prompt_rows = rows_at_once
        return list(self._engine.generate(request, digest=_digest))

    def drafted(self, request: Request, propose: Callable[[Sequence[int]], Sequence[Sequence[int]]]) -> list[Step]:
        """The same, where ``propose(tokens so far)`` guesses ways on, all of which are checked however bad they are."""
        self._engine.drafter = Drafter([_Asked(propose)], _Free(), can_branch=self._program.can_branch)
        try:
            return list(self._engine.generate(request, digest=_digest))
        finally:
            self._engine.drafter = None

    def warmed(self, requests: Sequence[Request]) -> list[list[Step]]:
        """The answers to these, one after the other, each with what is known from those before it."""
        self._engine._warm = Warm(self._program, WARM_BYTES)
        try:
            return [list(self._engine.generate(request, digest=_digest)) for request in requests]
        finally:
            self._engine._warm = None

    def replay(self, request: Request, output: Sequence[int]) -> list[Step]:
        """The steps of an answer, read in batches as a verifier does."""
        return list(self._engine.replay(request, output, digest=_digest))

    def draw(self, row: F32, history: Sequence[int], sampling: Sampling, completion_index: int = 0) -> int:
        """The token that follows ``history`` by its logits, row float32 [V]."""
        return draw(self._program, row, history, sampling, completion_index)

    # --- the end ---

    def close(self) -> None:
        self._engine.close()
        self._loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Free(RowCosts):
    """Rows cost next to nothing, so that whatever is guessed is checked."""

    fork = 0.0

    def of(self, rows: int) -> float:
        return 1 + 1e-6 * rows


class _Asked:
    """A function as a source, that is believed whatever it says."""

    spent = 0.0

    def __init__(self, propose: Callable[[Sequence[int]], Sequence[Sequence[int]]]) -> None:
        self._propose = propose

    def begin(self, prompt: Sequence[int]) -> None:
        self.rates = Rates([0.9, 0.4])

    def extend(self, token: int) -> None:
        self.rates = Rates([0.9, 0.4])

    def propose(self, history: Sequence[int], longest: int) -> Iterator[Branch]:
        for tokens in self._propose(history):
            yield Branch(tokens[:longest], [0] * len(tokens[:longest]), 1)


def _digest(row: F32) -> bytes:
    from ktc.digest import logits_digest

    return logits_digest(row.astype("<f4", copy=False).view("u1").data, b"")
