"""Operations with adapters beside the weights they adapt: no family knows of it, and no weight is changed.

What an adapter adds is computed by operations of its own (docs/NUMERICS.md, "Adapters"), so the rows of a batch keep
their bits, and the weights stay as the file has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from kinetic.backends.base import Array, Forward, Ops, Weight, Weights
from kinetic.errors import UnsupportedModel
from kinetic.formats import by_type
from kinetic.layers.fused import part
from kinetic.layers.watched import Changed

TABLE = "token_embd.weight"
"""The embedding table, whose pair has A by token: [V, R]."""


class Pair(NamedTuple):
    """What is added to a tensor [N, K]: ``scale`` times B A, of ``a`` [R, K] and ``b`` [N, R].

    Of the embedding table [V, E] it is A transposed B: ``a`` [V, R], ``b`` [E, R].
    """

    a: Weight
    b: Weight
    scale: float


class Lora(NamedTuple):
    """An adapter of a model. ``name`` is that of its file; ``pairs`` are by the tensors that they adapt."""

    name: str
    pairs: Mapping[str, Pair]


def adapted(forward: Forward, loras: Sequence[Lora], weights: Weights) -> Forward:
    """``forward`` with adapters, in their order. Raises UnsupportedModel where one adapts what no product reads."""
    _require_used(forward, loras)
    return lambda ops: forward(cast(Ops, _Adapted(ops, loras, weights)))


class _Adapted(Changed):
    def __init__(self, ops: Ops, loras: Sequence[Lora], weights: Weights) -> None:
        super().__init__(ops)
        self._loras, self._weights = loras, weights

    def _pairs(self, weight: Weight) -> Iterator[Pair]:
        return (lora.pairs[weight.tensor] for lora in self._loras if weight.tensor in lora.pairs)

    def _plus(self, y: Array, narrow: Array, b: Weight, scale: float) -> Array:
        """``y + scale * (narrow times b transposed)``: two products, a rounded product, a rounded sum."""
        return self._ops.add(y, self._ops.scale(self._ops.linear(narrow, b), scale))

    def embed(self, table: Weight) -> Array:
        y = self._ops.embed(table)
        for pair in self._pairs(table):
            y = self._plus(y, self._ops.embed(pair.a), pair.b, pair.scale)
        return y

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        y = self._ops.linear(x, weight, bias)
        for pair in self._pairs(weight):
            if weight.tensor == TABLE:  # as the output matrix
                y = self._plus(y, self._ops.linear(x, _transposed(pair.b)), pair.a, pair.scale)
            else:
                y = self._plus(y, self._ops.linear(x, pair.a), self._rows(pair.b, weight), pair.scale)
        return y

    def _rows(self, b: Weight, weight: Weight) -> Weight:
        """Of ``b`` [N, R] the rows that belong to ``weight``, which is perhaps part of a tensor [N, K]."""
        if not weight.part_of:
            return b
        whole, rows = self._weights[weight.part_of].data, weight.data
        first, rest = divmod(_address(rows) - _address(whole), whole.strides[0])
        if rest or rows.strides != whole.strides or not 0 <= first <= len(whole) - len(rows):
            raise _unused(b.name, weight.part_of)
        return part(b, f"{b.name}, rows of {weight.name}", first, len(rows))


def _address(data: Any) -> int:
    return int(data.__array_interface__["data"][0])


def _transposed(b: Weight) -> Weight:
    """``b`` [E, R] as float32 [R, E]."""
    values = by_type(b.ggml_type, b.name).decode(b.data).reshape(b.shape)
    data = np.ascontiguousarray(values.T).view(np.uint8)
    return Weight(f"{b.name}, transposed", 0, (b.shape[1], b.shape[0]), data)


class _Uses:
    """Notes which tensors a forward pass multiplies with; whatever else it does is nothing here."""

    def __init__(self) -> None:
        self.adaptable: set[str] = set()

    def embed(self, table: Weight) -> Array:
        self.adaptable.add(table.tensor)

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        self.adaptable.add(weight.tensor)

    def __getattr__(self, name: str) -> Any:
        return lambda *inputs, **settings: None


def _require_used(forward: Forward, loras: Sequence[Lora]) -> None:
    uses = _Uses()
    forward(cast(Ops, uses))
    for lora in loras:
        for tensor in lora.pairs:
            if tensor not in uses.adaptable:
                raise _unused(lora.name, tensor)


def _unused(adapter: str, tensor: str) -> UnsupportedModel:
    message = f"{adapter} adapts the tensor '{tensor}', and this build adapts only what whole rows are multiplied with"
    return UnsupportedModel(f"{message}: use an adapter without it", name="UNSUPPORTED_ADAPTER")
