"""What makes an answer come sooner and changes no bit of it: which of these are off, and what they need beside a model.

None of it is part of a question or a receipt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic import prefixes, store
from kinetic.adapters import Adapter
from kinetic.engine import Engine
from kinetic.engine.drafts import RowCosts
from kinetic.engine.engine import WARM_BYTES
from kinetic.errors import UsageError
from kinetic.loader import LoadedFile, open_model_file
from kinetic.models import DRAFTERS, build_drafter
from kinetic.models.family import HiddenDrafter
from kinetic.types import SPEED_UPS, PrefixCache, RopeOverrides

MOST_DRAFTS = 63
"""Tokens guessed ahead at once, unless fewer are asked for."""

COSTS_BYTES = 4096
"""A longer file of costs isn't ours."""


@dataclass
class SpeedUps:
    """The wishes of a user, and what was opened for them."""

    off: frozenset[str] = frozenset()
    draft_model: str | os.PathLike[str] | None = None
    draft_max: int = MOST_DRAFTS
    keeps: bool = True
    """Whether what passes cost, and what was computed of prompts, may be kept for the next start."""
    cache_ram: int = WARM_BYTES
    cache_disk: int | None = None
    """Bytes that earlier prompts may take in memory and on disk; None: as the environment says."""
    _draft_file: LoadedFile | None = field(default=None, repr=False)
    _costs_file: Path | None = field(default=None, repr=False)

    def open_draft(self, loaded: LoadedFile, **options: Any) -> Engine | HiddenDrafter | None:
        """The draft model's engine, if one is wanted, or what reads the model's hidden rows. Raises UsageError unless
        its vocabulary is the model's."""
        if self.draft_model is None or "drafts" in self.off:
            return None
        draft = open_model_file(store.resolve(self.draft_model))
        try:
            is_reader = draft.gguf.metadata.get("general.architecture") in DRAFTERS
            if not is_reader or "tokenizer.ggml.tokens" in draft.gguf.metadata:
                _require_same_vocabulary(loaded, draft)
            made: Engine | HiddenDrafter
            if is_reader:
                made = build_drafter(draft.gguf, draft.weights, loaded.weights)
            else:
                made = Engine(draft.gguf, draft.weights, off=SPEED_UPS, **options)
        except BaseException:
            draft.close()
            raise
        self._draft_file = draft
        return made

    def close_draft(self, draft: Engine | HiddenDrafter | None) -> None:
        """What ``open_draft`` gave, and its file: there is no engine that it could serve."""
        if isinstance(draft, Engine):
            draft.close()
        if self._draft_file:
            self._draft_file.close()
            self._draft_file = None

    def prefix_cache(
        self, loaded: LoadedFile, adapters: Iterable[Adapter], rope: RopeOverrides | None
    ) -> PrefixCache | None:
        """Where the engine of these may keep what it computes of prompts, if anywhere. Raises UsageError."""
        if not self.keeps or "warm" in self.off:
            return None
        return prefixes.cache_of(loaded, tuple(adapters), rope, self.cache_disk)

    def prepare(self, engine: Engine, loaded: LoadedFile) -> None:
        """With the costs that were measured last time."""
        if engine.drafter is None:
            return
        if self.keeps:  # names and sizes are enough: figures of another file could only be unsuitable
            files = [(shard.path.name, shard.source.status.st_size) for shard in loaded.gguf.shards]
            name = json.dumps([files, engine.identity.engine_id, engine.identity.threads])
            digest = hashlib.sha256(name.encode()).hexdigest()[:32]
            self._costs_file = store.folder("costs") / f"{digest}.json"
            engine.drafter = engine.fresh_drafter(RowCosts(_read(self._costs_file)))
        engine.drafter.longest = self.draft_max

    def close(self, engine: Engine) -> None:
        """Keeps what passes cost, and closes the draft model's file; ``engine`` is closed already."""
        costs = engine.drafter.costs.kept() if engine.drafter else {}
        if self._costs_file and costs and store.writable("costs"):
            with contextlib.suppress(OSError):
                store.write_atomically(self._costs_file, json.dumps(costs).encode())
        if self._draft_file:
            self._draft_file.close()


def wishes(
    off: Collection[str],
    draft_model: str | os.PathLike[str] | None,
    draft_max: int | None,
    cache_ram: int | None,
    cache_disk: int | None,
    *,
    keeps: bool,
) -> SpeedUps:
    """What a user asked for, or UsageError."""
    names = {off} if isinstance(off, str) else set(off)
    if unknown := sorted(names - set(SPEED_UPS)):
        raise UsageError(
            f"there is no speed-up {unknown[0]!r} to turn off: there is {', '.join(SPEED_UPS)}", name="NO_SPEED_UP"
        )
    most = MOST_DRAFTS if draft_max is None else draft_max
    if not 0 <= most <= MOST_DRAFTS:
        raise UsageError(f"draft_max is {most}, but must be from 0 to {MOST_DRAFTS}", name="BAD_DRAFT_MAX")
    if draft_model is not None and "drafts" in names:
        raise UsageError("a draft model is of no use where drafts are off: leave one of them out", name="DRAFTS_OFF")
    for what, size in (("memory", cache_ram), ("disk", cache_disk)):
        if size is not None and size < 0:
            raise UsageError(f"the cache in {what} is to take {size} bytes, but they are 0 or more", name="BAD_CACHE")
    ram = WARM_BYTES if cache_ram is None else cache_ram
    return SpeedUps(frozenset(names), draft_model, most, keeps, ram, cache_disk)


def _require_same_vocabulary(loaded: LoadedFile, draft: LoadedFile) -> None:
    keys = ("tokenizer.ggml.model", "tokenizer.ggml.tokens")
    ours, theirs = loaded.gguf.metadata, draft.gguf.metadata
    if any(ours.get(key) != theirs.get(key) for key in keys):
        raise UsageError(
            f"the draft model {draft.gguf.paths[0].name} has another vocabulary than {loaded.gguf.paths[0].name}:"
            " only one with the same tokens can guess for it",
            name="OTHER_VOCABULARY",
        )


def _read(path: Path) -> dict[str, float]:
    """What was kept; nothing where it can't be read, since it only saves time."""
    try:
        if path.stat().st_size > COSTS_BYTES:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
