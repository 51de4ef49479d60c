"""How much work a pass is, counted from what is asked and not from what is done: bytes, and operations.

A multiply-add is two operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kinetic.backends.base import BLOCK, Attention, Weight
from kinetic.backends.cpu.functions import RECORD
from kinetic.backends.cpu.layout import GROUP, group_bytes
from kinetic.backends.cpu.memory import round_up
from kinetic.backends.graph import OUTPUT_ROWS, Node
from kinetic.formats import by_type

HALF, SINGLE = 2, 4
"""Bytes of float16 and float32."""


class Product(NamedTuple):
    """A product with a matrix; ``outputs_only``: just the rows whose logits are wanted pass through it."""

    weight: Weight
    outputs_only: bool


def products(nodes: Iterable[Node]) -> list[Product]:
    """All of a forward pass; a weight that is used twice counts twice."""
    return [Product(node["weight"], node.rows == OUTPUT_ROWS) for node in nodes if node.op == "linear"]


def products_of(path: Path) -> list[Product]:
    """All of a model file's forward pass."""
    from kinetic import models
    from kinetic.backends.control_word import default_rounding
    from kinetic.backends.graph import trace
    from kinetic.loader import open_model_file

    with open_model_file(path, check="none") as file, default_rounding():
        family = models.build(file.gguf, file.weights)
        return [product._replace(weight=_shape_only(product.weight)) for product in products(trace(family.forward))]


def _shape_only(weight: Weight) -> Weight:
    """The weight without its bytes, which end with the file."""
    return weight._replace(data=weight.data[:0].copy())


def product_operations(found: Iterable[Product], rows: int, outputs: int) -> int:
    """Twice the weights that each row passes through: ``rows`` rows, of which ``outputs`` reach the logits."""
    return sum(2 * p.weight.shape[0] * p.weight.shape[1] * (outputs if p.outputs_only else rows) for p in found)


def packed_bytes(weight: Weight) -> int:
    """Bytes of a matrix as kernels read it: whole groups of rows, scales and padding among them."""
    rows, width = weight.shape
    return round_up(rows, GROUP) // GROUP * group_bytes(by_type(weight.ggml_type, weight.name), width)


def weight_bytes(found: Iterable[Product]) -> int:
    """Bytes of weights that one token reads, whose logits are wanted."""
    return sum(packed_bytes(product.weight) for product in found)


def attention_operations(spec: Attention, positions: Sequence[int]) -> int:
    """Scores and weighted values of the rows at ``positions``, each of which sees itself and all before it."""
    return 4 * spec.heads * spec.head_dim * sum(_seen(spec, positions))


def attention_bytes(spec: Attention, positions: Sequence[int]) -> int:
    """Bytes of keys and values that some row at ``positions`` sees, each read once."""
    first = min(position + 1 - seen for position, seen in zip(positions, _seen(spec, positions), strict=True))
    return 2 * HALF * spec.kv_heads * spec.head_dim * (max(positions) + 1 - first)


def _seen(spec: Attention, positions: Sequence[int]) -> Iterator[int]:
    for position in positions:
        yield min(position + 1, spec.window or position + 1)


def quantise_bytes(rows: int, width: int) -> int:
    """Bytes that a norm with quantising reads, and writes as records."""
    return rows * (width * SINGLE + width // BLOCK * RECORD)
