"""Products with weights on a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kinetic.backends.base import ACTIVATIONS, BLOCK, Weight
from kinetic.backends.gpu.device import Kernel, Memory
from kinetic.backends.gpu.launches import LANES, Launches
from kinetic.backends.gpu.source import matmul_source
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import Node
from kinetic.formats import by_type

ROWS_OF_A_GROUP = 8
"""ROWS of kernels/matmul.cu."""

KINDS = (*ACTIVATIONS, "swiglu_oai")
"""Activations as kernels/elementwise.cu counts them."""

SHARED, OWN, HEADS = 0, 1, 2
"""``kind`` of kernels/formats.h."""


class Several(NamedTuple):
    """Which of several matrices a row is a product with: EXPERT and SOURCE of kernels/formats.h."""

    routes: Memory
    used: int
    kind: int


class Products:
    def __init__(self, launches: Launches, weights: DeviceWeights) -> None:
        self._launches, self._weights = launches, weights
        self._device = launches.device
        self._quantised: tuple[Node, int] | None = None

    def begin(self) -> None:
        """Before a pass: rows have other contents."""
        self._quantised = None

    def prepare(self, weight: Weight, several: bool = False) -> None:
        """Copy a weight to the device, and build its kernel."""
        self._weights.matrix(weight)
        self._kernel(weight, several)

    def _kernel(self, weight: Weight, several: bool) -> Kernel:
        return self._device.kernel(matmul_source(by_type(weight.ggml_type, weight.name), several), "matmul")

    def product(
        self, y: Memory, x: Memory, rows: int, weight: Weight, several: Several | None = None, node: Node | None = None
    ) -> None:
        """y [rows, N] of x [., K]. ``node`` is whose rows x are, so that they are quantised once."""
        if rows == 0:
            return
        outputs, width = weight.shape[-2:]
        groups, count = outputs * -(-rows // ROWS_OF_A_GROUP), rows
        more: tuple[Memory | np.generic, ...] = ()
        if several is not None:
            groups, more = outputs * rows, (several.routes, np.int32(several.used), np.int32(several.kind))
            count = rows // several.used if several.kind == SHARED else rows
        is_quantised = by_type(weight.ggml_type, weight.name).QUANTISED
        sides = self._as_blocks(x, count * width, node) if is_quantised else (x,)
        sizes = map(np.int32, (rows, outputs, width // BLOCK if is_quantised else width))
        kernel = self._kernel(weight, several is not None)
        self._device.launch(kernel, groups, LANES, y, *sides, self._weights.matrix(weight), *sizes, *more)

    def _as_blocks(self, x: Memory, elements: int, node: Node | None) -> tuple[Memory, Memory]:
        """Rows as int8 and scales. Products with the same rows follow one another, and share them."""
        q, d = (self._launches.scratch(name, elements * size // BLOCK) for name, size in (("q", BLOCK), ("d", 4)))
        if node is None or self._quantised != (node, elements):
            self._launches.each("quantise", "quantise", elements // BLOCK, q, d, x)
            self._quantised = None if node is None else (node, elements)
        return q, d

    def add_bias(self, y: Memory, rows: int, bias: Weight) -> None:
        width = bias.shape[-1]
        self._launches.each("elementwise", "add_bias", rows * width, y, self._weights.vector(bias), np.int32(width))
