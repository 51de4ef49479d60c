"""BLAKE3 with domain strings, and the two digests of a file in one pass."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from typing import NamedTuple

from blake3 import blake3

from ktc.errors import FileProblem

# Every digest begins with one of these. Each ends with NUL, so none is the beginning of another.
RECEIPT = b"kinetic receipt v1\0"
QUESTION = b"kinetic question v1\0"
TOKENS = b"kinetic tokens v1\0"
CHALLENGE = b"kinetic challenge v1\0"
WITHHELD = b"kinetic withheld prompt v1\0"
BATCH_LEAF = b"kinetic batch leaf v1\0"
BATCH_NODE = b"kinetic batch node v1\0"
LOGITS = b"kinetic logits v1\0"

LOGITS_BYTES = 8
"""Of a row's digest, those that a receipt keeps."""

_CHUNK = 1 << 20
"""Bytes per read: large enough for BLAKE3's widest code, small enough to stay in cache for SHA-256."""


class FileDigests(NamedTuple):
    """Size in bytes and lower-case hex digests of a file's whole content."""

    size: int
    blake3: str
    sha256: str


def digest(domain: bytes, *parts: bytes) -> bytes:
    """BLAKE3-256 of the domain string and the parts, 32 bytes."""
    hasher = blake3(domain)
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as hashed: their number as u64, then each id as u32, little-endian."""
    return len(tokens).to_bytes(8, "little") + b"".join(token.to_bytes(4, "little") for token in tokens)


def token_digest(tokens: Sequence[int]) -> str:
    """Hex digest of a token array, its length included."""
    return digest(TOKENS, token_bytes(tokens)).hex()


def withheld_commitment(salt: bytes, tokens: Sequence[int]) -> str:
    """Hex commitment to a prompt that is kept back; ``salt`` is 32 random bytes.

    BLAKE3 keyed by the salt: without the salt a short prompt can't be guessed.
    """
    return blake3(WITHHELD + token_bytes(tokens), key=salt).hexdigest()


def logits_digest(row: bytes | memoryview, salt: bytes = b"") -> bytes:
    """First 8 bytes of the digest of a row of logits: float32, little-endian, one after the other by token id.

    Where the prompt is withheld it is keyed by the prompt's ``salt`` (32 bytes), so that a
    guessed prompt can't be confirmed by whoever has the model and the receipt alone.
    """
    hasher = blake3(LOGITS, key=salt) if salt else blake3(LOGITS)
    return hasher.update(row).digest(length=LOGITS_BYTES)


def file_digests(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> FileDigests:
    """Size, BLAKE3 and SHA-256 of a regular file, read once.

    ``progress(done, total)`` is called after every MiB. Raises FileProblem,
    also when the file changes while it is read.
    """
    try:
        with _open_regular(path) as file:
            return _hash_open_file(file, progress)
    except OSError as error:
        raise FileProblem(f"cannot read {os.fspath(path)}: {error.strerror}", name="UNREADABLE") from None


def _open_regular(path: str | os.PathLike[str]) -> FileIO:
    # O_NONBLOCK: opening a FIFO must not wait for a writer before it can be refused.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileProblem(f"{os.fspath(path)} is not a regular file", name="NOT_A_FILE")
    return FileIO(handle, "rb")


def _hash_open_file(file: FileIO, progress: Callable[[int, int], None] | None) -> FileDigests:
    before = os.fstat(file.fileno())
    found = hash_stream(_chunks(file, before.st_size), before.st_size, progress)
    after = os.fstat(file.fileno())
    if (found.size, after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
        raise FileProblem("the file changed while it was read", name="FILE_CHANGED")
    return found


def _chunks(file: FileIO, size: int) -> Iterator[memoryview]:
    """The file in pieces; one that keeps growing ends just past ``size``. Each piece is valid until the next."""
    buffer, done = bytearray(_CHUNK), 0
    while done <= size and (count := file.readinto(buffer)):
        yield memoryview(buffer)[:count]
        done += count


def hash_stream(
    chunks: Iterable[bytes | memoryview], total: int, progress: Callable[[int, int], None] | None = None
) -> FileDigests:
    """Digests of a stream of chunks; ``total`` is only what the progress is measured against."""
    fast, standard, done = blake3(), hashlib.sha256(), 0
    for chunk in chunks:
        fast.update(chunk)
        standard.update(chunk)
        done += len(chunk)
        if progress:
            progress(done, total)
    return FileDigests(done, fast.hexdigest(), standard.hexdigest())
