"""Packed weights in a file, so that the next start reads them and need not pack them again.

    BLAKE3 of the rest of the header                                       32 bytes
    key: digest of model, packing, and where each matrix lies (pack_key)   32
    BLAKE3 of each MiB of the data                                         32 each
    zeros up to a whole page, then the data: all matrices as ``WeightStore`` holds them

Nothing of a pack is used before all of its digests were found to hold, and what is used is a copy:
whatever becomes of the file later changes no answer. A pack that is damaged, or that others own or can
write to, is removed, and the weights are packed as if there had been none. Nor does it matter that one can't
be written, so nothing here complains.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import blake3

from kinetic import formats
from kinetic.backends.base import BLOCK, CHUNK, Weight
from kinetic.backends.cpu.memory import round_up
from kinetic.backends.identity import digest_of
from kinetic.errors import KineticError
from kinetic.types import PackCache

VERSION = "kinetic pack 1"
PIECE = 1 << 20
"""Bytes under one digest: they are still in the processor's cache when they are hashed right after they were read."""

DIGEST, PAGE = 32, 4096
SUFFIX, UNFINISHED = ".pack", "tmp-"
PACKING_SOURCES = ("layout.py", "packing.py", "compiled.py", "emitted.py")
STALE_NS = 3_600_000_000_000
"""An unfinished file this much older than a finished one was left by a process that died."""

IS_POSSIBLE = hasattr(os, "preadv") and hasattr(os, "getuid")


@lru_cache(maxsize=1)
def packing_digest() -> str:
    """BLAKE3 of what decides how packed bytes look. No other kernel matters, nor does the instruction set."""
    here = Path(__file__).parent
    sources = [here / name for name in PACKING_SOURCES] + sorted(Path(formats.__file__).parent.glob("*.py"))
    compilers = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    return digest_of(sources, (VERSION, str(CHUNK), str(BLOCK), sys.byteorder, *compilers))


def describe(tables: Sequence[Weight], places: Sequence[tuple[Weight, int]], size: int) -> str:
    """All that a pack's bytes depend on but the model's. ``places`` are the matrices and where each begins.

    Embedding tables are in no pack, but their scales were checked before one was written.
    """
    lines = [packing_digest(), str(size)]
    known = [*places, *((table, -1) for table in tables)]
    lines += [f"{weight.name!r} {weight.ggml_type} {weight.shape} {at}" for weight, at in known]
    return "\n".join(lines)


def pack_key(model: str, about: str) -> bytes:
    """Digest of all that a pack's bytes depend on."""
    return bytes(blake3.blake3(f"{model}\n{about}".encode()).digest())


