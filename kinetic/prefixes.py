"""The user's folder of prefix states: what they are of, the key that vouches for them, how many bytes they may take.

What is in a file is the engine's business (kinetic.engine.warm). It holds the tokens of prompts and answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic import store
from kinetic.engine.warm import disk, files
from kinetic.packs import size_in
from kinetic.types import PrefixCache

if TYPE_CHECKING:
    from kinetic.adapters import Adapter
    from kinetic.loader import LoadedFile
    from kinetic.types import RopeOverrides

ENVIRONMENT = "KINETIC_PREFIX_CACHE"
"""Most bytes that prefix states may take on disk, such as 500000000 or 5G; 0: none are kept or used."""

MOST = 2 << 30
"""Unless the environment says otherwise, and never more than a tenth of what is free."""

KEY, KEY_BYTES = "key", 32


def cache_of(
    loaded: LoadedFile, adapters: Sequence[Adapter], rope: RopeOverrides | None, asked: int | None
) -> PrefixCache | None:
    """Where the prefix states of an open model may be kept. ``asked`` is how many bytes all may take.

    None if there is no place, or if a file was changed so recently that it could change again and nobody could tell.
    Raises UsageError if the environment asks for no size that there is.
    """
    asked = size_in(ENVIRONMENT) if asked is None else asked
    opened = [loaded, *(adapter.loaded for adapter in adapters)]
    statuses = [shard.source.status for one in opened for shard in one.gguf.shards]
    if asked == 0 or not files.IS_POSSIBLE or not all(map(store.is_settled, statuses)):
        return None
    folder = store.writable("prefixes") or store.folder("prefixes")
    try:
        limit = _default(folder) if asked is None else asked
    except OSError:
        return None
    secret = _secret(folder)
    if secret is None:
        return None

    def known() -> str:
        found = [one.known_digests() for one in opened]
        return _name([one or [] for one in found], adapters, rope) if all(found) else ""

    def find() -> str:
        found = [one.identity().files for one in opened]
        for one in opened:
            for shard in one.gguf.shards:
                store.require_untouched(shard.path, shard.source.status)
        return _name(found, adapters, rope)

    return PrefixCache(str(folder), limit, secret, loaded.gguf.paths[0].name, known(), find)


def _name(found: Sequence[Sequence[Any]], adapters: Sequence[Adapter], rope: RopeOverrides | None) -> str:
    """Names all that an answer depends on beside the engine and the question."""
    from blake3 import blake3

    scales = [adapter.scale.hex() for adapter in adapters]
    settings = {} if rope is None else {name: repr(value) for name, value in asdict(rope).items()}
    text = json.dumps([[[file.blake3 for file in one] for one in found], scales, settings], sort_keys=True)
    return str(blake3(text.encode()).hexdigest())


def _default(folder: Path) -> int:
    """What is there counts as free, so that one file doesn't make the next one smaller. Raises OSError."""
    held = 0
    for _, status in disk.entries(folder):
        held += status.st_size
    return min(MOST, (shutil.disk_usage(folder).free + held) // 10)


def _secret(folder: Path) -> bytes | None:
    """The user's key, made where there is none; None where there can be none, or where it isn't this user's alone."""
    for _ in range(3):
        try:
            handle = files.open_private(folder / KEY)
        except FileNotFoundError:
            if not _make_secret(folder):
                return None
            continue
        except OSError:
            return None
        with os.fdopen(handle, "rb") as file:
            found = file.read(KEY_BYTES + 1)
        if len(found) == KEY_BYTES:
            return found
        with contextlib.suppress(OSError):  # cut off: nothing that it vouched for is of use
            (folder / KEY).unlink()
    return None


def _make_secret(folder: Path) -> bool:
    """Whether there is one now. It appears whole, and of two processes that make one the second takes the first's."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=disk.UNFINISHED, dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(os.urandom(KEY_BYTES))
            with contextlib.suppress(FileExistsError):
                os.link(temporary, folder / KEY)
        finally:
            os.unlink(temporary)
    except OSError:
        return False
    return True


class Kept(NamedTuple):
    """A file of the folder. ``tokens`` and ``start`` are 0 and ``model`` is "" of one that says nothing sensible."""

    path: Path
    model: str
    start: int
    tokens: int
    """Where it ends: it is of the tokens from ``start`` to here."""
    size: int
    age: float
    """Seconds since it was written or used."""


def listed() -> list[Kept]:
    """All there are, those used last first. What a file says is not checked for this."""
    found, now = [], time.time()
    with contextlib.suppress(OSError):
        for path, status in disk.entries(store.folder("prefixes")):
            about = "", 0, 0
            with contextlib.suppress(OSError):
                handle = files.open_private(path)
                try:
                    if header := files.read_header(handle):
                        about = header.label, header.block.start, header.block.end
                finally:
                    os.close(handle)
            found.append(Kept(path, *about, status.st_size, max(0.0, now - status.st_mtime)))
    return sorted(found, key=lambda kept: (kept.age, kept.path.name))


def clear() -> tuple[int, int]:
    """Delete them all, and what dead processes left: how many files and how many bytes."""
    count = freed = 0
    folder = store.folder("prefixes")
    with contextlib.suppress(OSError):
        for path in [path for path, _ in disk.entries(folder)] + list(folder.glob(f"{disk.UNFINISHED}*")):
            with contextlib.suppress(OSError):  # another process was faster
                size = path.lstat().st_size
                path.unlink()
                count, freed = count + 1, freed + size
    return count, freed
