"""What a model shows of itself to a drafter that reads its hidden rows, and that drafter on the same device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kinetic.backends.base import CHUNK
from kinetic.bits import F32
from kinetic.engine.drafts import BlockSource, HiddenSource
from kinetic.engine.warm import Warm
from kinetic.errors import UnsupportedModel
from kinetic.layers.deltanet import HIDDEN
from kinetic.layers.watched import LayerInputs
from kinetic.models.family import HiddenDrafter

if TYPE_CHECKING:
    from kinetic.backends.base import Array, Backend, Forward, Ops, Program
    from kinetic.models.family import Family


def hidden_drafter(family: Family, draft: object) -> tuple[HiddenDrafter | None, Forward]:
    """The drafter that reads hidden rows of a model, if there is one, and the model's forward, which then taps them.

    ``draft`` is one that a user gave, or another kind of drafter; without any it is the model's own.
    """
    if isinstance(draft, HiddenDrafter):
        inputs = LayerInputs(draft.layers)

        def forward(ops: Ops) -> Array:
            logits = family.forward(inputs(ops))
            for name in inputs.names:
                if name not in inputs.seen:
                    raise UnsupportedModel(
                        f"the draft model wants to see the {name}, which this model does not have or can't show",
                        name="NO_SUCH_LAYER",
                    )
            return logits

        return draft, forward
    own = family.next_token
    if draft is not None or own is None:
        return None, family.forward
    context = family.context_length
    small = HiddenDrafter(family.architecture, own.forward, own.attention, own.width, context, begins_empty=True)
    return small, own.trunk


class Seeing:
    """``program`` is the model's, with its taps; ``progress`` gets one-line news. Of ``warm_bytes``, in which both keep
    what they computed of earlier prompts, the drafter takes ``memory``; None: nothing is kept from prompt to prompt."""

    def __init__(
        self,
        device: Backend,
        program: Program,
        drafter: HiddenDrafter,
        progress: Callable[[str], None] | None,
        warm_bytes: int | None = None,
    ) -> None:
        self._names = LayerInputs(drafter.layers).names or [HIDDEN]
        self._model, self._drafter = program, drafter
        self._program = device.load(drafter.forward, drafter.attention, progress)
        self._encoder = device.load(drafter.encode, (), progress) if drafter.encode else None
        self._keeps = warm_bytes is not None and not self._program.state_bytes
        self.memory = 0
        if warm_bytes and self._keeps and program.can_keep and self._program.can_keep:
            ours, theirs = self._program.kept_bytes(CHUNK), program.kept_bytes(CHUNK)
            self.memory = warm_bytes * ours // max(1, ours + theirs)

    def rows(self) -> F32:
        """Of the model's last pass: float32 [T, width]."""
        taps = self._model.taps()
        parts = [taps[name] for name in self._names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def source(self, clock: Callable[[], float] | None) -> HiddenSource:
        """One that has seen nothing yet. There is one sequence for all of them: only the last may be used."""
        kind = BlockSource if self._drafter.block else HiddenSource
        warm = Warm(self._program, self.memory) if self._keeps else None
        return kind(self._program, self._encoder, self._drafter, clock, warm)

    def close(self) -> None:
        for program in (self._program, self._encoder):
            if program:
                program.close()
