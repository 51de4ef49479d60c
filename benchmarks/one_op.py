"""One kind of instruction alone, run as the engine runs it: compiled interpreter, tape, worker threads."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from kinetic.backends import open_backend
from kinetic.backends.base import Array, Attention, Forward, Ops, Weight
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.memory import address
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.program import CAPACITY, CpuProgram
from kinetic.backends.cpu.workers import Workers
from kinetic.types import Batch
from tests.support.backends import inputs
from tests.support.blocks import FORMATS, float_weight, normals, random_rows

VARIED = 64
"""Rows that are drawn; large matrices repeat them, since no kernel is faster for it."""


class OneOp:
    """A program of which only chosen instructions run. ``threads`` are the most that ``run`` may be given."""

    def __init__(self, forward: Forward, layers: Sequence[Attention] = (), threads: int = 2) -> None:
        program = open_backend("cpu", threads=threads).load(forward, layers, None)
        assert isinstance(program, CpuProgram)
        self._program = program
        self._whole = self._program._tape.code
        self._code = self._whole
        self._threads = threads

    def __enter__(self) -> OneOp:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._program.close()

    @property
    def kernels(self) -> Kernels:
        return self._program._kernels

    def prepare(self, batch: Batch) -> None:
        """Run what is chosen over ``batch``; ``run`` then repeats it with the same rows."""
        self._program.run(batch)

    def choose(self, *ops: int, most: int | None = None) -> None:
        """Only these operations from here on, and the first ``most`` instructions of them."""
        self._use(self._whole[np.isin(self._whole[:, 0], ops)][:most])

    def leave_out(self, *ops: int) -> None:
        """All but these operations from here on."""
        self._use(self._whole[~np.isin(self._whole[:, 0], ops)])

    def choose_all(self) -> None:
        self._use(self._whole)

    def _use(self, code: NDArray[np.int64]) -> None:
        self._code = np.ascontiguousarray(code)
        if not len(self._code):
            raise LookupError("this program has no such instruction")
        table = self._program._program
        table[tape.CODE], table[tape.LENGTH] = address(self._code), len(self._code)

    def use_threads(self, threads: int) -> None:
        if threads != self._threads:
            self.choose_all()  # workers make room for the tape as it is
            self._program._workers.close()
            self._program._workers = Workers(self.kernels, self._program._program, threads)
            self._threads = threads

    def run(self) -> None:
        self._program._workers.run()


def one_sequence(rows: int, start: int = 0) -> Batch:
    """``rows`` rows of the same sequence, all of them wanted, from position ``start`` on."""
    numbers = tuple(range(rows))
    return Batch(numbers, tuple(start + i for i in numbers), (0,) * rows, numbers)


def matrix(kind: str, rows: int, columns: int) -> Weight:
    """A weight [rows, columns] of format ``kind``."""
    fmt = FORMATS[kind]
    drawn = random_rows(fmt, VARIED, columns, seed=7)
    return Weight("matrix", fmt.TYPE_ID, (rows, columns), np.resize(drawn, (rows, drawn.shape[1])))


def product(weight: Weight) -> Forward:
    """Rows times ``weight``."""
    values = normals(3, CAPACITY, weight.shape[1])
    return lambda ops: ops.linear(inputs(ops, values), weight)


def norm_and_quantise(width: int) -> Forward:
    values, scale = normals(3, CAPACITY, width), float_weight("norm", normals(4, width))
    weight = matrix("Q8_0", VARIED, width)
    return lambda ops: ops.linear(ops.rms_norm(inputs(ops, values), scale, 1e-5), weight)


def attention(layers: Sequence[Attention], width: int = 64) -> Forward:
    """Layers of one shape over the same queries, keys and values, each with a cache of its own."""
    spec = layers[0]
    values = normals(5, CAPACITY, width)
    sizes = {"q": spec.heads, "k": spec.kv_heads, "v": spec.kv_heads}
    weights = [
        float_weight(name, normals(6, n * spec.head_dim, width) * np.float32(0.125)) for name, n in sizes.items()
    ]

    def forward(ops: Ops) -> Array:
        x = inputs(ops, values)
        q, k, v = (ops.linear(x, weight) for weight in weights)
        total = ops.attend(q, k, v, layers[0])
        for layer in layers[1:]:
            total = ops.add(total, ops.attend(q, k, v, layer))
        return ops.outputs(total)

    return forward
