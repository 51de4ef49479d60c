"""What a bundle is packed from: a model file as it stands, or the bytes of one that is being put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

from ktc import passes
from ktc.errors import FileProblem
from ktc.passes import Name


class ModelStream:
    """The ``size`` bytes of a model file, in pieces that are read once; a piece may be gone when the next is asked for.

    ``check`` is called when all are read: it raises if their source has changed meanwhile.
    """

    def __init__(
        self, size: int, pieces: Iterable[bytes | memoryview], check: Callable[[], None] = lambda: None
    ) -> None:
        self.size = size
        self.check_unchanged = check
        self._pieces = iter(pieces)
        self._begun = bytearray()

    def head(self, length: int) -> bytes:
        """The first bytes, before ``read`` gives them again."""
        while len(self._begun) < length and (piece := next(self._pieces, None)) is not None:
            self._begun += piece
        if len(self._begun) < length:
            raise self._cut_short(len(self._begun))
        return bytes(self._begun[:length])

    def read(self) -> Iterator[bytes | memoryview]:
        """All bytes; raises FileProblem FILE_CHANGED if they are not ``size``."""
        begun, self._begun = self._begun, bytearray()
        yield memoryview(begun)
        done = len(begun)
        for piece in self._pieces:
            done += len(piece)
            if done > self.size:
                break
            yield piece
        if done != self.size:
            raise self._cut_short(done)
        self.check_unchanged()

    def _cut_short(self, done: int) -> FileProblem:
        return FileProblem(
            f"the model file has {'more' if done > self.size else 'fewer'} than the {self.size} bytes it began with",
            name="FILE_CHANGED",
        )


class ModelFile(ModelStream):
    """A model file on the disk: a regular file with one name. A context manager.

    A link could be turned to another file, and a file with a second name be
    written to by that, while it is packed.
    """

    def __init__(self, path: Name) -> None:
        """Raises FileProblem: SYMLINK, HARD_LINK, NOT_A_FILE, UNREADABLE."""
        self.path = os.fspath(path)
        self._handle, self.status = _open_plain(self.path)
        size = self.status.st_size
        super().__init__(size, passes.pieces(self._handle, 0, size), self._check_status)

    def _check_status(self) -> None:
        passes.check_unchanged(self._handle, self.status, self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._handle)


def _open_plain(path: str) -> tuple[int, os.stat_result]:
    if os.path.islink(path):
        raise _symlink(path)
    try:
        handle, status = passes.open_regular(path, flags=os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileProblem:
        if os.path.islink(path):  # it became one
            raise _symlink(path) from None
        raise
    if status.st_nlink > 1:
        os.close(handle)
        raise FileProblem(
            f"{path} has {status.st_nlink} names (hard links), and could be changed by another: copy it first",
            name="HARD_LINK",
        )
    return handle, status


def _symlink(path: str) -> FileProblem:
    return FileProblem(
        f"{path} is a symbolic link: name the file it leads to, {os.path.realpath(path)}", name="SYMLINK"
    )
