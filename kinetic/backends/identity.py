"""Engine ids: which code computed an answer. A claim in a receipt, and a help when two machines disagree."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import blake3
import numpy as np

from kinetic.types import PROFILE

FOLDERS = ("backends", "backends/reference", "layers", "models", "formats", "engine", "samplers")
FILES = ("adapters.py", "bits.py", "rng.py", "lanes.py", "sampling.py")


@lru_cache(maxsize=8)
def engine_digest(backend: str, *facts: str) -> str:
    """BLAKE3 of every source that decides an answer on ``backend``, of NumPy's version, and of ``facts``."""
    package = Path(__file__).parents[1]
    folders = sorted({*FOLDERS, f"backends/{backend}"})
    sources = [path for folder in folders for path in sorted((package / folder).glob("*.py"))]
    return digest_of([*sources, *(package / name for name in FILES)], (PROFILE, np.__version__, *facts))


def digest_of(sources: Iterable[Path], facts: Iterable[str]) -> str:
    """BLAKE3 of files, by name and content, and of some words."""
    hasher = blake3.blake3()
    for source in sources:
        hasher.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    hasher.update("\0".join(facts).encode())
    return str(hasher.hexdigest())
