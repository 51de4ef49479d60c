"""Which experts of a mixture lie on a device, and where one that does not is best computed. No bit depends on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kinetic.backends.base import Backend, Experts
from kinetic.backends.graph import Node

ALL_LAYERS = 1 << 30
"""More layers than any model has."""

TRIES = 3
"""How often everything is measured that is measured at all; the shortest time counts."""

SEVERAL = 16
"""Rows of the second of two measurements on the CPU: kernels work in tiles of so many."""


@dataclass(frozen=True)
class ExpertOffload:
    """Which experts stay in host memory, and what a device may keep of them."""

    layers: int | None = None
    """Those of the first so many layers; None is every layer, if not all fit into ``cache_bytes``."""
    cache_bytes: int | None = None
    """What these layers' experts may take on the device. None: as many of each layer as a token uses."""
    fills: bool = False
    """They may take what memory is left, which the backend finds out."""
    clock: Callable[[], float] | None = None
    """Tells in seconds what a copy costs, and what the CPU does. Without one every missing expert is copied."""
    host: Callable[[], Backend] | None = None
    """Opens what computes experts beside the device, where there is use for it. None: the CPU backend."""
    progress: Callable[[str], None] | None = None
    """Gets one-line news of that: its kernels may have to be compiled."""


class Costs(NamedTuple):
    """Seconds for each byte of an expert: to copy it, and to compute one row with it on the CPU, and each further."""

    copy: float
    first: float
    more: float

    def on_host(self, rows: int) -> float:
        return self.first + self.more * (rows - 1)


def measured(
    clock: Callable[[], float], size: int, copy: Callable[[int], None] | None, host: Callable[[int, int], None]
) -> Costs:
    """``copy(try)`` copies an expert of ``size`` bytes and waits for it, ``host(try, rows)`` computes with one."""

    def seconds(work: Callable[[int], None]) -> float:
        times = []
        for number in range(TRIES):
            begun = clock()
            work(number)
            times.append(clock() - begun)
        return max(0.0, min(times)) / size

    one, several = seconds(lambda number: host(number, 1)), seconds(lambda number: host(number, SEVERAL))
    return Costs(seconds(copy) if copy else float("inf"), one, max(0.0, several - one) / (SEVERAL - 1))


class ExpertCache:
    """Slots that experts take turns in; the one that was not used for longest makes room."""

    def __init__(self, slots: int, costs: Costs | None = None) -> None:
        self._size, self._costs = slots, costs
        self._slots: dict[int, int] = {}  # by expert, the one used last at the end
        self._free = list(range(slots))[::-1]
        self._spent: dict[int, float] = {}  # on the CPU, since an expert was last on the device

    def plan(self, counts: Mapping[int, int]) -> tuple[list[list[int]], list[int]]:
        """Of the experts wanted, each by so many rows: those for the device, no more at a time than there are slots,
        and those for the CPU.

        An expert is copied when it would have been cheaper to have copied it before: then what both ways cost
        together is never more than twice the cheaper one.
        """
        host = [number for number in counts if number not in self._slots and self._is_for_host(number, counts[number])]
        there = {*host}
        # Those that are there come first: later ones may take their slots.
        rest = sorted((number for number in counts if number not in there), key=lambda n: n not in self._slots)
        groups = [rest[first : first + self._size] for first in range(0, len(rest), max(1, self._size))]
        return groups, host

    def _is_for_host(self, number: int, rows: int) -> bool:
        if self._size == 0:
            return True
        if self._costs is None:
            return False
        spent = self._spent.get(number, 0.0) + self._costs.on_host(rows)
        if spent >= self._costs.copy:
            return False
        self._spent[number] = spent
        return True

    def bring(self, numbers: Sequence[int], copy: Callable[[int, int], None]) -> dict[int, int]:
        """The slots of these experts, no more than there are; ``copy(expert, slot)`` fills a slot.

        A slot holds an expert from when that has been copied whole: what is broken off leaves it empty.
        """
        for number in numbers:
            if number in self._slots:
                self._slots[number] = self._slots.pop(number)
        for number in numbers:
            if number not in self._slots:
                if not self._free:
                    self._free.append(self._slots.pop(next(iter(self._slots))))
                copy(number, self._free[-1])
                self._slots[number] = self._free.pop()
                self._spent.pop(number, None)
        return {number: self._slots[number] for number in numbers}


def expert_bytes(experts: Experts) -> int:
    """Of the matrices of one expert."""
    size = 0
    for weight in experts[:3]:
        size += 0 if weight is None else weight.data.nbytes // weight.shape[0]
    return size


def shares(nodes: Iterable[Node], offload: ExpertOffload) -> dict[Node, int]:
    """By mixture how many of its experts the device has room for at a time; one that has room for all is left out."""
    layers = ALL_LAYERS if offload.layers is None else offload.layers
    off = [node for node in nodes if node.op == "experts" and _layer(node) < layers]
    if offload.cache_bytes is None:
        counts = {node: node.inputs[1].width // 2 for node in off}
    else:
        one_of_each = sum(expert_bytes(node["experts"]) for node in off)  # exact: integers
        counts = dict.fromkeys(off, offload.cache_bytes // max(1, one_of_each))
    return {node: count for node, count in counts.items() if count < node["experts"].up.shape[0]}


def left_out(nodes: Iterable[Node], offload: ExpertOffload) -> int:
    """Bytes of those experts that the device has no room for."""
    size = 0
    for node, count in shares(nodes, offload).items():
        size += (node["experts"].up.shape[0] - count) * expert_bytes(node["experts"])
    return size


def _layer(node: Node) -> int:
    """By the name of the tensor; where that has no number it counts as the first."""
    number = re.search(r"\.(\d+)\.", node["experts"].up.tensor)
    return int(number[1]) if number else 0
