"""The bytes of a plan's tensors, made slice by slice on some threads and given out in the order of the file.

A thread reads rows from the mapped source, makes float32 of them, and quantises. No more than a few slices of
float32 exist at a time, whatever the size of a tensor, and while they are made those before are being written.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.cpu.quantise import Quantisers
from kinetic.bits import F32, bf16_to_f32
from kinetic.errors import NonFinite, UnsupportedModel
from kinetic.formats import RUNNABLE, by_type, check_scales
from kinetic.gguf_types import TYPES, type_name
from kinetic.quantize.plan import FLOATS, Plan, Step

Raw = NDArray[np.uint8]

SLICE = 1 << 18
"""Values that a thread takes at a time, 1 MiB as float32: it stays in a core's own cache."""
AHEAD = 3
"""Slices a thread that may wait for being written."""
MOST_THREADS = 256
"""More would only hold memory."""


_FLOATS_FIRST = {"F64": ("<f8", 1), "Q8_1": ("<f2", 2), "Q8_K": ("<f4", 1)}
"""How blocks begin of types that are only copied: floats of a kind, how many."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``first`` to ``last`` of a step's tensor; ``importance`` is float32 [K] of all of them, or None."""

    step: Step
    raw: Raw
    """uint8 [rows, bytes of a row] in the source."""
    first: int
    importance: F32 | None


class Converter:
    """Makes slices of one plan. ``threads`` of them at a time; their number decides no byte."""

    def __init__(self, plan: Plan, threads: int, news: Callable[[str], None] | None = None) -> None:
        """Compiles kernels that are not yet there, after saying so to ``news``."""
        self.source, self.threads = plan.source, min(threads, MOST_THREADS)
        self.quantisers = Quantisers(plan.kernels, news)

    def pieces(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Raw]]:
        """All bytes of each tensor in turn, in pieces. Raises UnsupportedModel for values that can't be converted."""
        pool = ThreadPoolExecutor(self.threads)
        waiting: deque[tuple[Slice, Future[Raw]]] = deque()
        try:
            for part in (part for step in steps for part in slices(step, self.source.data(step.source.name))):
                waiting.append((part, pool.submit(self.make, part)))
                if len(waiting) > AHEAD * self.threads:
                    yield self._next(waiting)
            while waiting:
                yield self._next(waiting)
        finally:
            pool.shutdown(cancel_futures=True)

    def _next(self, waiting: deque[tuple[Slice, Future[Raw]]]) -> tuple[Step, Raw]:
        part, made = waiting.popleft()
        result = made.result()
        row = part.raw.shape[-1]
        self.source.release(part.step.source.name, part.first * row, part.raw.nbytes)
        return part.step, result

    def make(self, part: Slice) -> Raw:
        """uint8 [bytes]: the rows as they stand in the result."""
        step, raw = part.step, part.raw
        if not step.changes:
            _check_copied(part)
            return raw.reshape(-1)
        values = floats(part)
        chosen = step.choice.tensor_type
        if chosen in FLOATS:
            return _as_float(values, chosen, part)
        try:
            made = self.quantisers.rows(step.type_id, values, part.importance)
            if type_name(step.source.ggml_type) != "F16":  # Of which every scale is finite too.
                check_scales(by_type(step.type_id, step.name), made, step.source.name)
        except (NonFinite, UnsupportedModel):
            raise _too_large(part) from None
        return made.reshape(-1)


