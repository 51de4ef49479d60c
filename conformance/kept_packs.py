"""A folder of packed weights for one case, and whether a pack in it was believed."""

from __future__ import annotations

import os
from pathlib import Path

from blake3 import blake3

from kinetic.types import PackCache

LIMIT = 1 << 40
LONG_AGO = 1_000_000_000


class KeptPacks:
    """Of one model file. ``folder`` is made, and must be new."""

    def __init__(self, folder: Path, model: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        hasher = blake3()
        hasher.update_mmap(model)
        self._digest = hasher.hexdigest()

    @property
    def cache(self) -> PackCache:
        return PackCache(str(self.folder), LIMIT, self._digest, lambda: self._digest)

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.pack"))

    def age(self) -> None:
        """So that ``was_used`` can tell: a pack that is read and found sound gets the time of that."""
        for path in self.files:
            os.utime(path, (LONG_AGO, LONG_AGO))

    def was_used(self) -> bool:
        """Whether the one pack was read and believed; one that isn't is removed, and written anew later."""
        return len(self.files) == 1 and self.files[0].stat().st_mtime > LONG_AGO
