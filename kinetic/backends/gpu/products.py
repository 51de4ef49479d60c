"""Products with weights on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from kinetic.backends.base import ACTIVATIONS, BLOCK, CHUNK, Weight
from kinetic.backends.gpu.device import Kernel, Memory
from kinetic.backends.gpu.launches import LANES, Launches
from kinetic.backends.gpu.packed import TILE, is_packed
from kinetic.backends.gpu.source import matmul_source, packed_source, tile_source
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import Node
from kinetic.formats import Format, by_type

ROWS_OF_A_GROUP = 8
"""ROWS of kernels/matmul.cu and kernels/totals.h."""

FEW_ROWS = 64
"""Up to so many rows are computed in groups of ROWS_OF_A_GROUP, more in tiles. It changes no bit."""

TILE_LANES = 64
"""Lanes of a group of kernels/matmul_tile.cu."""

MOST_LANES = 256
"""Lanes of a group that reads packed weights: TILE for each chunk, rounded up to a power of two, up to these."""

BLOCKS_OF_A_GROUP = LANES // 8
"""Blocks that a group of kernels/quantise.cu makes."""

KINDS = (*ACTIVATIONS, "swiglu_oai")
"""Activations as kernels/elementwise.cu counts them."""

TEXTS: dict[str, Callable[[Format], str]] = {
    "packed": packed_source,
    "tile": tile_source,
    "plain": matmul_source,
    "several": partial(matmul_source, experts=True),
}
"""Sources of kernels."""

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
        self._kernels: dict[tuple[int, str, bool], Kernel] = {}

    def begin(self) -> None:
        """Before a pass: rows have other contents."""
        self._quantised = None

    def prepare(self, weight: Weight, several: bool = False) -> None:
        """Copy a weight to the device, and build its kernels."""
        self._memory(weight, several)
        for rows in (1, FEW_ROWS + 1):
            self._way(weight, rows, several)

    def is_packed(self, weight: Weight, several: bool = False) -> bool:
        return not several and is_packed(by_type(weight.ggml_type, weight.name), weight.shape[-1])

    def _memory(self, weight: Weight, several: bool) -> Memory:
        return self._weights.packed(weight) if self.is_packed(weight, several) else self._weights.matrix(weight)

    def _way(self, weight: Weight, rows: int, several: bool) -> tuple[Kernel, int, int]:
        """The kernel for a product with so many rows, its groups and their lanes."""
        outputs, width = weight.shape[-2:]
        is_here, tiles, row_groups = self.is_packed(weight, several), -(-outputs // TILE), -(-rows // ROWS_OF_A_GROUP)
        if several:
            return self._kernel(weight, "several"), outputs * rows, LANES
        if rows > FEW_ROWS and (is_here or by_type(weight.ggml_type, weight.name).QUANTISED):
            return self._kernel(weight, "packed" if is_here else "tile", True), tiles * -(-rows // TILE), TILE_LANES
        if is_here:
            lanes = min(TILE << (-(-width // CHUNK) - 1).bit_length(), MOST_LANES)
            return self._kernel(weight, "packed"), tiles * row_groups, lanes
        return self._kernel(weight, "plain"), outputs * row_groups, LANES

    def _kernel(self, weight: Weight, text: str, is_tiled: bool = False) -> Kernel:
        key = (weight.ggml_type, text, is_tiled)
        if key not in self._kernels:
            source = TEXTS[text](by_type(weight.ggml_type, weight.name))
            self._kernels[key] = self._device.kernel(source, "matmul_tile" if is_tiled else "matmul")
        return self._kernels[key]

    def product(
        self, y: Memory, x: Memory, rows: int, weight: Weight, several: Several | None = None, node: Node | None = None
    ) -> None:
        """y [rows, N] of x [., K]. ``node`` is whose rows x are, so that they are quantised once."""
        if rows == 0:
            return
        (outputs, width), count = weight.shape[-2:], rows
        more: tuple[Memory | np.generic, ...] = ()
        if several is not None:
            more = several.routes, np.int32(several.used), np.int32(several.kind)
            count = rows // several.used if several.kind == SHARED else rows
        is_quantised = by_type(weight.ggml_type, weight.name).QUANTISED
        sides = self._as_blocks(x, count * width, node) if is_quantised else (x,)
        sizes = map(np.int32, (rows, outputs, width // BLOCK if is_quantised else width))
        kernel, groups, lanes = self._way(weight, rows, several is not None)
        memory = self._memory(weight, several is not None)
        self._device.launch(kernel, groups, lanes, y, *sides, memory, *sizes, *more)

    def _as_blocks(self, x: Memory, elements: int, node: Node | None) -> tuple[Memory, Memory]:
        """Rows as int8, and scales with sums. Products with the same rows follow one another, and share them."""
        blocks = elements // BLOCK
        q, d = (self._launches.scratch(name, blocks * size) for name, size in (("q", BLOCK), ("d", 8)))
        if node is None or self._quantised != (node, elements):
            self._launches.groups("quantise", "quantise", -(-blocks // BLOCKS_OF_A_GROUP), q, d, x, np.int32(blocks))
            self._quantised = None if node is None else (node, elements)
        return q, d

    def add_bias(self, y: Memory, rows: int, bias: Weight) -> None:
        width = bias.shape[-1]
        self._launches.each("elementwise", "add_bias", rows * width, y, self._weights.vector(bias), np.int32(width))