class Pack:
    """A file in a folder of packs. ``about`` is from ``describe``; ``size`` is that of the data in bytes."""

    def __init__(self, cache: PackCache, about: str, size: int) -> None:
        self._cache, self._about, self._size = cache, about, size
        self._folder = Path(cache.folder)
        self._data_at = round_up(2 * DIGEST + len(self._pieces()) * DIGEST, PAGE)
        self._offered: memoryview | None = None
        self._writer: threading.Thread | None = None
        self._is_cancelled = False

    def _pieces(self) -> range:
        return range(0, self._size, PIECE)

    def _key_and_path(self, model: str) -> tuple[bytes, Path]:
        key = pack_key(model, self._about)
        return key, self._folder / f"{model[:16]}-{key.hex()[:32]}{SUFFIX}"

    # ---- reading

    def read_into(self, memory: memoryview, threads: int) -> bool:
        """Fill ``memory`` [size] from the file; False if there is no pack to trust, and then it holds anything."""
        if not self._cache.known:
            return False
        key, path = self._key_and_path(self._cache.known)
        try:
            if not _is_ours(self._folder.lstat(), stat.S_ISDIR):
                return False
            # Waits for no pipe and follows no link.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return self._read_open(handle, path, key, memory, threads)
        finally:
            os.close(handle)

    def _read_open(self, handle: int, path: Path, key: bytes, memory: memoryview, threads: int) -> bool:
        is_sound = False
        with contextlib.suppress(OSError):  # a disk that fails is one reason more to pack
            is_sound = self._read(handle, key, memory, threads)
        with contextlib.suppress(OSError):
            if is_sound:
                os.utime(handle)  # the packs used last are kept longest
            else:
                path.unlink()
        return is_sound

    def _read(self, handle: int, key: bytes, memory: memoryview, threads: int) -> bool:
        status = os.fstat(handle)
        if not _is_ours(status, stat.S_ISREG) or status.st_size != self._data_at + self._size:
            return False
        header = os.pread(handle, 2 * DIGEST + len(self._pieces()) * DIGEST, 0)
        seal, said, digests = header[:DIGEST], header[DIGEST : 2 * DIGEST], header[2 * DIGEST :]
        if seal != blake3.blake3(header[DIGEST:]).digest() or said != key:
            return False

        def is_piece_sound(begin: int) -> bool:
            piece = memory[begin : begin + PIECE]
            _fill(handle, piece, self._data_at + begin)
            at = begin // PIECE * DIGEST
            return bool(blake3.blake3(piece).digest() == digests[at : at + DIGEST])

        pieces = iter(self._pieces())  # each thread takes the next, and none waits for another

        def are_sound(_: int) -> bool:
            return all(map(is_piece_sound, pieces))

        with ThreadPoolExecutor(threads) as pool:
            return all(list(pool.map(are_sound, range(threads))))

    # ---- writing

    def offer(self, memory: memoryview) -> None:
        """What to write, [size]: it changes no more."""
        if self._data_at + self._size <= self._cache.limit:
            self._offered = memory

    def write_beside(self) -> None:
        """Begin to write what was offered, if anything was, beside what comes next."""
        if self._offered is not None:
            self._writer = threading.Thread(target=self._write_quietly, args=(self._offered,), daemon=True)
            self._offered = None
            self._writer.start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was offered is still to be written."""
        return self._offered is None and (self._writer is None or not self._writer.is_alive())

    def close(self) -> None:
        """Wait until what was begun is written. A program that is being ended doesn't wait, and keeps nothing."""
        self._offered = None
        if self._writer is None:
            return
        ending = sys.exception()
        self._is_cancelled = ending is not None and not isinstance(ending, Exception)
        try:
            self._writer.join()
        except BaseException:
            self._is_cancelled = True
            self._writer.join()
            raise

    def _write_quietly(self, memory: memoryview) -> None:
        with contextlib.suppress(OSError, KineticError):
            if not _is_ours(self._folder.lstat(), stat.S_ISDIR):
                return
            model = self._cache.find()  # asked again: the files may have changed while they were packed
            if self._cache.known and model != self._cache.known:
                return
            key, path = self._key_and_path(model)
            if not self._cache.known and path.exists():  # of the same model elsewhere; what is wrong with it will show
                return
            handle, temporary = tempfile.mkstemp(prefix=UNFINISHED, dir=self._folder)
            try:
                # Not synchronised with the disk: if the system dies, the digests tell.
                if self._write(handle, key, memory):
                    os.replace(temporary, path)
                    trim(self._folder, self._cache.limit, path)
            finally:
                os.close(handle)
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def _write(self, handle: int, key: bytes, memory: memoryview) -> bool:
        rest = key
        for begin in self._pieces():
            if self._is_cancelled:
                return False
            piece = memory[begin : begin + PIECE]
            rest += blake3.blake3(piece).digest()
            _write_at(handle, piece, self._data_at + begin)
        _write_at(handle, memoryview(blake3.blake3(rest).digest() + rest), 0)
        return True


def trim(folder: Path, limit: int, newest: Path) -> None:
    """Remove the packs used longest ago until all take ``limit`` bytes at most, and what dead processes have left."""
    now = newest.stat().st_mtime_ns
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may be trimming, too
            status = path.lstat()
            if path.name.startswith(UNFINISHED) and now - status.st_mtime_ns > STALE_NS:
                path.unlink()
            elif path.suffix == SUFFIX and path != newest:
                entries.append((status.st_mtime_ns, status.st_size, path))
    room = limit - newest.stat().st_size
    for _, size, path in sorted(entries, reverse=True):
        room -= size
        if room < 0:
            with contextlib.suppress(OSError):
                path.unlink()


def _is_ours(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Whether it is of a kind, this user's, and nobody else may write to it."""
    return is_kind(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _fill(handle: int, target: memoryview, offset: int) -> None:
    """Read all of ``target`` from ``offset`` on; what lies beyond the end of the file stays as it is."""
    done = 0
    while done < len(target) and (count := os.preadv(handle, [target[done:]], offset + done)):
        done += count


def _write_at(handle: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(handle, data[done:], offset + done)
