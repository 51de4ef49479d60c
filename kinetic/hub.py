"""Models from a hub: which files are meant, where they go, and that nothing is kept that isn't what the hub names.

A file grows in a folder of unfinished downloads beside the models, under its
digest: what a broken pull leaves there the next one goes on with, whatever the
file is called.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from kinetic import provenance, store
from kinetic.errors import FileProblem, Malformed, NetworkError, UsageError
from kinetic.gguf import Gguf
from kinetic.hub_client import Client, HubFile, HubRepo
from kinetic.model_names import HubName, choose, models_among, shards, short_names
from kinetic.provenance import Origin

MODEL_NAME = re.compile(r"\w[\w.+() -]*\.gguf")
"""File names that are safe on every system: no separators, no leading dot, no control characters."""

UNFINISHED = ".unfinished"
"""The folder of downloads that are not complete, in the models folder."""

MAX_PLAIN = 50 * 10**9
"""Bytes of the largest file that the hub gives out by plain HTTP."""

Say = Callable[[str], None]


def pull(
    name: HubName,
    *,
    say: Say = lambda line: None,
    on_fetch: store.Progress | None = None,
    on_hash: store.Progress | None = None,
) -> Path:
    """Bring a model into the models folder, all its files or none, and return the path of the first.

    Raises NetworkError, LicenseNotAccepted (a gated repository), FileProblem, Malformed, or UsageError for a choice
    that the repository doesn't have, and where the library is not installed.
    """
    models = store.writable("models")
    if models is None:
        raise FileProblem(f"the models folder {store.folder('models')} can't be written", name="READ_ONLY")
    client = Client(name)
    repo = _look_up(client, name, models)
    files = _chosen(repo)
    targets = _targets(repo, files, models)
    if all(_is_there(target, file) for target, file in zip(targets, files, strict=True)):
        say(f"{name} is already here, and its hashes are right.")
    else:
        say(f"Fetching {files[0].path} ({_told(files)}) of {name.repo} at {repo.commit[:12]}.")
        with _files_held(models, files) as held:
            _fetch(client, repo, held, on_fetch)
            _check(held, on_hash)
            _install(held, targets)
    asked = "" if name.revision == repo.commit else name.revision
    provenance.remember(models, targets[0].name, Origin(name.repo, files[0].path, repo.commit, asked))
    known = next((model.name for model in store.pulled() if model.path == targets[0]), targets[0].name)
    say(f"Run it with: kinetic run {shlex.quote(known)}")
    return targets[0]


def _look_up(client: Client, name: HubName, models: Path) -> HubRepo:
    try:
        with client.errors():
            return client.look_up()
    except NetworkError as error:
        if (kept := provenance.find(models, name)) is None:
            raise
        raise NetworkError(f"{error}; what was pulled as {name} before is here: {kept}", name=error.name) from error


# --- what is meant ------------------------------------------------------------


def _chosen(repo: HubRepo) -> list[HubFile]:
    """The files of the one model that the name means."""
    models = models_among(repo.files)
    chosen = choose(models, repo.name.choice)
    if len(chosen) != 1:
        raise UsageError(_which(repo.name, models, chosen), name="NO_CHOICE" if models else "NO_MODELS")
    paths = [path.as_posix() for path in map(PurePosixPath, map(str, shards(Path(chosen[0]))))]
    for path in paths:
        if path not in repo.files:
            raise Malformed(f"{repo.name.repo} lacks {path}, a part of the model: it can't be used", name="NO_SHARD")
        if not MODEL_NAME.fullmatch(PurePosixPath(path).name):
            raise Malformed(f"{path!r} is not a usable model name", name="BAD_NAME")
    files = [repo.files[path] for path in paths]
    for file in files:
        if file.size > MAX_PLAIN:
            wanted = f"`hf download {repo.name.repo} {file.path}`"
            raise UsageError(
                f"{file.path} is too large to fetch here: run {wanted}, which `kinetic models` then lists",
                name="TOO_LARGE",
            )
    return files


def _which(name: HubName, models: Sequence[str], chosen: Sequence[str]) -> str:
    if not models:
        return f"{name.repo} holds no GGUF model: look for one with GGUF in its name"
    listed = ", ".join(short_names(chosen or models).values())
    if not chosen:
        return f"{name.repo} has no {name.choice}: it has {listed}"
    example = name._replace(choice=next(iter(short_names(chosen).values())))
    return f"{name} could mean several models: name one of {listed}, as in {example}"


def _targets(repo: HubRepo, files: Sequence[HubFile], models: Path) -> list[Path]:
    """Where the files go: to their own names, or to longer ones where the first of these belongs to another file."""
    known = {(entry["size"], entry["sha256"]): entry["file"] for entry in store.catalog().values()}
    if len(files) == 1 and (file := known.get((files[0].size, files[0].digest))):
        return [models / file]
    names = [PurePosixPath(file.path).name for file in files]
    prefix = repo.name.repo.replace("/", "--") + "--"
    for candidate in (names, [prefix + name for name in names]):
        targets = [models / name for name in candidate]
        fits = (not target.exists() or _is_there(target, file) for target, file in zip(targets, files, strict=True))
        if not set(candidate) & set(known.values()) and all(fits):
            return targets
    raise FileProblem(
        f"another file is already pulled as {targets[0].name}: run `kinetic rm {shlex.quote(targets[0].stem)}` first",
        name="NAME_TAKEN",
    )


def _is_there(target: Path, file: HubFile) -> bool:
    try:
        return target.stat().st_size == file.size and _digest(target, file, None) == file.digest
    except OSError:
        return False


def _digest(path: Path, file: HubFile, progress: store.Progress | None) -> str:
    """The digest of what is in a file, of the kind that the hub names."""
    if len(file.digest) == 64:
        return store.digests(path, rehash=True, progress=progress).sha256
    return hashlib.sha1(b"blob %d\0" % file.size + path.read_bytes(), usedforsecurity=False).hexdigest()


# --- the bytes ----------------------------------------------------------------


Held = list[tuple[HubFile, Path, IO[bytes]]]
"""Each file with the path of its unfinished download, and that opened and locked."""


@contextlib.contextmanager
def _files_held(models: Path, files: Sequence[HubFile]) -> Iterator[Held]:
    """The unfinished downloads, made where there are none; afterwards the empty ones are gone."""
    folder = models / UNFINISHED
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, folder)
        with _disk_errors():
            folder.mkdir(mode=0o700, exist_ok=True)
            held = [(file, folder / file.digest, stack.enter_context(_locked(folder / file.digest))) for file in files]
            _require_space(folder, sum(file.size - min(path.stat().st_size, file.size) for file, path, _ in held))
        yield held


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    import fcntl

    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileProblem("another pull of the same file is running: wait for it to end", name="BUSY") from None
        try:
            yield file
        finally:
            file.flush()
            if not os.fstat(file.fileno()).st_size:
                path.unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _require_space(folder: Path, needed: int) -> None:
    if shutil.disk_usage(folder).free < needed:
        raise FileProblem(
            f"the disk has no room for {needed / 1e6:,.1f} MB more: nothing was fetched", name="DISK_FULL"
        )


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileProblem(f"the pull failed: {error.strerror or error}", name="PULL_IO") from error


class _Meter:
    """Bytes had of all files together, as progress."""

    def __init__(self, total: int, progress: store.Progress | None) -> None:
        self.done, self.total, self._progress = 0, total, progress

    def set(self, done: int) -> None:
        self.done = done
        if self._progress:
            self._progress(done, self.total)


class _Counted:
    """A file that is written to, which tells how far it is."""

    def __init__(self, file: IO[bytes], meter: _Meter) -> None:
        self._file, self._meter, self._before = file, meter, meter.done
        meter.set(self._before + file.tell())

    def write(self, data: bytes) -> int:
        count = self._file.write(data)
        self._meter.set(self._before + self._file.tell())
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _fetch(client: Client, repo: HubRepo, held: Held, progress: store.Progress | None) -> None:
    """Complete every file; what arrives stays if that fails."""
    meter = _Meter(sum(file.size for file, _, _ in held), progress)
    for number, (file, _, opened) in enumerate(held):
        meter.done = sum(before.size for before, _, _ in held[:number])
        if opened.seek(0, os.SEEK_END) > file.size:
            opened.truncate(0)
            opened.seek(0)
        with client.errors(lambda: _kept(held, repo.name)):
            client.fetch(repo, file, opened.tell(), _Counted(opened, meter))
        opened.flush()


def _kept(held: Held, name: HubName) -> str:
    had = sum(os.fstat(opened.fileno()).st_size for _, _, opened in held)
    return (
        f"{had / 1e6:,.1f} of {_told([file for file, _, _ in held])} are kept, and `kinetic pull {name}` goes on there"
    )


def _told(files: Sequence[HubFile]) -> str:
    return f"{sum(file.size for file in files) / 1e6:,.1f} MB"


def _check(held: Held, progress: store.Progress | None) -> None:
    """Size and digest of every file. One that has others is deleted: nothing says what in it is wrong."""
    for file, path, opened in held:
        with _disk_errors():
            is_right = path.stat().st_size == file.size and _digest(path, file, progress) == file.digest
            if is_right:
                os.fsync(opened.fileno())
                continue
            opened.truncate(0)
        raise NetworkError(
            f"what arrived as {file.path} does not have the hash that the hub names: nothing was kept of it, try again",
            name="DIGEST_MISMATCH",
        )


def _install(held: Held, targets: Sequence[Path]) -> None:
    """Rename the files to where they go, the first one last: with it the model is there."""
    with _disk_errors(), tempfile.TemporaryDirectory(prefix=".pull-", dir=targets[0].parent) as folder:
        moved = [Path(folder) / target.name for target in targets]
        for (_, path, _), work in zip(held, moved, strict=True):
            path.rename(work)
        Gguf.open(moved[0]).close()  # what is truncated or no model at all is not kept
        for work, target in reversed(list(zip(moved, targets, strict=True))):
            work.replace(target)
