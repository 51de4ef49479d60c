"""A model shared between the CPU and a device: its first layers run here, its last ones there.

One row of activations a token goes over (``cuts``). How many layers the device takes is a number, all of them, or as
many as fit into its memory; what it has no kernel or no memory for stays on the CPU, with a line that says so.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from kinetic.backends import ALL, AUTO
from kinetic.backends.base import Attention, Backend, Forward, Program, Snapshot, State
from kinetic.backends.checks import check_given
from kinetic.backends.cuts import Cuts, find_cuts, halves, kept_behind
from kinetic.backends.graph import Node, trace
from kinetic.backends.states import ends_of
from kinetic.bits import F32
from kinetic.errors import KineticError
from kinetic.types import Batch, PackCache

U8 = NDArray[np.uint8]

Tell = Callable[[str], None]

NO_MEMORY, NO_KERNEL = "OutOfMemory", "NO_DEVICE_KERNEL"
"""Names of errors that a device refuses a model with."""


class SplitProgram:
    """``front`` gives for every row what ``back`` takes beside the tokens. All else that a sequence is lies in both."""

    def __init__(self, front: Program, back: Program, states: Sequence[State], own: Sequence[State]) -> None:
        """``states`` are those of both, ``own`` those of ``front``."""
        self._front, self._back = front, back
        self._states, self._own = tuple(states), frozenset(own)
        self.vocab_size = back.vocab_size
        self.can_keep = front.can_keep and back.can_keep
        self.can_branch = front.can_branch and back.can_branch
        self.state_bytes = front.state_bytes + back.state_bytes if self.can_keep else 0

    def run(self, batch: Batch, given: F32 | None = None, best: int = 0) -> F32:
        """See ``base.Program.run``."""
        check_given(0, batch, given)
        ends_of(batch, self.length, has_states=bool(self._states))  # so that neither half goes on alone
        rows = self._front.run(replace(batch, outputs=tuple(range(len(batch.tokens)))))
        return self._back.run(batch, rows, best)

    def rows(self, batch: Batch, choice: tuple[int, float] | None = None, best: int = 0) -> F32:
        return self.run(batch, best=best)

    def taps(self) -> dict[str, F32]:
        return self._front.taps() | self._back.taps()

    def length(self, sequence: int) -> int:
        return min(self._front.length(sequence), self._back.length(sequence))

    def truncate(self, sequence: int, length: int) -> int:
        """Each half may go back further than it was asked to, and then the other one has to."""
        while True:
            kept = self._front.truncate(sequence, length), self._back.truncate(sequence, length)
            if kept[0] == kept[1]:
                return kept[0]
            length = min(kept)

    def mark(self, sequence: int) -> None:
        self._front.mark(sequence)
        self._back.mark(sequence)

    def snapshot(self, sequence: int) -> Snapshot:
        a, b = self._front.snapshot(sequence), self._back.snapshot(sequence)
        return Snapshot(a.length, {**a.keys, **b.keys}, {**a.values, **b.values}, {**a.states, **b.states})

    def restore(self, sequence: int, snapshot: Snapshot) -> None:
        ours = {state: values for state, values in snapshot.states.items() if state in self._own}
        others = {state: values for state, values in snapshot.states.items() if state not in self._own}
        try:
            self._front.restore(sequence, replace(snapshot, states=ours))
            self._back.restore(sequence, replace(snapshot, states=others))
        except BaseException:
            self.truncate(sequence, 0)  # not one half of it
            raise

    # ---- what is kept of a sequence: the front's bytes, then the back's

    def kept_bytes(self, count: int) -> int:
        return self._front.kept_bytes(count) + self._back.kept_bytes(count)

    def read_kept(self, sequence: int, start: int, count: int) -> U8:
        return np.concatenate([half.read_kept(sequence, start, count) for half in (self._front, self._back)])

    def write_kept(self, sequence: int, start: int, count: int, data: U8) -> None:
        size = self._front.kept_bytes(count)
        self._front.write_kept(sequence, start, count, data[:size])
        self._back.write_kept(sequence, start, count, data[size:])

    def read_states(self, sequence: int) -> U8:
        return np.concatenate([self._front.read_states(sequence), self._back.read_states(sequence)])

    def stand(self, sequence: int, length: int, states: U8 | None = None) -> None:
        size = self._front.state_bytes
        parts = (None, None) if states is None else (states[:size], states[size:])
        self._front.stand(sequence, length, parts[0])
        self._back.stand(sequence, length, parts[1])

    def fork(self, source: int, target: int, length: int) -> None:
        self._front.fork(source, target, length)
        self._back.fork(source, target, length)

    def take_over(self, source: int, target: int) -> None:
        self._front.take_over(source, target)
        self._back.take_over(source, target)

    def candidates(self, row: F32, k: int, floor: float) -> tuple[NDArray[Any], F32]:
        return self._front.candidates(row, k, floor)

    def exp(self, x: F32) -> F32:
        return self._front.exp(x)

    def close(self) -> None:
        self._back.close()
        self._front.close()


class Offload(Backend, Protocol):
    """A device that may take a part of a model."""

    def lacks(self, node: Node) -> str:
        """What there is no kernel for, if a node can't run here; else ""."""

    def free_memory(self) -> int:
        """Bytes that it has left."""

    def needed_memory(
        self, nodes: Sequence[Node], layers: Sequence[Attention], states: Sequence[State], context: int
    ) -> int:
        """Bytes that a graph takes there: weights, keys and values of ``context`` positions, room to compute in."""


