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
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetic.errors import FileProblem
from kinetic.model_names import is_first, shards

FOLDERS = {
    "models": "data",
    "kernels": "cache",
    "packs": "cache",
    "tokenizers": "cache",
    "prefixes": "cache",
    "costs": "cache",
    "digests": "cache",
    "audits": "cache",
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

BUNDLE_MAGIC = b"\x89KTC\r\n\x1a\n"
"""How a bundle begins (FORMAT.md); here too, because to see that a file is none nothing should be loaded."""

MODEL_SUFFIXES = (".gguf", ".ktc")

RACY_NS = 2_000_000_000
"""A file changed this recently could change again within one clock tick, so its digest isn't kept."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

Part = tuple[int, int]
"""Offset and length of part of a file, in bytes."""


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
    """A model in the models folder. ``name`` is what the commands take, ``size`` that of all its files in bytes."""

    name: str
    path: Path
    size: int


def catalog() -> dict[str, dict[str, Any]]:
    """The named models that this release knows: ``catalog.json``, by name."""
    text = Path(__file__).with_name("catalog.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


def pulled() -> list[StoredModel]:
    """Models in the models folder, sorted by name. Of a split model the first file stands for all.

    A bundle goes by its whole file name, since a model file may be called the same but for the end.
    """
    names = {entry["file"]: name for name, entry in catalog().items()}
    found = []
    for path in filter(lambda path: is_first(path.name), model_files()):
        name = names.get(path.name, path.stem) if path.suffix == ".gguf" else path.name
        size = sum(part.stat().st_size for part in shards(path) if part.is_file())
        found.append(StoredModel(name, path, size))
    return sorted(found, key=lambda model: model.name)


def model_files() -> Iterator[Path]:
    """Every model file in the models folder, those of split models too, in any order."""
    with contextlib.suppress(OSError):
        yield from (path for path in folder("models").iterdir() if path.suffix in MODEL_SUFFIXES and path.is_file())


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a bundle, whatever its name; False if it can't be read. A pipe is not waited for."""
    with contextlib.suppress(OSError, ValueError):
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            return stat.S_ISREG(os.fstat(handle).st_mode) and os.read(handle, len(BUNDLE_MAGIC)) == BUNDLE_MAGIC
        finally:
            os.close(handle)
    return False


def resolve(model: str | os.PathLike[str]) -> Path:
    """The file meant by a path, a catalog name, the name of a pulled file, or of another program's, in this order.

    Raises FileProblem with a sentence that says what to do instead.
    """
    text = os.fspath(model)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir() and path.name != text:
        raise FileProblem(f"{text} is a folder: name the model file in it", name="IS_FOLDER")
    entry = catalog().get(text)
    if path.name == text:
        stored = folder("models") / (entry["file"] if entry else text)
        for candidate in (stored, *(stored.with_name(stored.name + suffix) for suffix in MODEL_SUFFIXES)):
            if candidate.is_file():
                return candidate
    if (foreign := _from_elsewhere(text)) is not None:
        return foreign
    if entry:
        raise FileProblem(f"{text} is not on this machine yet: run `kinetic pull {text}`", name="NOT_PULLED")
    if path.name != text or path.suffix in MODEL_SUFFIXES:
        raise FileProblem(f"there is no file {text}", name="NO_FILE")
    raise FileProblem(
        f"there is no model called {text}{did_you_mean(text)}: `kinetic models` lists the names,"
        " and a path to a .gguf or .ktc file works too",
        name="NO_MODEL",
    )


def _from_elsewhere(text: str) -> Path | None:
    """The file that a name with a colon means, of a hub or of another program; None if it is no such name.

    Raises FileProblem if it is one, and nothing has it.
    """
    if ":" not in text:
        return None
    from kinetic import local_models, model_names, provenance  # Not at the top: most models are our own.

    hub = model_names.hub_name(text)
    own = provenance.find(folder("models"), hub) if hub else None
    found = own or local_models.find_local(text)
    if found is None and hub:
        raise FileProblem(f"{text} is not on this machine yet: run `kinetic pull {text}`", name="NOT_PULLED")
    if found is None and text.startswith(("ollama:", "lmstudio:")):
        hint = did_you_mean(text)
        raise FileProblem(f"there is no model {text}{hint}: `kinetic models` lists the names", name="NO_MODEL")
    return found


def did_you_mean(name: str) -> str:
    """A hint at the known model whose name is closest, or nothing."""
    import difflib  # Not at the top: only mistakes need it.

    from kinetic import local_models

    known = {*catalog(), *(model.name for model in pulled())}
    if ":" in name:
        known |= {model.name for model in local_models.list_local()}
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
    handle: int | None = None,
    part: Part | None = None,
) -> Digests:
    """Size, BLAKE3 and sha256 of a file or of a ``part``, from the cache if the file is untouched since.

    Making a receipt may use the cache; verifying passes ``rehash``. With
    ``opened``, the file must still be the one that had this status; with
    ``handle`` it isn't opened again by its path. Raises FileProblem if it isn't,
    can't be read, or changes while it is read.
    """
    try:
        with open(path if handle is None else os.dup(handle), "rb") as file:
            before = os.fstat(file.fileno())
            if opened and _stamp(opened) != _stamp(before):
                raise _changed(path)
            known = None if rehash else _recall(_stamp(before, part))
            if known is not None:
                return known
            started = time.time_ns()
            offset, length = part or (0, before.st_size)
            result = hash_stream(_pieces(path, file.fileno(), offset, length), length, progress)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise FileProblem(f"{path} can't be read: {error.strerror}", name="UNREADABLE") from error
    if _stamp(before) != _stamp(after) or result.size != length:
        raise _changed(path)
    _remember(_stamp(after, part), result, os.path.abspath(path), is_settled(after, started))
    return result


