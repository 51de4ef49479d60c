"""Where state lives on this machine: folders, models by name, digests of big files.

``KINETIC_HOME`` holds every folder when it is set; otherwise models go to the
XDG data folder, keys and trust to the config folder, and everything that can
be made again to the cache folder (XDG Base Directory Specification 0.8).
Nothing here touches the network, and looking something up creates nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetic.errors import FileProblem

FOLDERS = {
    "models": "data",
    "kernels": "cache",
    "packs": "cache",
    "prefixes": "cache",
    "digests": "cache",
    "keys": "config",
    "trust": "config",
}
XDG = {
    "data": ("XDG_DATA_HOME", ".local/share"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "config": ("XDG_CONFIG_HOME", ".config"),
}

CHUNK = 4 << 20
"""Bytes hashed at a time: large enough to hide the call, small enough for a smooth progress bar."""

RACY_NS = 2_000_000_000
"""A file changed this recently could change again within one clock tick, so its digest isn't kept."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


def folder(kind: str) -> Path:
    """Absolute path of one state folder, whether it exists or not."""
    home = os.environ.get("KINETIC_HOME", "")
    if home:
        return Path(home).expanduser().absolute() / kind
    variable, default = XDG[FOLDERS[kind]]
    base = os.environ.get(variable, "")
    # The XDG specification says to ignore a relative path.
    root = Path(base) if os.path.isabs(base) else _user_home() / default
    return root / "kinetic" / kind


def _user_home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise FileProblem("there is no home folder: set KINETIC_HOME to a folder of yours", name="NO_HOME") from error


def writable(kind: str) -> Path | None:
    """The folder, made with mode 0700, or None where it can't be written."""
    path = folder(kind)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            return path
    except OSError:
        pass
    return None


# --- models by name ---------------------------------------------------------


@dataclass(frozen=True)
class StoredModel:
    """A model file in the models folder. ``name`` is what the commands take."""

    name: str
    path: Path
    size: int


