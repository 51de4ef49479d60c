"""A home of its own for packs, and logits of tiny models that are read through it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic.api import Model
from kinetic.backends.cpu import target
from kinetic.backends.cpu.weights import WeightStore
from kinetic.bits import F32
from tests.support.backends import compile_all
from tests.support.whole_models import tokens_of

TOKENS = tokens_of(40)


class Packs:
    """``folder`` is where packs go. Files are taken for old ones, so that those just written have packs, too."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compile_all(target.choose())
        monkeypatch.setenv("KINETIC_HOME", str(home))
        monkeypatch.setenv("KINETIC_PACK_CACHE", "100M")
        monkeypatch.setattr("kinetic.store.RACY_NS", -(1 << 62))
        monkeypatch.setattr("kinetic.backends.cpu.packs.PIECE", 1 << 16)  # so that tiny models have many
        self.packed = 0
        pack = WeightStore._pack

        def counted(*arguments: object) -> None:
            self.packed += 1
            pack(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(WeightStore, "_pack", counted)
        self.folder = home / "packs"

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir()) if self.folder.is_dir() else []

    def logits(self, path: Path, *, is_warm: bool | None = None, threads: int = 2, pack_cache: bool = True) -> F32:
        """Logits [tokens, V]. ``is_warm`` says whether all weights must come from a pack, or none."""
        self.packed = 0
        # A drafter has weights of its own, which are in no pack.
        with Model(path, threads=threads, pack_cache=pack_cache, off=("drafts",)) as model:
            found = model._engine.logits(TOKENS)
        assert is_warm is None or is_warm == (self.packed == 0), f"{self.packed} matrices were packed"
        return found
