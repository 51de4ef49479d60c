"""Weights on a device, as they lie in the file; vectors are decoded to float32."""

from __future__ import annotations

import numpy as np

from kinetic.backends.base import Weight
from kinetic.backends.checks import SLICE
from kinetic.backends.gpu.device import Device, Memory
from kinetic.formats import by_type, check_scales


class DeviceWeights:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._matrices: dict[str, Memory] = {}
        self._vectors: dict[str, Memory] = {}

    def matrix(self, weight: Weight) -> Memory:
        """All rows of a matrix, or of the matrices of several experts, one after another.

        Raises UnsupportedModel if a scale is not finite, OutOfMemory.
        """
        if weight.name not in self._matrices:
            fmt, row_bytes = by_type(weight.ggml_type, weight.name), weight.data.shape[-1]
            data = weight.data if weight.data.ndim == 2 else np.ascontiguousarray(weight.data).reshape(-1, row_bytes)
            memory = self._device.memory(data.nbytes)
            step = max(1, SLICE // row_bytes)
            for first in range(0, len(data), step):
                piece = np.ascontiguousarray(data[first : first + step])
                check_scales(fmt, piece, weight.name)
                self._device.write(memory, piece, first * row_bytes)
                weight.release(first * row_bytes, piece.nbytes)
            self._matrices[weight.name] = memory
        return self._matrices[weight.name]

    def vector(self, weight: Weight) -> Memory:
        """All elements as float32."""
        if weight.name not in self._vectors:
            values = by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1)
            self._vectors[weight.name] = self._device.upload(np.ascontiguousarray(values))
        return self._vectors[weight.name]
