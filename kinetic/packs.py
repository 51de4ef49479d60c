"""The user's folder of packed weights: which model a pack belongs to, and how many bytes all may take.

What is in a pack is the backend's business (kinetic.backends.cpu.packs).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic import store
from kinetic.errors import UsageError
from kinetic.types import PackCache

if TYPE_CHECKING:
    from kinetic.loader import LoadedFile
    from kinetic.types import ModelIdentity

ENVIRONMENT = "KINETIC_PACK_CACHE"
"""Most bytes that packs may take, such as 5000000000 or 5G; 0: none are kept or used."""

MOST = 20 << 30
"""Unless the environment says otherwise, and never more than a tenth of what is free."""

_SIZE = re.compile(r"([0-9]{1,18})([KMGT]?)", re.ASCII)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def cache_of(loaded: LoadedFile, find: Callable[[], ModelIdentity]) -> PackCache | None:
    """Where the packed weights of an open model may be kept; ``find`` gives its identity, by hashing it if need be.

    None if there is no place, or if a file was changed so recently that it could change again and nobody could tell.
    Raises UsageError if the environment asks for no size that there is.
    """
    asked = size_in(ENVIRONMENT)
    if asked == 0 or not all(store.is_settled(shard.source.status) for shard in loaded.gguf.shards):
        return None
    folder = store.writable("packs") or store.folder("packs")
    try:
        limit = _default(folder) if asked is None else asked
    except OSError:
        return None
    known = loaded.known_digests()

    def found() -> str:
        identity = find()
        for shard in loaded.gguf.shards:
            store.require_untouched(shard.path, shard.source.status)
        return _name(file.blake3 for file in identity.files)

    return PackCache(str(folder), limit, _name(digests.blake3 for digests in known) if known else "", found)


def of_files(paths: Sequence[Path]) -> list[Path]:
    """The packs of a model with these files, the first of them first; none where its digests aren't known."""
    known = []
    with contextlib.suppress(OSError):
        known = [store.known_digests(path.stat()) for path in paths]
    if not known or None in known:
        return []
    return sorted(store.folder("packs").glob(f"{_name(digests.blake3 for digests in known if digests)[:16]}-*"))


def remove(packs: Sequence[Path]) -> int:
    """Delete packs; returns the bytes freed. One that can't be deleted stays: it does no harm."""
    freed = 0
    for path in packs:
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            freed += size
    return freed


def _name(digests: Iterable[str]) -> str:
    """Names the content of a model by the BLAKE3 of its files, in their order."""
    from blake3 import blake3

    return str(blake3(" ".join(digests).encode()).hexdigest())


def size_in(variable: str) -> int | None:
    """A number of bytes from the environment; None if it says nothing. Raises UsageError if it is none."""
    text = os.environ.get(variable, "")
    if not text:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"{variable} is {text!r}, but must be a number of bytes, such as 5G, or 0", name="BAD_SIZE")
    return int(found[1]) * _UNITS[found[2]]


def _default(folder: Path) -> int:
    """Packs count as free: otherwise each would leave less room for the next. Raises OSError if there is no folder."""
    held = 0
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process removed it
            held += path.stat().st_size
    return min(MOST, (shutil.disk_usage(folder).free + held) // 10)
