"""The model that a rerun needs, with its adapters and settings: found by hashes, hashed again, opened and kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic import store
from kinetic.attest import adapters_of, rope_of
from kinetic.errors import FileProblem, KineticError, UsageError
from kinetic.loader import LoadedFile, open_model_file
from kinetic.types import SPEED_UPS, AdapterFile, ModelIdentity
from ktc.canonical import show
from ktc.errors import Unverifiable
from receipts.schema import Record

if TYPE_CHECKING:
    from kinetic.adapters import Adapter
    from kinetic.api.model import Model

Claim = tuple[tuple[int, str, str], ...]
"""What a receipt says of its model's files: size, BLAKE3 and SHA-256 of each, in order."""

Setup = tuple[Any, ...]
"""What a model must be opened anew for: the claim, and with adapters or settings of its own these, as plain values."""


def claim_of(record: Record) -> Claim:
    """The model that a receipt names, by the digests of its files."""
    return tuple((file["size"], file["blake3"], file["sha256"]) for file in record["model"]["files"])


def setup_of(record: Record) -> Setup:
    """What a receipt's rerun needs open. Equal for two if one open model serves both."""
    adapters = tuple((file.size, file.blake3, file.sha256, file.scale) for file in adapters_of(record))
    changes = (adapters, tuple(sorted(rope_of(record).items())))
    return (claim_of(record), *changes) if any(changes) else claim_of(record)


class Models:
    """One model at a time: found, hashed, opened, and kept until a receipt names another.

    The last options are those of ``kinetic.api.verify.Checker``. Raises FileProblem for an adapter that isn't there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        adapters: Sequence[str | os.PathLike[str]],
        options: Mapping[str, Any],
        on_hash: store.Progress | None,
        progress: Callable[[str], None] | None,
    ) -> None:
        """``options`` are those of ``Model`` that say where and how it computes."""
        self._path, self._options = path, options
        self._named = [store.resolve(adapter) for adapter in adapters]
        self._on_hash, self._progress = on_hash, progress
        self._setup: Setup | None = None
        self._refusal: Unverifiable | None = None
        self._loaded: LoadedFile | None = None
        self._identity: ModelIdentity | None = None
        self._adapters: list[Adapter] | None = None
        self._model: Model | None = None

    def get(self, record: Record) -> tuple[Model, ModelIdentity]:
        """The model of a receipt. Raises Unverifiable, for the same model always in the same words."""
        with self._turned_to(setup_of(record)):
            return self._open(record)

    def require(self, record: Record) -> None:
        """The same without loading it: Unverifiable unless it is here, and hashed."""
        with self._turned_to(setup_of(record)):
            self._find_same(record)

    def files(self, record: Record) -> tuple[LoadedFile, ModelIdentity, list[Adapter]]:
        """The same: its file and its adapters, which stay open until another receipt's are asked for."""
        with self._turned_to(setup_of(record)):
            return self._find_same(record)

    @contextlib.contextmanager
    def _turned_to(self, setup: Setup) -> Iterator[None]:
        """This model is the one in question; a refusal in here is remembered."""
        if setup != self._setup:
            self._turn_to(setup)
        if self._refusal is not None:
            raise Unverifiable(str(self._refusal), name=self._refusal.name)
        try:
            yield
        except Unverifiable as refusal:
            self._refusal = refusal
            raise

    def _turn_to(self, setup: Setup) -> None:
        """Forget what was found out about another model. The one that was named by its path stays open, if it has
        neither adapters nor settings of its own."""
        if self._path is None or not all(_is_plain(one) for one in (self._setup, setup)):
            self.close()
        self._setup, self._refusal = setup, None

    def _open(self, record: Record) -> tuple[Model, ModelIdentity]:
        loaded, identity, adapters = self._find_same(record)
        with _model_errors():
            if self._model is None:
                self._model = self._load(loaded, adapters, record)
        return self._model, identity

    def _find_same(self, record: Record) -> tuple[LoadedFile, ModelIdentity, list[Adapter]]:
        """The files, found and hashed once, if they are those that the receipt names."""
        with _model_errors():
            if self._loaded is None or self._identity is None:
                self._loaded, self._identity = self._hash(_find(record, self._path))
            _require_same(claim_of(record), self._identity, self._loaded)
            if self._adapters is None:
                self._adapters = []
                for wanted in adapters_of(record):
                    self._adapters.append(_find_adapter(wanted, self._named))
        return self._loaded, self._identity, self._adapters

    def _hash(self, path: Path) -> tuple[LoadedFile, ModelIdentity]:
        loaded = open_model_file(path)
        try:
            return loaded, loaded.identity(rehash=True, progress=self._on_hash)
        except BaseException:
            loaded.close()
            raise

    def _load(self, loaded: LoadedFile, adapters: Sequence[Adapter], record: Record) -> Model:
        from kinetic.api.model import Model  # Not at the top: what isn't rerun needs no NumPy.

        try:
            return Model(
                loaded,
                **self._options,
                adapters=adapters,
                rope=_rope(record),
                off=SPEED_UPS,  # a check guesses nothing
                progress=self._progress,
            )
        except BaseException:
            self.close()  # the files are closed already, which may be done twice
            raise

    def require_unchanged(self) -> None:
        """Raises Unverifiable if a file was written to since it was hashed; the next receipt then hashes it again."""
        try:
            with _model_errors():
                for loaded in self._files():
                    loaded.check_unchanged()
                    for shard in loaded.gguf.shards:
                        store.require_untouched(shard.path, shard.source.status)
        except Unverifiable:
            self.close()
            raise

    def _files(self) -> list[LoadedFile]:
        adapters = [adapter.loaded for adapter in self._adapters or ()]
        return adapters if self._loaded is None else [self._loaded, *adapters]

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
        for loaded in self._files():
            loaded.close()
        self._loaded = self._identity = self._adapters = self._model = None


