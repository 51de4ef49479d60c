"""Weights on a device: matrices packed or as they lie in the file, vectors decoded to float32."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import Weight
from kinetic.backends.checks import SLICE
from kinetic.backends.control_word import default_rounding
from kinetic.backends.gpu.device import Device, Memory
from kinetic.backends.gpu.packed import TILE, is_packed, pack, packed_bytes
from kinetic.backends.reference.experts import matrix
from kinetic.formats import by_type, check_scales

MOST_THREADS = 8
"""That pack pieces of a matrix beside each other; each takes some 100 MB meanwhile."""


class DeviceWeights:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._matrices: dict[str, Memory] = {}
        self._packed: dict[str, Memory] = {}
        self._vectors: dict[str, Memory] = {}

    def matrix(self, weight: Weight) -> Memory:
        """All rows of a matrix, or of the matrices of several experts, one after another, as they lie in the file.

        Raises UnsupportedModel if a scale is not finite, OutOfMemory.
        """
        if weight.name not in self._matrices:
            self._matrices[weight.name] = self._filled(weight, packs=False)
        return self._matrices[weight.name]

    def packed(self, weight: Weight) -> Memory:
        """A matrix as packed.py says, for which ``is_packed`` holds. Raises as ``matrix``."""
        if weight.name not in self._packed:
            self._packed[weight.name] = self._filled(weight, packs=True)
        return self._packed[weight.name]

    def _filled(self, weight: Weight, packs: bool) -> Memory:
        fmt, row_bytes = by_type(weight.ggml_type, weight.name), weight.data.shape[-1]
        data = weight.data if weight.data.ndim == 2 else np.ascontiguousarray(weight.data).reshape(-1, row_bytes)
        memory = self._device.memory(matrix_bytes(weight, not packs))
        step = -(-max(1, SLICE // row_bytes) // TILE) * TILE
        starts = range(0, len(data), step)

        def laid(first: int) -> tuple[NDArray[np.uint8], int]:
            piece = np.ascontiguousarray(data[first : first + step])
            check_scales(fmt, piece, weight.name)
            with default_rounding():
                return pack(fmt, piece) if packs else piece, piece.nbytes

        at = 0
        with ThreadPoolExecutor(max(1, min(len(starts), os.cpu_count() or 1, MOST_THREADS))) as pool:
            for first, (made, size) in zip(starts, pool.map(laid, starts), strict=True):
                self._device.write(memory, made, at)
                weight.release(first * row_bytes, size)
                at += made.nbytes
        return memory

    # ---- some experts at a time

    def check(self, weight: Weight) -> None:
        """Raises UnsupportedModel if a scale is not finite. The bytes stay in memory: experts are copied from there."""
        fmt, row_bytes = by_type(weight.ggml_type, weight.name), weight.data.shape[-1]
        for number in range(weight.shape[0]):
            rows = matrix(weight, number).data
            step = max(1, SLICE // row_bytes)
            for first in range(0, len(rows), step):
                check_scales(fmt, rows[first : first + step], weight.name)

    def slots(self, weight: Weight, count: int) -> Weight:
        """Room for ``count`` of the matrices of a weight, as a weight whose matrix it is. Raises OutOfMemory."""
        name = f"{weight.name} in slots, {len(self._matrices)}"  # two mixtures never share any
        self._matrices[name] = self._device.memory(weight.data.nbytes // weight.shape[0] * count)
        return weight._replace(name=name, shape=(count, *weight.shape[1:]), data=weight.data[:0])

    def put(self, slots: Weight, slot: int, weight: Weight, number: int) -> None:
        """Copy one of the matrices of a weight, which was checked, into a slot."""
        rows = np.ascontiguousarray(matrix(weight, number).data)
        self._device.write(self._matrices[slots.name], rows, slot * rows.nbytes)

    def vector(self, weight: Weight) -> Memory:
        """All elements as float32."""
        if weight.name not in self._vectors:
            values = by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1)
            self._vectors[weight.name] = self._device.upload(np.ascontiguousarray(values))
        return self._vectors[weight.name]


def matrix_bytes(weight: Weight, several: bool = False) -> int:
    """What a matrix takes on a device; with ``several`` those of experts or of heads, which aren't packed."""
    fmt, width = by_type(weight.ggml_type, weight.name), weight.shape[-1]
    if several or not is_packed(fmt, width):
        return math.prod(weight.shape[:-1]) * (width // fmt.BLOCK) * fmt.BYTES  # exact: integers
    return packed_bytes(fmt, weight.shape[-2], width)
