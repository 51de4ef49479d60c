"""A model that is read for its logits alone: what perplexity, divergences and importance matrices are taken from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kinetic import packs, store
from kinetic.api import profiles
from kinetic.api.opening import Asked, choose_device, close_all, open_adapters, open_engine, rope_overrides
from kinetic.api.probe import backend_environment
from kinetic.errors import ContextOverflow, UsageError
from kinetic.loader import Check, open_model_file
from kinetic.text import load_tokenizer

if TYPE_CHECKING:
    from kinetic.backends.base import Ops, Weights
    from kinetic.bits import F32
    from kinetic.types import ModelIdentity, RopeOverrides

Progress = Callable[[int, int], None]
"""Told (done, in all)."""

ROWS = 512
"""Rows of a pass unless somebody asks for fewer; what the CPU computes at once."""


class Scorer:
    """Close it when done. ``threads`` 0 is one per core, ``context`` 0 the model's own; ``device``, ``gpu_layers``,
    ``adapters`` and ``rope`` are as in ``Model``.

    ``weights`` makes other weights from the file's, ``watch`` other operations from a backend's (``Engine``); with
    the former no packed weights are kept. Raises what ``Model`` raises.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        gpu_layers: int | str = "auto",
        threads: int = 0,
        context: int = 0,
        check: Check = "lazy",
        pack_cache: bool = True,
        adapters: Iterable[Asked] = (),
        rope: RopeOverrides | Mapping[str, Any] | None = None,
        progress: Callable[[str], None] | None = None,
        weights: Callable[[Weights], Weights] | None = None,
        watch: Callable[[Ops], Ops] | None = None,
    ) -> None:
        device, layers = choose_device(device, progress, gpu_layers)
        self._adapters = open_adapters(adapters)
        try:
            self._loaded = open_model_file(store.resolve(model), check=check)
        except BaseException:
            close_all(self._adapters)
            raise
        try:
            self._loaded.check_ahead()
            metadata = self._loaded.gguf.metadata
            self.tokenizer = load_tokenizer(metadata, store.writable("tokenizers") if pack_cache else None)
            keeps = pack_cache and weights is None and not self._adapters
            with backend_environment(""):
                self._engine = open_engine(
                    self._loaded,
                    device,
                    profiles.plan(self._loaded.profiles, device, threads).threads,
                    context,
                    packs.cache_of(self._loaded, lambda: self.identity) if keeps else None,
                    progress,
                    self._adapters,
                    rope_overrides(rope),
                    gpu_layers=layers,
                    weights=weights(self._loaded.weights) if weights else None,
                    watch=watch,
                )
            self._loaded.gguf.release_all()
        except BaseException:
            self._close_files()
            raise
        self.path = self._loaded.gguf.paths[0]
        self.vocab_size, self.context = self._engine.vocab_size, self._engine.context
        self.threads, self.device_name = self._engine.identity.threads, self._engine.identity.device_name

    @property
    def identity(self) -> ModelIdentity:
        """The model's files with their digests. The first call may hash them."""
        return self._loaded.identity()

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Token ids of a text, after BOS if the model wants it. Raises UsageError for models that add EOS."""
        if self.tokenizer.add_eos:
            raise UsageError(
                "this model's tokenizer ends each text with EOS, so it can't be cut into chunks", name="EOS"
            )
        return self.tokenizer.encode(text, add_special=True, parse_special=parse_special)

    def chunk(self, tokens: Sequence[int]) -> list[int]:
        """A chunk of a longer text as the model is to read it: its first token becomes BOS if the model adds one."""
        bos = self.tokenizer.bos
        return [bos, *tokens[1:]] if self.tokenizer.add_bos and bos is not None else list(tokens)

    def passes(self, tokens: Sequence[int], first: int = 0, rows: int = ROWS) -> Iterator[F32]:
        """Logits float32 [n, V] of rows ``first`` and later of a sequence, pass by pass of at most ``rows`` rows."""
        if len(tokens) > self.context:
            raise ContextOverflow(f"{len(tokens)} tokens are more than a context of {self.context} holds: lower -c")
        bad = [token for token in tokens if not 0 <= token < self.vocab_size]
        if bad:
            raise UsageError(f"token {bad[0]} is not in the vocabulary of {self.vocab_size}", name="BAD_TOKEN")
        return self._engine.passes(tokens, first, rows)

    def taps(self) -> dict[str, F32]:
        """What ``watch`` tapped in the last pass, by name: float32 [rows, width]."""
        return self._engine.taps()

    def close(self) -> None:
        self._engine.close()
        self._close_files()

    def _close_files(self) -> None:
        self._loaded.close()
        close_all(self._adapters)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
