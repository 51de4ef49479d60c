"""Opens model files: the only module that knows what kind of file a model comes in."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from kinetic import store
from kinetic.errors import (
    Malformed,
    MalformedGguf,
    UsageError,
    of_code,
)
from kinetic.gguf import Gguf, Shard
from kinetic.types import ModelFile, ModelIdentity

if TYPE_CHECKING:
    from kinetic.backends.base import Weight
    from ktc.reader import Bundle, LeafChecker

Check: TypeAlias = Literal["lazy", "full", "none"]
"""What is checked of a bundle's model: each leaf when it is first used, everything beforehand, or no weights."""

CHECKS: tuple[Check, ...] = ("lazy", "full", "none")


class FileWeights(Mapping[str, "Weight"]):
    """The tensors of a file as weights: views of its map, made when asked for."""

    def __init__(self, gguf: Gguf) -> None:
        self._gguf = gguf
        self._made: dict[str, Weight] = {}

    def __getitem__(self, name: str) -> Weight:
        if name not in self._made:
            from kinetic.backends.base import Weight  # Not at the top: opening a file needs no NumPy.

            tensor = self._gguf.tensors[name]
            rows = math.prod(tensor.shape[:-1])
            data = self._gguf.data(name).reshape(rows, -1)
            release = functools.partial(self._gguf.release, name)
            self._made[name] = Weight(name, tensor.ggml_type, tuple(tensor.shape), data, release)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gguf.tensors)

    def __len__(self) -> int:
        return len(self._gguf.tensors)


class LoadedFile:
    """An open model file. Close it when the engine is gone; weights are views of its map."""

    bundle_digest = ""
    """Manifest digest of the bundle that the model comes from, hex; "" if it comes from none."""

    profiles: Sequence[Mapping[str, Any]] = ()
    """How to run it on which machines, as its bundle says (ktc.manifest.PROFILE)."""

    part: store.Part | None = None
    """Where in its file the model is; None if it is all of it."""

    about = ""
    """What was checked, in a few words; "" where there is nothing to check by."""

    def __init__(self, gguf: Gguf) -> None:
        self.gguf = gguf
        self.weights = FileWeights(gguf)
        self._is_open = True
        self._digests: list[store.Digests] | None = None

    def known_digests(self) -> list[store.Digests] | None:
        """Those of the files as they were opened, if ``identity`` found them out, or if they are in the cache."""
        if self._digests is None:
            known = [store.known_digests(shard.source.status, self.part) for shard in self.gguf.shards]
            return [digests for digests in known if digests] if all(known) else None
        return self._digests

    def identity(self, *, rehash: bool = False, progress: store.Progress | None = None) -> ModelIdentity:
        """Architecture and the digests of every file, from the cache unless ``rehash``.

        Always those of the very files that were opened, also after ``close``.
        ``progress`` is told (bytes done, bytes in all), over all files. Raises
        FileProblem, by the name FILE_CHANGED if a file is no longer what was opened.
        """
        done, files, found = 0, [], []
        for shard in self.gguf.shards:
            tell = _offset(progress, done, self.gguf.size) if progress else None
            digests = store.digests(shard.path, rehash=rehash, progress=tell, opened=shard.source.status)
            files.append(ModelFile(shard.path.name, digests.size, digests.blake3, digests.sha256))
            found.append(digests)
            done += digests.size
        self.check_unchanged()
        self._digests = found
        return ModelIdentity(self.gguf.get("general.architecture", "str"), tuple(files))

    def check_unchanged(self) -> None:
        """Raises FileProblem if a file was written to since it was opened; says nothing once it is closed."""
        if self._is_open:
            self.gguf.check_unchanged()

    def check_ahead(self) -> None:
        """Check beside what comes next what else would be checked when it is used; whoever uses it hears of faults."""

    def close(self) -> None:
        self._is_open = False
        self.weights = FileWeights(self.gguf)
        self.gguf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class LoadedBundle(LoadedFile):
    """The model in an open bundle (a .ktc file): the same handle and map that were verified."""

    def __init__(self, gguf: Gguf, source: BundleSource) -> None:
        super().__init__(gguf)
        self._source, self.bundle = source, source.bundle
        self.part = (self.bundle.gguf.offset, self.bundle.gguf.length)
        self.bundle_digest = self.bundle.manifest_digest
        self.profiles = self.bundle.manifest["profiles"]
        self.about = f"{_signed(self.bundle)}; {source.promise}"

    def identity(self, *, rehash: bool = False, progress: store.Progress | None = None) -> ModelIdentity:
        """As of a file; the digests are those of the model inside, and those that the manifest promises.

        Raises Malformed, by the name SECTION_DIGEST, if they are not.
        """
        gguf, named = self.bundle.gguf, self.bundle.manifest["file"]
        found = store.digests(
            self._source.path,
            rehash=rehash,
            progress=progress,
            opened=self.bundle.status,
            handle=self.bundle.fileno() if self._is_open else None,
            part=self.part,
        )
        self.check_unchanged()
        if (found.blake3, found.sha256) != (gguf.blake3, gguf.sha256):
            problem = f"{self._source.path.name}: the model in it does not have the digests that its manifest names"
            raise Malformed(f"{problem}: `kinetic verify` says where it is damaged", name="SECTION_DIGEST")
        self._digests = [found]
        return ModelIdentity(self.bundle.manifest["architecture"], (ModelFile(named, *_values(found)),))

    def check_ahead(self) -> None:
        if self._source.leaves is not None:
            threading.Thread(target=self._check_quietly, args=(self._source.leaves,), daemon=True).start()

    def _check_quietly(self, leaves: LeafChecker) -> None:
        from ktc.passes import LEAF_BYTES

        with contextlib.suppress(Exception):  # whoever uses the leaf gets the error
            for begin in range(0, self.gguf.size, LEAF_BYTES):
                if not self._is_open:
                    return
                leaves.touch(begin, min(LEAF_BYTES, self.gguf.size - begin))


