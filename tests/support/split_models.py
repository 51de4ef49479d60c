"""Models shared between the CPU and a toy of a device, which computes as the reference does."""

from __future__ import annotations

from kinetic.backends import open_backend
from kinetic.backends.graph import trace
from kinetic.backends.reference import ReferenceBackend
from kinetic.backends.split import SplitBackend
from kinetic.errors import OutOfMemory
from kinetic.types import Batch
from tests.support.blocks import integers

LENGTH = 26


class OnReference(ReferenceBackend):
    """The reference as a device with ``room`` bytes, that has no kernel for what is ``lacking``."""

    def __init__(self, room: int = 1 << 40, lacking: str = "") -> None:
        super().__init__()
        self.room, self.lacking = room, lacking
        self.loads = 0

    def lacks(self, node) -> str:
        return node.op if node.op == self.lacking else ""

    def free_memory(self) -> int:
        return self.room

    def needed_memory(self, nodes, layers, states, context) -> int:
        return 100 * len(nodes)

    def load(self, forward, *others):
        self.loads += 1
        nodes = trace(forward)
        if 100 * len(nodes) > self.room:
            raise OutOfMemory("the toy has no memory for more")
        program = super().load(forward, *others)
        program.vocab_size = [node for node in nodes if node.op != "tap"][-1].width  # type: ignore[attr-defined]
        return program


def beside_cpu(device, wanted: int) -> SplitBackend:
    return SplitBackend(device, lambda: open_backend("cpu", threads=1), wanted, 64)


def load(backend, family, progress=None):
    return backend.load(family.forward, family.attention, progress, None, family.states)


def rows(tokens, start: int, sequence: int = 0, wanted: bool = True) -> Batch:
    count = len(tokens)
    return Batch(tuple(tokens), tuple(range(start, start + count)), (sequence,) * count, tuple(range(count)) * wanted)


def some_tokens(family, count: int = LENGTH, seed: int = 7) -> list[int]:
    return [int(token) for token in integers(seed, 0, family.vocab_size, count)]
