"""Opens model files: the only module that knows what kind of file a model comes in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kinetic import store
from kinetic.gguf import Gguf
from kinetic.types import ModelFile, ModelIdentity

if TYPE_CHECKING:
    from kinetic.backends.base import Weight


class FileWeights(Mapping[str, "Weight"]):
    """The tensors of a file as weights: views of its map, made when asked for."""

    def __init__(self, gguf: Gguf) -> None:
        self._gguf = gguf
        self._made: dict[str, Weight] = {}

    def __getitem__(self, name: str) -> Weight:
        if name not in self._made:
            from kinetic.backends.base import Weight  # Not at the top: opening a file needs no NumPy.

            tensor = self._gguf.tensors[name]
            rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
            data = self._gguf.data(name).reshape(rows, -1)
            self._made[name] = Weight(name, tensor.ggml_type, tuple(tensor.shape), data)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gguf.tensors)

    def __len__(self) -> int:
        return len(self._gguf.tensors)


class LoadedFile:
    """An open model file. Close it when the engine is gone; weights are views of its map."""

    def __init__(self, gguf: Gguf) -> None:
        self.gguf = gguf
        self.weights = FileWeights(gguf)
        self._is_open = True

    def identity(self, *, rehash: bool = False, progress: store.Progress | None = None) -> ModelIdentity:
        """Architecture and the digests of every file, from the cache unless ``rehash``.

        Always those of the very files that were opened, also after ``close``.
        ``progress`` is told (bytes done, bytes in all), over all files. Raises
        FileProblem, by the name FILE_CHANGED if a file is no longer what was opened.
        """
        done, files = 0, []
        for shard in self.gguf.shards:
            tell = _offset(progress, done, self.gguf.size) if progress else None
            digests = store.digests(shard.path, rehash=rehash, progress=tell, opened=shard.status)
            files.append(ModelFile(shard.path.name, digests.size, digests.blake3, digests.sha256))
            done += digests.size
        self.check_unchanged()
        return ModelIdentity(self.gguf.get("general.architecture", "str"), tuple(files))

    def check_unchanged(self) -> None:
        """Raises FileProblem if a file was written to since it was opened; says nothing once it is closed."""
        if self._is_open:
            self.gguf.check_unchanged()

    def close(self) -> None:
        self._is_open = False
        self.weights = FileWeights(self.gguf)
        self.gguf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_model_file(path: str | os.PathLike[str]) -> LoadedFile:
    """Open a model. Raises FileProblem or MalformedGguf; reads metadata only."""
    return LoadedFile(Gguf.open(path))


def _offset(progress: store.Progress, done: int, total: int) -> store.Progress:
    """Progress of one file as progress of all of them."""
    return lambda part, _: progress(done + part, total)