def slices(step: Step, data: Raw) -> Iterator[Slice]:
    """A tensor's rows; a slice ends where the next matrix has an importance of its own. ``data`` uint8 [bytes]."""
    shape = step.source.shape
    count = math.prod(shape[:-1])
    rows, each = data.reshape(count, -1), max(1, SLICE // shape[-1])
    if step.importance is None:
        for first in range(0, count, each):
            yield Slice(step, rows[first : first + each], first, None)
        return
    matrices = step.importance.reshape(-1, shape[-1])
    for begin in range(0, count, shape[-2]):
        matrix, end = matrices[begin // shape[-2] % len(matrices)], begin + shape[-2]
        yield from (Slice(step, rows[at : min(at + each, end)], at, matrix) for at in range(begin, end, each))


# -- source values


def floats(part: Slice) -> F32:
    """float32 [n, K]. Raises UnsupportedModel for what is not finite."""
    raw, ggml_type = part.raw, part.step.source.ggml_type
    stored = type_name(ggml_type)
    if stored == "F32":
        values = raw.view("<f4")
    elif stored == "F16":
        values = raw.view("<f2").astype(np.float32)
    elif stored == "BF16":
        values = bf16_to_f32(raw)
    else:
        fmt = by_type(ggml_type, part.step.source.name)
        check_scales(fmt, raw, part.step.source.name)
        values = fmt.decode(raw)
    finite = np.isfinite(values)
    if not finite.all():
        raise _unusable(part, finite, values, "is not finite: the file is damaged, or its training went wrong")
    return values


def _check_copied(part: Slice) -> None:
    """What is no number is refused in tensors that stay as they are too."""
    ggml_type = part.step.source.ggml_type
    stored = type_name(ggml_type)
    if stored in FLOATS:
        floats(part)
    elif ggml_type in RUNNABLE:
        check_scales(by_type(ggml_type, part.step.source.name), part.raw, part.step.source.name)
    elif stored in _FLOATS_FIRST:
        _check_first(part, *_FLOATS_FIRST[stored])


def _check_first(part: Slice, kind: str, count: int) -> None:
    """Of each block only the floats it begins with, since this build has no decoder for the type."""
    _, block, size = TYPES[part.step.source.ggml_type]
    blocks = part.raw.reshape(len(part.raw), -1, size)[:, :, : np.dtype(kind).itemsize * count]
    found = np.ascontiguousarray(blocks).view(kind)
    finite = np.isfinite(found)
    if not finite.all():
        row, column, which = np.argwhere(~finite)[0]
        place = f"tensor {part.step.source.name!r}, row {part.first + row}, column {block * column}"
        problem = f"{place}: {found[row, column, which]} is not finite: the file is damaged, or its training went wrong"
        raise UnsupportedModel(problem, name="UNUSABLE_WEIGHT")


def _as_float(values: F32, chosen: str, part: Slice) -> Raw:
    """float32 [n, K] rounded once, to nearest even -> uint8 [bytes]. Raises UnsupportedModel for what doesn't fit."""
    if chosen == "F32":
        return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    if chosen == "F16":
        with np.errstate(over="ignore"):
            made = values.astype("<f2")
        fits = np.isfinite(made)
        raw = made.reshape(-1).view(np.uint8)
    else:
        bits = values.view(np.uint32)
        upper = ((bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)).astype("<u2")
        fits = (upper & np.uint16(0x7F80)) != np.uint16(0x7F80)
        raw = upper.reshape(-1).view(np.uint8)
    if not fits.all():
        raise _unusable(part, fits, values, f"is too large for {chosen}: use a type with more range, such as F32")
    return raw


def _unusable(part: Slice, good: NDArray[np.bool_], values: F32, problem: str) -> UnsupportedModel:
    row, column = np.argwhere(~good)[0]
    what = f"tensor {part.step.source.name!r}, row {part.first + row}, column {column}: {values[row, column]}"
    return UnsupportedModel(f"{what} {problem}", name="UNUSABLE_WEIGHT")


def _too_large(part: Slice) -> UnsupportedModel:
    """What is too large may be a weight, or what weighs it."""
    where = f"tensor {part.step.source.name!r} has values in rows {part.first} to {part.first + len(part.raw) - 1}"
    chosen = part.step.choice.tensor_type
    if part.importance is None:
        problem = f"{where} that are too large for {chosen}: use a type with more range, such as BF16"
    else:
        problem = (
            f"{where}, or an importance, that are too large for {chosen}: look at the matrix with"
            " `kinetic imatrix --show-statistics`, or use a type with more range, such as BF16"
        )
    return UnsupportedModel(problem, name="UNUSABLE_WEIGHT")
