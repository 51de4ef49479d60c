"""What makes an answer come sooner and changes no bit of it: which of these are off, and what they need beside a model.

None of it is part of a question or a receipt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic import store
from kinetic.engine import Engine
from kinetic.engine.drafts import RowCosts
from kinetic.errors import UsageError
from kinetic.loader import LoadedFile, open_model_file
from kinetic.types import SPEED_UPS

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
    """Whether what passes cost may be kept for the next start."""
    _draft_file: LoadedFile | None = field(default=None, repr=False)
    _costs_file: Path | None = field(default=None, repr=False)

    def open_draft(self, loaded: LoadedFile, **options: Any) -> Engine | None:
        """The draft model's engine, if one is wanted. Raises UsageError unless its vocabulary is the model's."""
        if self.draft_model is None or "drafts" in self.off:
            return None
        self._draft_file = draft = open_model_file(store.resolve(self.draft_model))
        try:
            _require_same_vocabulary(loaded, draft)
            return Engine(draft.gguf, draft.weights, off=SPEED_UPS, **options)
        except BaseException:
            draft.close()
            raise

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
    off: Collection[str], draft_model: str | os.PathLike[str] | None, draft_max: int | None, *, keeps: bool
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
    return SpeedUps(frozenset(names), draft_model, most, keeps)


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
