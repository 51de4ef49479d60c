"""Blocks in the files of a folder, which several processes may use at once.

A file is named by what it is of, its place, its parent and itself, all digests that take the user's key. It is written
under another name and renamed. Files used longest ago go first. Whatever fails here costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import blake3

from kinetic.engine.warm import files
from kinetic.engine.warm.blocks import Block, Contents, Entry, name_of
from kinetic.errors import KineticError
from kinetic.types import PROFILE, PrefixCache

if TYPE_CHECKING:
    from kinetic.backends.base import Program

Found = TypeVar("Found")

SUFFIX, UNFINISHED = ".prefix", "tmp-"
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{32})-([0-9a-f]{32})-([0-9a-f]{1,3})(s?)\.prefix", re.ASCII)

MOST_SIBLINGS = 64
"""Files behind one block whose tokens are looked at, those used last."""

WAITING = 8
"""Blocks that wait to be written; whoever has more waits, too."""

LEAST_URGENT = 10
"""Of Linux' priorities, where 19 is the lowest: others come first, and whoever waits for a file still gets it."""

END_OF_CHAIN, END = "end of chain", "end"
"""What waits between blocks, and after the last."""

STALE_NS = 3_600_000_000_000
"""An unfinished file this much older than a finished one was left by a process that died."""


class _File:
    """A block in a file, as ``blocks.Entry`` has it."""

    def __init__(self, store: DiskStore, path: Path, name: str, count: int, has_states: bool, used: int) -> None:
        self._store, self.path, self.short, self.used = store, path, name, used
        self.count, self.has_states = count, has_states
        self._header: files.Header | None = None
        self._is_read = self.is_gone = False

    def is_named(self, name: bytes) -> bool:
        return self.short == name.hex()[:32]

    def tokens(self) -> tuple[int, ...]:
        header = self.header()
        return header.block.tokens if header else ()

    def header(self) -> files.Header | None:
        if not self._is_read:
            self._is_read, self._header = True, self._store.header(self)
        return self._header

    def load(self) -> Contents | None:
        return self._store.load(self)