class BundleSource:
    """The model in a bundle as a source of ``kinetic.gguf``, its leaves checked when they are touched."""

    def __init__(self, bundle: Bundle, check: Check) -> None:
        self.bundle, self.path, self.status = bundle, Path(bundle.path), bundle.status
        self.buffer = bundle.view(bundle.gguf)
        self.leaves = bundle.leaves if check == "lazy" else None
        """What checks weights, if they are to be checked when they are used."""
        self.promise = _promise(bundle, check)

    def touch(self, offset: int, length: int) -> None:
        if self.leaves is not None:
            with _as_ours(self.path):
                self.leaves.touch(offset, length)

    def release(self, offset: int, length: int) -> None:
        self.bundle.release(self.bundle.gguf.offset + offset, length)

    def check_unchanged(self) -> None:
        with _as_ours(self.path):
            self.bundle.check_unchanged()

    def close(self) -> None:
        self.leaves = None
        with contextlib.suppress(BufferError):  # a view is alive and keeps the map
            self.buffer.release()
        self.bundle.close()


def open_model_file(path: str | os.PathLike[str], *, check: Check = "lazy") -> LoadedFile:
    """Open a model file or a bundle, whatever its name. Of a model file it reads metadata only.

    ``check`` is about bundles; one without leaves can't be checked lazily, and is checked in full instead.
    Raises FileProblem, MalformedGguf, and of a bundle Malformed, SignatureProblem, Unverifiable or LimitExceeded.
    """
    if check not in CHECKS:
        raise UsageError(f"there is no check {check!r}: it is {', '.join(CHECKS)}", name="NO_CHECK")
    return _open_bundle(Path(path), check) if store.is_bundle(path) else LoadedFile(Gguf.open(path))


def _open_bundle(path: Path, check: Check) -> LoadedBundle:
    with _as_ours(path):
        from ktc import reader

        bundle = reader.open_verified(path, check=check)
        try:
            if check == "none" and bundle.section("leaves"):
                bundle.leaves = reader.LeafChecker(bundle)  # for what is read now
            source = BundleSource(bundle, check)
        except BaseException:
            bundle.close()
            raise
    try:
        return LoadedBundle(Gguf([_checked_shard(source)]), source)
    except BaseException:
        source.close()
        raise


def _checked_shard(source: BundleSource) -> Shard:
    """The model's header, of which nothing is made before the leaves that it is in were checked."""
    bundle = source.bundle
    with _as_ours(source.path):
        try:
            shard = Shard(source)
        except MalformedGguf:
            if bundle.leaves is not None:
                bundle.leaves.touch(0, bundle.gguf.length)  # damaged, or was it so from the beginning?
            raise
        if bundle.leaves is not None:
            bundle.leaves.touch(0, shard.data_begin)
        _compare_keys(bundle, shard)  # step B13
    return shard


def _compare_keys(bundle: Bundle, shard: Shard) -> None:
    """Manifest, tokenizer and template sections must say what the model's own keys say. Raises ktc's Malformed."""
    from ktc import gguf_keys, verify

    metadata = shard.header.metadata
    if metadata.get("split.count", 1) != 1:
        raise gguf_keys.bad_gguf("it is one part of a split model")
    if metadata.get("general.architecture") != bundle.manifest["architecture"]:
        message = f"the model is not of the architecture {bundle.manifest['architecture']}, which the manifest names"
        raise Malformed(message, name="ARCHITECTURE")
    records = [(name.encode(), begin, end) for name, begin, end in shard.records()]
    held = [
        gguf_keys.join_records(shard.source.buffer, [record for record in records if wanted(record[0])])
        for wanted in (gguf_keys.is_tokenizer, gguf_keys.is_template)
    ]
    verify.compare_records(bundle, *held)


def _promise(bundle: Bundle, check: Check) -> str:
    if check == "none":
        return "its weights are not checked"
    return "each part is checked when first used" if bundle.checked == "lazy" else "all of it was checked"


def _signed(bundle: Bundle) -> str:
    return bundle.standing.sentence if bundle.standing else "unsigned"


def _values(digests: store.Digests) -> tuple[int, str, str]:
    return digests.size, digests.blake3, digests.sha256


def _offset(progress: store.Progress, done: int, total: int) -> store.Progress:
    """Progress of one file as progress of all of them."""
    return lambda part, _: progress(done + part, total)


@contextlib.contextmanager
def _as_ours(path: Path) -> Iterator[None]:
    """Errors of ``ktc`` about this file as ours, with their names and exit codes."""
    from ktc.errors import KtcError

    try:
        yield
    except KtcError as error:
        told = str(error) if path.name in str(error) else f"{path.name}: {error}"
        raise of_code(error.exit_code, told, error.name) from error
