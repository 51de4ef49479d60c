"""Opens model files: the only module that knows what kind of file a model comes in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kinetic import store
from kinetic.backends.base import Weight
from kinetic.gguf import Gguf
from kinetic.types import ModelFile, ModelIdentity


class FileWeights(Mapping[str, Weight]):
    """The tensors of a file as weights: views of its map, made when asked for."""

    def __init__(self, gguf: Gguf) -> None:
        self._gguf = gguf
        self._made: dict[str, Weight] = {}

    def __getitem__(self, name: str) -> Weight:
        if name not in self._made:
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

    def identity(self, *, rehash: bool = False, progress: store.Progress | None = None) -> ModelIdentity:
        """Architecture and the digests of every file, from the cache unless ``rehash``.

        ``progress`` is told (bytes done, bytes in all), over all files. Raises FileProblem.
        """
        total, done = sum(Path(path).stat().st_size for path in self.gguf.paths), 0
        files = []
        for path in self.gguf.paths:
            start = done

            def tell(part: int, _: int, start: int = start) -> None:
                if progress:
                    progress(start + part, total)

            digests = store.digests(path, rehash=rehash, progress=tell)
            files.append(ModelFile(Path(path).name, digests.size, digests.blake3, digests.sha256))
            done += digests.size
        self.gguf.check_unchanged()
        return ModelIdentity(self.gguf.get("general.architecture", "str"), tuple(files))

    def close(self) -> None:
        self.weights = FileWeights(self.gguf)
        self.gguf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_model_file(path: str | os.PathLike[str]) -> LoadedFile:
    """Open a model. Raises FileProblem or MalformedGguf; reads metadata only."""
    return LoadedFile(Gguf.open(path))