def is_settled(status: os.stat_result, now: int = 0) -> bool:
    """Whether a file of this status can't change any more without its status telling; ``now`` in ns since 1970."""
    return (now or time.time_ns()) - max(status.st_mtime_ns, status.st_ctime_ns) > RACY_NS


def known_digests(opened: os.stat_result, part: Part | None = None) -> Digests | None:
    """Those of a file with this status, or of a part of it, if they are in the cache. Nothing is read of the file."""
    return _recall(_stamp(opened, part))


def require_untouched(path: str | os.PathLike[str], opened: os.stat_result) -> None:
    """Raises FileProblem unless the file there is the one that had this status, and nothing was done to it since.

    The time of change tells, too: unlike that of writing, no program can set it back.
    """
    try:
        now = os.stat(path)
    except OSError as error:
        raise _changed(path) from error
    if _stamp(now) != _stamp(opened):
        raise _changed(path)


def _pieces(path: str | os.PathLike[str], handle: int, offset: int, length: int) -> Iterator[memoryview]:
    """Part of an open file, read where it stands: the handle's own position is left alone."""
    from ktc import errors, passes  # Not at the top: most commands hash nothing.

    try:
        yield from passes.pieces(handle, offset, length)
    except errors.FileProblem as error:
        raise FileProblem(f"{path} can't be read: {error}", name=error.name) from error


def _changed(path: str | os.PathLike[str]) -> FileProblem:
    return FileProblem(f"{path} was changed while it was in use: try again", name="FILE_CHANGED")


def hash_stream(chunks: Iterable[bytes | memoryview], total: int, progress: Progress | None = None) -> Digests:
    """Digests of a stream of chunks; ``total`` is only what the progress is measured against."""
    from ktc import digest  # Not at the top: most commands hash nothing.

    return Digests(*digest.hash_stream(chunks, total, progress))


def _stamp(status: os.stat_result, part: Part | None = None) -> list[int]:
    """What must be the same for a digest to be the same."""
    times = [status.st_mtime_ns, status.st_ctime_ns]
    return [status.st_dev, status.st_ino, status.st_size, *times, *(part or ())]


def _cache_file(root: Path, stamp: list[int]) -> Path:
    # One file per inode and place, so that a file edited often leaves one entry and not many.
    device, inode, _, _, _, *part = stamp
    return root / f"{device:x}-{inode:x}{f'-{part[0]:x}' if part else ''}.json"


def _recall(stamp: list[int]) -> Digests | None:
    entry = _read_entry(_cache_file(folder("digests"), stamp))
    if entry is None or entry["stamp"] != stamp:
        return None
    _, _, size, _, _, *part = stamp
    return Digests(part[1] if part else size, entry["blake3"], entry["sha256"])


def _read_entry(path: Path) -> dict[str, Any] | None:
    """One cache entry, or None if it is absent or not as we write it."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        shape = {key: type(value) for key, value in entry.items()}
    except (OSError, ValueError, AttributeError):
        return None
    return entry if shape == {"stamp": list, "blake3": str, "sha256": str, "path": str} else None


def _remember(stamp: list[int], result: Digests, path: str, is_settled: bool) -> None:
    """Keep where the file was, and its digests for as long as its stamp stays, if that says enough."""
    root = writable("digests")
    if root is None:
        return
    entry = {"stamp": stamp if is_settled else [], "blake3": result.blake3, "sha256": result.sha256, "path": path}
    with contextlib.suppress(OSError):
        write_atomically(_cache_file(root, stamp), json.dumps(entry).encode())


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
    """A file on this machine that is, or holds, a model with these digests: in the models folder, or hashed before.

    Only a hint, since it trusts the digest cache, what a bundle says of itself, and the names that Ollama gives to its
    files: a verifier hashes the model again.
    """
    from kinetic import local_models  # Not at the top: only verifying looks for a model that nobody named.

    for path in (*model_files(), *_remembered(wanted)):
        with contextlib.suppress(OSError, FileProblem):
            if _promises(path, wanted):
                return path
    return local_models.ollama_blob(wanted.sha256, wanted.size)


def _promises(path: Path, wanted: Digests) -> bool:
    if path.stat().st_size == wanted.size:
        return digests(path) == wanted
    return path.stat().st_size > wanted.size and is_bundle(path) and _promised(path) == wanted


def _promised(path: Path) -> Digests | None:
    """What a bundle's manifest says of the model in it; None if the bundle is damaged."""
    from ktc import reader
    from ktc.errors import KtcError

    try:
        with reader.open_bundle(path) as bundle:
            return Digests(bundle.gguf.length, bundle.gguf.blake3, bundle.gguf.sha256)
    except KtcError:
        return None


def _remembered(wanted: Digests) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for file in folder("digests").iterdir():
            entry = _read_entry(file)
            if entry and entry["blake3"] == wanted.blake3 and entry["sha256"] == wanted.sha256:
                yield Path(entry["path"])
