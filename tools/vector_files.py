"""Writes generated vectors over those that are committed, and says what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path


def renew(made: Mapping[Path, bytes], there: Iterable[Path], root: Path) -> int:
    """Put ``made`` in the place of the files ``there``; 1 if one of these changed or is no longer made, else 0."""
    before = {path: path.read_bytes() for path in there}
    stale = [path for path, data in before.items() if made.get(path) != data]
    for path in stale:
        path.unlink()
    for path, data in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for path in stale:
        print(f"{path.relative_to(root)} {'changed' if path in made else 'is no longer made'}")
    return 1 if stale else 0
