"""Cached object files: 32 bytes of BLAKE3, then the object. Damaged native code must never be loaded."""

from __future__ import annotations

from pathlib import Path

import blake3

DIGEST = 32


def sealed(code: bytes) -> bytes:
    """What to write into the cache."""
    return bytes(blake3.blake3(code).digest()) + code


def read(path: Path) -> bytes | None:
    """The object in a cached file, or None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    code = content[DIGEST:]
    return code if content[:DIGEST] == blake3.blake3(code).digest() else None
