"""A model that is read for vectors of texts, and for scores of documents."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kinetic import packs, store
from kinetic.api import profiles
from kinetic.api.describe import formats_not_built_in
from kinetic.api.normalise import EUCLIDEAN, normalise
from kinetic.api.opening import choose_device
from kinetic.api.probe import backend_environment
from kinetic.engine import EmbeddingEngine
from kinetic.errors import UnsupportedModel, UsageError
from kinetic.loader import Check, LoadedFile, open_model_file
from kinetic.models import ARCHITECTURES
from kinetic.text import load_tokenizer
from kinetic.text.pairs import encode_pair, rank_template
from kinetic.types import RopeOverrides

if TYPE_CHECKING:
    from kinetic.adapters import Adapter
    from kinetic.bits import F32
    from kinetic.text.tokenizer import Tokenizer
    from kinetic.types import ModelIdentity

POOLINGS = ("none", "mean", "cls", "last", "rank")
"""What makes one vector of a text's rows: nothing, their mean, the first, the last, or a rank head."""


class Embedder:
    """Close it when done. ``pooling`` is one of ``POOLINGS``, "" what the file says; ``threads`` 0 is one per core.

    ``model`` may be an open file, which stays open. ``device`` and ``gpu_layers`` are as in ``Model``. Raises what
    ``Model`` raises, and UnsupportedModel for a pooling that the model has not.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | LoadedFile,
        *,
        pooling: str = "",
        device: str = "cpu",
        gpu_layers: int | str = "auto",
        threads: int = 0,
        check: Check = "lazy",
        pack_cache: bool = True,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if pooling and pooling not in POOLINGS:
            raise UsageError(f"there is no pooling {pooling}: give one of {', '.join(POOLINGS)}", name="NO_POOLING")
        device, layers = choose_device(device, progress, gpu_layers)
        self._is_mine = not isinstance(model, LoadedFile)
        self._loaded = model if isinstance(model, LoadedFile) else open_model_file(store.resolve(model), check=check)
        try:
            self._loaded.check_ahead()
            metadata = self._loaded.gguf.metadata
            if metadata.get("general.architecture") in ARCHITECTURES:
                for reason in formats_not_built_in(self._loaded.gguf):
                    raise UnsupportedModel(reason, name="UNSUPPORTED_WEIGHT_TYPE")
            self.tokenizer: Tokenizer = load_tokenizer(metadata, store.writable("tokenizers") if pack_cache else None)
            self._template = rank_template(metadata)
            with backend_environment(""):
                self._engine = EmbeddingEngine(
                    self._loaded.gguf,
                    self._loaded.weights,
                    pooling=pooling,
                    backend=device,
                    gpu_layers=layers,
                    threads=profiles.plan(self._loaded.profiles, device, threads).threads,
                    progress=progress,
                    packs=packs.cache_of(self._loaded, lambda: self.identity) if pack_cache else None,
                )
            self._loaded.gguf.release_all()
        except BaseException:
            self._close_file()
            raise
        self.path = self._loaded.gguf.paths[0]
        self.pooling, self.labels, self.context = self._engine.pooling, self._engine.labels, self._engine.context

    @property
    def identity(self) -> ModelIdentity:
        """The model's files with their digests. The first call may hash them."""
        return self._loaded.identity()

    def encode(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """Token ids of each text, with what the model wants around it. Raises UsageError for an empty one."""
        for number, text in enumerate(texts):
            if not text:
                raise UsageError(f"text {number + 1} is empty, and there is nothing to embed", name="EMPTY_TEXT")
        return [self.tokenizer.encode(text, add_special=True, parse_special=parse_special) for text in texts]

    def vectors(self, tokens: Sequence[Sequence[int]], normalize: int = EUCLIDEAN) -> list[F32]:
        """Of each text float32 [1, d], or [tokens, d] with the pooling 'none'; normalised as ``normalise`` says.

        A text's vector has the same bits whatever texts it is computed with. Raises ContextOverflow and NonFinite.
        """
        if self.pooling == "rank":
            raise UsageError(
                "this model ranks documents: use `kinetic rerank`, or name another pooling", name="RANK_POOLING"
            )
        return [normalise(rows, normalize) for rows in self._engine.vectors(tokens)]

    def embed(self, texts: Sequence[str], normalize: int = EUCLIDEAN) -> F32:
        """Vectors float32 [n, d]; with the pooling 'none' those of all tokens of all texts, one after another."""
        if not texts:
            raise UsageError("there is no text to embed", name="EMPTY_TEXT")
        return np.concatenate(self.vectors(self.encode(texts), normalize))

    def pairs(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """Token ids of the query with each document, as the model wants them."""
        if not query:
            raise UsageError("the query is empty", name="EMPTY_TEXT")
        if not documents:
            raise UsageError("there is no document to rank", name="EMPTY_TEXT")
        for number, text in enumerate(documents):
            if not text:
                raise UsageError(f"document {number + 1} is empty", name="EMPTY_TEXT")
        return [encode_pair(self.tokenizer, self._template, query, document) for document in documents]

    def scores(self, pairs: Sequence[Sequence[int]]) -> F32:
        """Of each pair float32 [n, labels], the rank head's output; the first is what documents are ranked by."""
        if self.pooling != "rank":
            raise UsageError("scores need the pooling 'rank'", name="RANK_POOLING")
        return np.concatenate(list(self._engine.vectors(pairs)))

    def close(self) -> None:
        self._engine.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._is_mine:
            self._loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Embeds:
    """What ``Model`` offers of this. Each pooling that is asked for is loaded once, beside what writes text."""

    device: str
    _gpu_layers: int | str
    _loaded: LoadedFile
    _pack_cache: bool
    _plan: profiles.Plan
    _adapters: tuple[Adapter, ...]
    _rope: RopeOverrides

    @functools.cached_property
    def _embedders(self) -> dict[str, Embedder]:
        """By pooling."""
        return {}

    def _held(self) -> AbstractContextManager[Any]:
        """Until it is left, nobody else is answered. Raises UsageError of a closed model."""
        raise NotImplementedError

    def embed(self, texts: Sequence[str], *, pooling: str = "", normalize: int = EUCLIDEAN) -> F32:
        """Vectors of texts, float32 [n, d], normalised to length 1 (-1: not at all).

        ``pooling`` "" is what the file says. Raises UsageError where it says none: then name 'mean' or 'last', or
        'none' for the vectors of all tokens of all texts, one after another.
        """
        with self._held():
            embedder = self._embedder(pooling)
            if embedder.pooling == "none" and pooling != "none":
                raise UsageError(
                    "this model's file names no pooling: give pooling 'mean' or 'last', or 'none'", name="NO_POOLING"
                )
            return embedder.embed(texts, normalize)

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """How well each document answers the query: the first score of the model's rank head.

        Raises UnsupportedModel for a model that has none.
        """
        with self._held():
            embedder = self._embedder("rank")
            return [float(score) for score in embedder.scores(embedder.pairs(query, documents))[:, 0]]

    def _embedder(self, pooling: str) -> Embedder:
        found = self._embedders.get(pooling)
        if found is None:
            if self._adapters or self._rope != RopeOverrides():
                raise UsageError(
                    "vectors know neither adapters nor other rotary positions than the file's: open the model without",
                    name="EMBEDS_PLAIN",
                )
            found = self._embedders[pooling] = Embedder(
                self._loaded,
                pooling=pooling,
                device=self.device,
                gpu_layers="auto" if self.device == "cpu" else self._gpu_layers,
                threads=self._plan.threads,
                pack_cache=self._pack_cache,
            )
        return found

    def _close_embedders(self) -> None:
        for embedder in self._embedders.values():
            embedder.close()
        self._embedders.clear()
