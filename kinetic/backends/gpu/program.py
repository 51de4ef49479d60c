"""A model on a device: weights, pages of keys and values, and an executor of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Attention, State
from kinetic.backends.checks import check_given, check_table, split
from kinetic.backends.gpu.device import Device
from kinetic.backends.gpu.device_states import DeviceStates
from kinetic.backends.gpu.executor import OPS, Executor
from kinetic.backends.gpu.expert_cache import ExpertOffload
from kinetic.backends.gpu.experts import Mixtures
from kinetic.backends.gpu.host_rows import TABLES
from kinetic.backends.gpu.pages import Pages
from kinetic.backends.graph import Node, matrices
from kinetic.backends.program import Sequences
from kinetic.backends.reference.candidates import candidates
from kinetic.backends.reference.functions import exp32
from kinetic.backends.whole import needs_whole, whole_spans
from kinetic.bits import F32
from kinetic.errors import KineticError, UnsupportedModel
from kinetic.types import Batch

CAPACITY = 256
"""Rows of one pass: longer batches are cut, which cannot change a bit."""


class GpuProgram(Sequences[Pages]):
    def __init__(
        self,
        device: Device,
        nodes: list[Node],
        layers: Sequence[Attention],
        states: Sequence[State] = (),
        offload: ExpertOffload | None = None,
    ) -> None:
        require_kernels(device, nodes)
        self._device = device
        stored = tuple({spec.layer: spec for spec in layers}.values())
        pages, kept = Pages(device, stored), DeviceStates(device, states)
        super().__init__(stored, pages, kept)
        self._kept = kept
        self._is_whole = needs_whole(layers, nodes)
        products = {weight.name for weight in matrices(nodes)}
        for table in {node["table"].name: node["table"] for node in nodes if node.op in TABLES}.values():
            if table.name not in products:
                check_table(table)
        self._executor: Executor | None = Executor(device, nodes, pages, kept, offload)
        self._given = next((node.width for node in nodes if node.op == "given"), 0)
        self.vocab_size = [node for node in nodes if node.op != "tap"][-1].width
        self._seen: list[dict[str, F32]] = []

    def run(self, batch: Batch, given: F32 | None = None, best: int = 0) -> F32:
        """See ``base.Program.run``."""
        if self._executor is None:
            raise KineticError("this program is closed", name="CLOSED")
        check_given(self._given, batch, given)
        if self._is_whole:
            whole_spans(batch, goes_on=self._given > 0)
        ends = self._states.begin(batch)
        logits, self._seen = [], []
        for part in [batch] if self._is_whole else split(batch, CAPACITY):
            rows = len(part.tokens)
            found, seen = self._executor.run(part, None if given is None else given[:rows])
            given = None if given is None else given[rows:]
            logits.append(found)
            self._seen.append(seen)
        self._states.end(ends)
        return np.concatenate(logits)

    @property
    def mixtures(self) -> Mixtures:
        """Where experts are, of a program that isn't closed."""
        assert self._executor is not None
        return self._executor.mixtures

    def rows(self, batch: Batch, choice: tuple[int, float] | None = None, best: int = 0) -> F32:
        return self.run(batch)

    def taps(self) -> dict[str, F32]:
        return {name: np.concatenate([seen[name] for seen in self._seen]) for name in (self._seen or [{}])[0]}

    def candidates(self, row: F32, k: int, floor: float) -> tuple[NDArray[Any], F32]:
        return candidates(row, k, floor)

    def exp(self, x: F32) -> F32:
        return exp32(x)

    def close(self) -> None:
        """Its memory is given back, the device can be used on."""
        executor, self._executor = self._executor, None
        try:
            self._device.finish()
        finally:
            if executor is not None:
                executor.close()
                self._pages.close()
                self._kept.close()


def require_kernels(device: Device, nodes: Sequence[Node]) -> None:
    """Raises UnsupportedModel that names what there is no kernel for."""
    missing = [op for op in dict.fromkeys(node.op for node in nodes) if op not in OPS]
    if missing:
        raise UnsupportedModel(
            f"there are no kernels for {', '.join(missing)} on {device.kind} devices yet, and this model needs them: "
            "run it with --device cpu",
            name="NO_DEVICE_KERNEL",
        )