def _is_plain(setup: Setup | None) -> bool:
    """Whether a model is opened as its files say, and nothing beside them."""
    return setup is None or not setup or isinstance(setup[0][0], int)


@contextlib.contextmanager
def _model_errors() -> Iterator[None]:
    """A model that can't be read or run here makes the receipt unverifiable, whatever else it would be."""
    try:
        yield
    except UsageError:
        raise
    except KineticError as error:
        raise Unverifiable(f"the model can't be used: {error}", name=error.name) from error


def _find(record: Record, model: str | os.PathLike[str] | None) -> Path:
    if model is not None:
        try:
            return store.resolve(model)
        except FileProblem as error:
            raise Unverifiable(str(error), name="MODEL_MISSING") from error
    first = record["model"]["files"][0]
    path = store.find_by_digest(store.Digests(first["size"], first["blake3"], first["sha256"]))
    if path is None:
        message = (
            f"no file here has the hashes of its model, {show(first['name'], 80)}: pull it, or name it with --model"
        )
        raise Unverifiable(message, name="MODEL_MISSING")
    return path


def _require_same(claim: Claim, identity: ModelIdentity, loaded: LoadedFile) -> None:
    """Unverifiable, before the model is loaded, if its digests aren't those that the receipt names."""
    if claim != tuple((file.size, file.blake3, file.sha256) for file in identity.files):
        path = loaded.gguf.paths[0]
        raise Unverifiable(f"{path} is not the file that the receipt names: its hashes differ", name="MODEL")


def _find_adapter(wanted: AdapterFile, named: Sequence[Path]) -> Adapter:
    """An adapter among the files that were named, or wherever one with its hashes is known to be; hashed anew."""
    from kinetic.adapters import open_adapter

    digests = store.Digests(wanted.size, wanted.blake3, wanted.sha256)
    known = store.find_by_digest(digests)
    for path in [path for path in named if path.stat().st_size == wanted.size] + ([known] if known else []):
        with _adapter_errors():
            adapter = open_adapter(path, wanted.scale)
        try:
            found = adapter.identity(rehash=True)
            if store.Digests(found.size, found.blake3, found.sha256) == digests:
                return adapter
        except BaseException:
            adapter.loaded.close()
            raise
        adapter.loaded.close()
    message = f"no file here has the hashes of its adapter {show(wanted.name, 80)}: name it with --lora"
    raise Unverifiable(message, name="ADAPTER_MISSING")


@contextlib.contextmanager
def _adapter_errors() -> Iterator[None]:
    try:
        yield
    except KineticError as error:
        raise Unverifiable(f"the adapter can't be used: {error}", name=error.name) from error


def _rope(record: Record) -> Any:
    """Its settings of rotary positions. What this build doesn't take is the receipt's fault, and nobody's usage."""
    from kinetic.api.opening import rope_overrides

    try:
        return rope_overrides(rope_of(record))
    except UsageError as error:
        raise Unverifiable(f"the model can't be used: {error}", name=error.name) from error