class DiskStore:
    """``facts`` are what blocks depend on beside what ``cache`` names: the engine and the shapes of its program."""

    dropped = 0
    """Files that were none of ours, or damaged: they are removed."""

    def __init__(self, cache: PrefixCache, program: Program, facts: Sequence[str]) -> None:
        self._cache, self._program, self._facts = cache, program, facts
        self._folder = Path(cache.folder)
        self._seal_key, self.name_key = files.keys_of(cache.secret)
        self._subject = self._subject_of(cache.known) if cache.known else b""
        self._children: dict[str, list[_File]] = {}
        self._names: set[str] = set()
        self._waiting: queue.Queue[tuple[Block, Contents | None] | str] = queue.Queue(WAITING)
        self._writer: threading.Thread | None = None
        self._is_over = not files.IS_POSSIBLE or cache.limit <= 0
        self._offered: set[str] = set()
        self._room = files.Room()
        self._chain: list[Path] = []
        self._chain_bytes = 0

    def _subject_of(self, known: str) -> bytes:
        text = json.dumps([files.MAGIC.decode(), PROFILE, known, *self._facts])
        return bytes(blake3.blake3(text.encode(), key=self.name_key).digest())

    # ---- looking

    def look(self) -> None:
        """Find out what is there now."""
        self._children, self._names = {}, set()
        if self._is_over or not self._subject:
            return
        with contextlib.suppress(OSError):
            if not files.is_private(self._folder.lstat(), stat.S_ISDIR):
                return
            start = self._subject.hex()[:16]
            for path, status in entries(self._folder):
                if (match := _NAME.fullmatch(path.name)) and match[1] == start:
                    file = _File(self, path, match[3], int(match[4], 16), bool(match[5]), status.st_mtime_ns)
                    self._children.setdefault(match[2], []).append(file)
                    self._names.add(path.name)
        for siblings in self._children.values():
            siblings.sort(key=lambda file: -file.used)
            del siblings[MOST_SIBLINGS:]

    def children(self, parent: bytes) -> Iterable[Entry]:
        return tuple(self._children.get(parent.hex()[:32], ()))

    def header(self, file: _File) -> files.Header | None:
        """What the file says of itself, if it may be true."""
        found = self._read(file, files.read_header)
        if found is None or not self._fits(file, found):
            self._drop(file)
            return None
        return found

    def load(self, file: _File) -> Contents | None:
        states = self._program.state_bytes if file.has_states else 0
        sizes = self._program.kept_bytes(file.count), states
        found = self._read(file, lambda handle: files.read(handle, *sizes, self._seal_key, self._room))
        if found is None or found[0] != file.header() or not self._fits(file, found[0]):
            self._drop(file)
            return None
        return found[1]

    def _read(self, file: _File, read: Callable[[int], Found | None]) -> Found | None:
        try:
            handle = files.open_private(file.path)
            try:
                return read(handle)
            finally:
                os.close(handle)
        except FileNotFoundError:  # another process removed it: nothing is wrong
            file.is_gone = True
        except OSError:
            pass
        return None

    def _fits(self, file: _File, header: files.Header) -> bool:
        """Whether it says what its name says."""
        is_here = header.subject == self._subject and (len(header.block.tokens), header.block.has_states) == (
            file.count,
            file.has_states,
        )
        block = header.block
        is_itself = block.name == name_of(block.parent, block.tokens, self.name_key)
        return is_here and is_itself and self._path(block).name == file.path.name

    def _path(self, block: Block) -> Path:
        parts = self._subject.hex()[:16], block.parent.hex()[:32], block.name.hex()[:32], f"{len(block.tokens):x}"
        return self._folder / f"{'-'.join(parts)}{'s' if block.has_states else ''}{SUFFIX}"

    def _drop(self, file: _File) -> None:
        """What isn't ours or is damaged goes; that it was there is counted."""
        for siblings in self._children.values():
            if file in siblings:
                siblings.remove(file)
                self.dropped += not file.is_gone
                self._names.discard(file.path.name)
                with contextlib.suppress(OSError):
                    file.path.unlink()

    def used(self, found: Sequence[Entry]) -> None:
        """These were used now, the first of them last: what nothing can follow goes first."""
        touch([entry.path for entry in found if isinstance(entry, _File)])

    # ---- writing

    def has(self, block: Block) -> bool:
        """As of the last look, and of what was offered since."""
        names = {self._path(block._replace(has_states=True)).name, self._path(block).name}
        return bool(self._subject and names & self._names) or bool(names & self._offered)

    def offer(self, block: Block, contents: Contents | None) -> None:
        """Written beside what comes next; neither may change any more. None: it is there already, and was used."""
        if self._is_over:
            return
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, daemon=True)
            self._writer.start()
        self._offered.add(self._path(block).name)
        self._waiting.put((block, contents))

    def end_of_chain(self) -> None:
        """What was offered since the last end followed one another."""
        if self._writer is not None and not self._is_over:
            self._waiting.put(END_OF_CHAIN)

    def close(self) -> None:
        """Wait until all is written. A program that is being ended doesn't wait."""
        if self._writer is None:
            return
        ending = sys.exception()
        self._is_over = ending is not None and not isinstance(ending, Exception)
        try:
            self._waiting.put(END)
            self._writer.join()
        except BaseException:
            self._is_over = True
            raise

    def _write_all(self) -> None:
        """The work of the writer. It takes what waits until the end, whatever happens, since others wait for it."""
        if sys.platform == "linux":  # where a thread has a priority of its own: an answer comes first
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_URGENT)
        while (item := self._waiting.get()) != END:
            if isinstance(item, str):
                touch(self._chain)
                self._chain, self._chain_bytes = [], 0
            elif not self._is_over:
                try:
                    self._write(*item)
                except (OSError, KineticError):  # a full disk, a folder that is gone, a model file that changed
                    self._is_over = True
                self._offered.discard(self._path(item[0]).name)

    def _write(self, block: Block, contents: Contents | None) -> None:
        if not files.is_private(self._folder.lstat(), stat.S_ISDIR):
            raise PermissionError("others may read this folder")
        subject = self._subject_of(self._cache.find())
        if self._subject and subject != self._subject:
            raise PermissionError("the model is another now")
        self._subject = subject
        path = self._path(block)
        if contents is None or path.exists():
            self._chain.append(path)
            return
        header, parts = files.packed(block, contents, subject, self._cache.label, self._seal_key)
        size = len(header) + sum(len(part) for part in parts)  # exact: integers
        if self._chain_bytes + size > self._cache.limit:
            return
        trim(self._folder, self._cache.limit - size)
        handle, temporary = tempfile.mkstemp(prefix=UNFINISHED, dir=self._folder)  # mode 0600
        try:
            # Not synchronised with the disk: if the system dies, the seal tells.
            with os.fdopen(handle, "wb", buffering=0) as file:
                for part in (memoryview(header), *parts):
                    while len(part):
                        part = part[file.write(part) :]
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._chain.append(path)
        self._chain_bytes += size
        self._supersede(block)

    def _supersede(self, block: Block) -> None:
        """Remove what is a beginning of this block and was written before. Not where states are: they are elsewhere."""
        if self._program.state_bytes:
            return
        start = f"{self._subject.hex()[:16]}-{block.parent.hex()[:32]}-"
        for path, _ in entries(self._folder):
            match = _NAME.fullmatch(path.name)
            if match and path.name.startswith(start) and int(match[4], 16) < len(block.tokens):
                with contextlib.suppress(OSError):
                    handle = files.open_private(path)
                    try:
                        found = files.read_header(handle)
                    finally:
                        os.close(handle)
                    if found and found.block.tokens == block.tokens[: len(found.block.tokens)]:
                        path.unlink()


def entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files in a folder that look like ours, with their status. Raises OSError if there is no folder."""
    for path in folder.iterdir():
        if path.suffix == SUFFIX:
            with contextlib.suppress(OSError):  # another process removed it
                yield path, path.lstat()


def trim(folder: Path, limit: int) -> None:
    """Remove the files used longest ago until all take ``limit`` bytes at most, and what dead processes have left."""
    found = sorted(((status.st_mtime_ns, status.st_size, path) for path, status in entries(folder)), reverse=True)
    room = limit
    for _, size, path in found:
        room -= size
        if room < 0:
            with contextlib.suppress(OSError):
                path.unlink()
    for path in folder.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if found and found[0][0] - path.lstat().st_mtime_ns > STALE_NS:
                path.unlink()


def touch(chain: Sequence[Path]) -> None:
    """These were used now, each a little later than the one behind it."""
    if not chain:
        return
    with contextlib.suppress(OSError):
        os.utime(chain[-1])
        now = chain[-1].stat().st_mtime_ns
        for number, path in enumerate(reversed(chain)):
            with contextlib.suppress(OSError):
                os.utime(path, ns=(now + 1000 * number, now + 1000 * number))