class SplitBackend:
    """``device`` takes the last ``wanted`` layers: a number, ALL, or AUTO; ``context`` is the most positions that a
    sequence will have. What it is called is that of the model loaded last."""

    def __init__(self, device: Offload, open_cpu: Callable[[], Backend], wanted: int, context: int) -> None:
        self._device, self._open_cpu, self._wanted, self._context = device, open_cpu, wanted, context
        self._cpu: Backend | None = None
        self._is_named(0, 1)

    def load(
        self,
        forward: Forward,
        layers: Sequence[Attention],
        progress: Tell | None = None,
        packs: PackCache | None = None,
        states: Sequence[State] = (),
    ) -> Program:
        """Raises OutOfMemory where not even the CPU has enough."""
        tell = progress or (lambda line: None)
        nodes = trace(forward)
        cuts = find_cuts(nodes)
        front = self._first_choice(nodes, cuts, layers, states, tell)
        while front < cuts.layers:
            try:
                program = self._load(forward, nodes, cuts, front, layers, progress, states)
                self._is_named(front, cuts.layers)
                return program
            except KineticError as error:
                if error.name not in (NO_MEMORY, NO_KERNEL):
                    raise
                reason, helps = str(error), error.name == NO_MEMORY
            gc.collect()  # what was loaded so far hangs together in circles
            here = cuts.layers - front
            front = cuts.at_least(cuts.layers - here * 3 // 4) if helps else cuts.layers
            tell(f"{reason}: {_said(cuts.layers - front, cuts.layers, self._device.device_name)}")
        self._is_named(cuts.layers, cuts.layers)
        return self._on_cpu().load(forward, layers, progress, packs, states)

    def _load(
        self,
        forward: Forward,
        nodes: Sequence[Node],
        cuts: Cuts,
        front: int,
        layers: Sequence[Attention],
        progress: Tell | None,
        states: Sequence[State],
    ) -> Program:
        if front == 0:
            return self._device.load(forward, layers, progress, None, states)
        ours, theirs = halves(nodes, cuts.cuts[front], layers, states)
        back = self._device.load(theirs.forward, theirs.layers, progress, None, theirs.states)
        try:
            first = self._on_cpu().load(ours.forward, ours.layers, progress, None, ours.states)
        except BaseException:
            back.close()
            raise
        return SplitProgram(first, back, states, ours.states)

    def _first_choice(
        self, nodes: Sequence[Node], cuts: Cuts, layers: Sequence[Attention], states: Sequence[State], tell: Tell
    ) -> int:
        """How many layers are to be in front, before anything is loaded."""
        total, name = cuts.layers, self._device.device_name
        least = self._without_kernels(nodes, cuts, tell)
        if any(node.op == "given" for node in nodes):  # a drafter is where the whole of its model is
            return cuts.at_least(max(least, self.layers_in_front))
        if self._wanted == AUTO:
            front = cuts.at_least(least)
            free = self._device.free_memory()
            while front < total and self._memory(nodes, cuts, front, layers, states) > free:
                front = cuts.at_least(front + 1)
            if front > least:
                tell(f"{name} has {free / 2**30:.1f} GiB of memory: {_said(total - front, total, name)}")
            return front
        asked = 0 if self._wanted == ALL else max(0, total - self._wanted)
        front = cuts.at_least(max(least, asked))
        if front > max(least, asked):
            tell(
                f"this model can't be divided before its layer {max(least, asked)}: {_said(total - front, total, name)}"
            )
        return front

    def _without_kernels(self, nodes: Sequence[Node], cuts: Cuts, tell: Tell) -> int:
        """How many layers must stay in front because the device has no kernel for something in them."""
        lacking = [(i, what) for i, node in enumerate(nodes) if (what := self._device.lacks(node))]
        if not lacking:
            return 0
        front, missing = cuts.layers_before(lacking[-1][0]), ", ".join(dict.fromkeys(what for _, what in lacking))
        device, name = self._device.device_class, self._device.device_name
        tell(f"there are no kernels for {missing} on {device} devices: {_said(cuts.layers - front, cuts.layers, name)}")
        return front

    def _memory(
        self, nodes: Sequence[Node], cuts: Cuts, front: int, layers: Sequence[Attention], states: Sequence[State]
    ) -> int:
        if front:
            cut = cuts.cuts[front]
            layers, states = kept_behind(nodes, cut, layers, states)
            nodes = nodes[cut.at :]
        return self._device.needed_memory(nodes, layers, states, self._context)

    def _on_cpu(self) -> Backend:
        """Opened only where something runs on it: a processor may be unable to, or have no kernels compiled yet."""
        if self._cpu is None:
            self._cpu = self._open_cpu()
        return self._cpu

    def _is_named(self, front: int, total: int) -> None:
        """The names that receipts get, with ``front`` of ``total`` layers on the CPU."""
        self.layers_in_front = front
        device = self._device
        cpu = self._on_cpu() if front else device
        self.engine_id, self.device_class, self.device_name = cpu.engine_id, cpu.device_class, cpu.device_name
        self.threads = cpu.threads
        if 0 < front < total:
            # What is kept of a sequence depends on where the cut is, so it is part of what the engine is called.
            self.engine_id += f"+{device.engine_id}@{front}"
            self.device_class = "+".join(dict.fromkeys((cpu.device_class, *device.device_class.split("+"))))
            self.device_name = f"{device.device_name} with {total - front} of {total} layers and {cpu.device_name}"


def _said(layers: int, total: int, device: str) -> str:
    """Where the model runs, with ``layers`` of its layers on the device."""
    if layers == 0:
        return "the model runs on the CPU"
    if layers == total:
        return f"all {total} layers run on {device}"
    return f"the last {layers} of {total} layers run on {device}, the others on the CPU"


def open_backend(name: str, *, gpu_layers: int, threads: int, context: int, **options: Any) -> SplitBackend:
    """The device of this name with the CPU beside it. Raises UsageError."""
    from kinetic.backends import cpu, gpu

    device = cast(Offload, gpu.open_backend(name, threads=threads, context=context, **options))
    return SplitBackend(device, lambda: cast(Backend, cpu.open_backend(threads=threads)), gpu_layers, context)