def catalog() -> dict[str, dict[str, Any]]:
    """The named models that this release knows: ``catalog.json``, by name."""
    text = Path(__file__).with_name("catalog.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def pulled() -> list[StoredModel]:
    """Models in the models folder, sorted by name. Of a split model the first file stands for all."""
    names = {entry["file"]: name for name, entry in catalog().items()}
    found = []
    for path in _gguf_files():
        if "-of-" in path.stem and not _is_first_split(path):
            continue
        found.append(StoredModel(names.get(path.name, path.stem), path, path.stat().st_size))
    return sorted(found, key=lambda model: model.name)


def _gguf_files() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (path for path in folder("models").iterdir() if path.suffix == ".gguf" and path.is_file())


def _is_first_split(path: Path) -> bool:
    number, _, count = path.stem.rpartition("-of-")
    return not (count.isdigit() and number[-5:].isdigit()) or int(number[-5:]) == 1


def resolve(model: str | os.PathLike[str]) -> Path:
    """The file meant by a path, a catalog name, or the name of a pulled file, in this order.

    Raises FileProblem with a sentence that says what to do instead.
    """
    text = os.fspath(model)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir() and path.name != text:
        raise FileProblem(f"{text} is a folder: name the .gguf file in it", name="IS_FOLDER")
    entry = catalog().get(text)
    if path.name == text:
        stored = folder("models") / (entry["file"] if entry else text)
        for candidate in (stored, stored.with_name(stored.name + ".gguf")):
            if candidate.is_file():
                return candidate
    if entry:
        raise FileProblem(f"{text} is not on this machine yet: run `kinetic pull {text}`", name="NOT_PULLED")
    if path.name != text or path.suffix == ".gguf":
        raise FileProblem(f"there is no file {text}", name="NO_FILE")
    raise FileProblem(
        f"there is no model called {text}{did_you_mean(text)}: `kinetic models` lists the names,"
        " and a path to a .gguf file works too",
        name="NO_MODEL",
    )


def did_you_mean(name: str) -> str:
    """A hint at the known model whose name is closest, or nothing."""
    import difflib  # Not at the top: only mistakes need it.

    known = {*catalog(), *(model.name for model in pulled())}
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


# --- digests of big files ---------------------------------------------------


@dataclass(frozen=True)
class Digests:
    """What a receipt says about one file: bytes, and two lower-case hex digests."""

    size: int
    blake3: str
    sha256: str


def digests(
    path: str | os.PathLike[str],
    *,
    rehash: bool = False,
    progress: Progress | None = None,
    opened: os.stat_result | None = None,
) -> Digests:
    """Size, BLAKE3 and sha256 of a file, from the cache if the file is untouched since.

    Making a receipt may use the cache; verifying passes ``rehash``. With
    ``opened``, the file must still be the one that had this status. Raises
    FileProblem if it isn't, can't be read, or changes while it is read.
    """
    try:
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            if opened and _stamp(opened) != _stamp(before):
                raise _changed(path)
            known = None if rehash else _recall(before)
            if known is not None:
                return known
            started = time.time_ns()
            result = hash_stream(iter(lambda: file.read(CHUNK), b""), before.st_size, progress)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise FileProblem(f"{path} can't be read: {error.strerror}", name="UNREADABLE") from error
    if _stamp(before) != _stamp(after) or result.size != after.st_size:
        raise _changed(path)
    is_settled = started - max(after.st_mtime_ns, after.st_ctime_ns) > RACY_NS
    _remember(after, result, os.path.abspath(path), is_settled)
    return result


def _changed(path: str | os.PathLike[str]) -> FileProblem:
    return FileProblem(f"{path} was changed while it was in use: try again", name="FILE_CHANGED")


def hash_stream(chunks: Iterator[bytes], total: int, progress: Progress | None = None) -> Digests:
    """Digests of a stream of chunks; ``total`` is only what the progress is measured against."""
    from ktc import digest  # Not at the top: most commands hash nothing.

    return Digests(*digest.hash_stream(chunks, total, progress))


def _stamp(stat: os.stat_result) -> list[int]:
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _cache_file(root: Path, stat: os.stat_result) -> Path:
    # One file per inode, so that a file edited often leaves one entry and not many.
    return root / f"{stat.st_dev:x}-{stat.st_ino:x}.json"


def _recall(stat: os.stat_result) -> Digests | None:
    entry = _read_entry(_cache_file(folder("digests"), stat))
    if entry is None or entry["stamp"] != _stamp(stat):
        return None
    return Digests(stat.st_size, entry["blake3"], entry["sha256"])


def _read_entry(path: Path) -> dict[str, Any] | None:
    """One cache entry, or None if it is absent or not as we write it."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        shape = {key: type(value) for key, value in entry.items()}
    except (OSError, ValueError, AttributeError):
        return None
    return entry if shape == {"stamp": list, "blake3": str, "sha256": str, "path": str} else None


def _remember(stat: os.stat_result, result: Digests, path: str, is_settled: bool) -> None:
    """Keep where the file was, and its digests for as long as its stamp stays, if that says enough."""
    root = writable("digests")
    if root is None:
        return
    stamp = _stamp(stat) if is_settled else []
    entry = {"stamp": stamp, "blake3": result.blake3, "sha256": result.sha256, "path": path}
    with contextlib.suppress(OSError):
        write_atomically(_cache_file(root, stat), json.dumps(entry).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target and rename, so that a reader sees the old file or the new one. Raises OSError."""
    import tempfile  # Not at the top: it takes as long as all else here, and most commands keep nothing.

    handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def find_by_digest(wanted: Digests) -> Path | None:
    """A file on this machine with these digests: a pulled model, or one that was hashed before.

    Only a hint, since it trusts the digest cache: a verifier hashes the file again.
    """
    for path in (*_gguf_files(), *_remembered(wanted)):
        with contextlib.suppress(OSError, FileProblem):
            if path.stat().st_size == wanted.size and digests(path) == wanted:
                return path
    return None


def _remembered(wanted: Digests) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for file in folder("digests").iterdir():
            entry = _read_entry(file)
            if entry and entry["blake3"] == wanted.blake3 and entry["sha256"] == wanted.sha256:
                yield Path(entry["path"])
