"""A file of one block: 4,096 bytes that say what it is, then keys and values, then recurrent states.

    magic                                     16 bytes
    BLAKE3 of all behind it, keyed            32
    digest of what it is of                   32    model, adapters, settings, engine
    names of the block before and of this one 32 each
    first position, number of positions       8, 4
    whether there are states                  4
    bytes of keys and values, of states       8, 8
    name of the model, for lists              128   UTF-8, zeros behind it
    tokens                                    4 each, then zeros up to 4,096

Integers are unsigned and little-endian. Only this user's files that nobody else can read or write are opened, and
nothing of one is used before the keyed digest was found to hold: whoever doesn't have the key can't make one.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import blake3
import numpy as np

from kinetic.backends.base import CHUNK
from kinetic.engine.warm.blocks import U8, Block, Contents

MAGIC = b"kinetic prefix 1"
HEADER, SEAL, LABEL = 4096, 32, 128
_FIXED = struct.Struct(f"<{len(MAGIC)}s{SEAL}s32s32s32sQIIQQ{LABEL}s")
_SEALED_FROM = len(MAGIC) + SEAL

IS_POSSIBLE = hasattr(os, "getuid") and hasattr(os, "O_NOFOLLOW")


class Header(NamedTuple):
    """What a file says of itself. ``seal`` alone vouches for it."""

    seal: bytes
    subject: bytes
    block: Block
    kept_bytes: int
    state_bytes: int
    label: str

    @property
    def size(self) -> int:
        """Of the whole file."""
        return HEADER + self.kept_bytes + self.state_bytes


def keys_of(secret: bytes) -> tuple[bytes, bytes]:
    """The key of seals and that of names."""
    parts = ("seal", "name")
    seal, name = (
        bytes(blake3.blake3(secret, derive_key_context=f"kinetic 2026-11-30 prefix states, {part}").digest())
        for part in parts
    )
    return seal, name


def is_private(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Whether it is of a kind, this user's, and nobody else may read or write it."""
    return is_kind(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def open_private(path: str | os.PathLike[str]) -> int:
    """A descriptor to read with. Follows no link and waits for no pipe. Raises OSError if it isn't private."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not is_private(os.fstat(handle), stat.S_ISREG):
        os.close(handle)
        raise PermissionError(f"{os.fspath(path)} is not a file of this user's alone")
    return handle


def packed(
    block: Block, contents: Contents, subject: bytes, label: str, key: bytes
) -> tuple[bytes, Sequence[memoryview]]:
    """The header and what follows it."""
    parts = [part.data for part in contents if part is not None and part.nbytes]
    sizes = [0 if part is None else part.nbytes for part in contents]
    name = label.encode("utf-8", "replace")[:LABEL].decode("utf-8", "ignore").encode()
    tokens = np.array(block.tokens, "<u4").tobytes()

    def header(seal: bytes) -> bytes:
        about = (subject, block.parent, block.name, block.start, len(block.tokens), block.has_states, *sizes, name)
        return (_FIXED.pack(MAGIC, seal, *about) + tokens).ljust(HEADER, b"\0")

    hasher = blake3.blake3(header(bytes(SEAL))[_SEALED_FROM:], key=key)
    for part in parts:
        hasher.update(part)
    return header(bytes(hasher.digest())), parts


def parsed(data: bytes) -> Header | None:
    """What the first bytes of a file say; None if no file of this version begins so."""
    if len(data) != HEADER:
        return None
    magic, seal, subject, parent, name, start, count, has_states, kept, states, label = _FIXED.unpack_from(data)
    if magic != MAGIC or not 1 <= count <= CHUNK or start % CHUNK or has_states not in (0, 1):
        return None
    tokens = np.frombuffer(data, "<u4", count, _FIXED.size).tolist()
    block = Block(parent, name, start, tuple(tokens), bool(has_states))
    return Header(seal, subject, block, kept, states, label.rstrip(b"\0").decode("utf-8", "replace"))


class Room:
    """Memory that is used again: it costs less than new memory does."""

    def __init__(self) -> None:
        self._memory: U8 = np.empty(0, np.uint8)

    def of(self, size: int) -> U8:
        """uint8 [size], whatever they are."""
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size]


def read_header(handle: int) -> Header | None:
    """That of an open file, if the file is as long as it says."""
    found = parsed(os.pread(handle, HEADER, 0))
    return found if found and os.fstat(handle).st_size == found.size else None


def read(handle: int, kept_bytes: int, state_bytes: int, key: bytes, room: Room) -> tuple[Header, Contents] | None:
    """All of an open file whose sizes must be these; None unless its seal holds. Keys and values lie in ``room``, and
    hold until it is used again."""
    size = HEADER + kept_bytes + state_bytes
    if os.fstat(handle).st_size != size:
        return None
    data = room.of(size)
    view, done = data.data, 0
    while done < len(view) and (count := os.preadv(handle, [view[done:]], done)):
        done += count
    found = parsed(data[:HEADER].tobytes())
    if done < len(view) or found is None or (found.kept_bytes, found.state_bytes) != (kept_bytes, state_bytes):
        return None
    if blake3.blake3(view[_SEALED_FROM:], key=key).digest() != found.seal:
        return None
    middle = HEADER + kept_bytes
    return found, Contents(data[HEADER:middle], data[middle:].copy() if found.block.has_states else None)
