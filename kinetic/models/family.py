"""What a family hands to the engine, and the checks that every family needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinetic.backends.base import Attention, Forward, Weight, Weights
from kinetic.errors import UnsupportedModel


@dataclass(frozen=True)
class Family:
    """A model ready to run: ``forward`` computes logits, ``attention`` lists the layers that keep keys and values."""

    architecture: str
    vocab_size: int
    context_length: int
    attention: tuple[Attention, ...]
    forward: Forward


def refuse(name: str, message: str) -> UnsupportedModel:
    return UnsupportedModel(message, name=name)


def expect_shapes(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every tensor of ``shapes`` must be there with that row-major shape."""
    for name, shape in shapes.items():
        weight = weights.get(name)
        if weight is None:
            raise refuse("MISSING_TENSOR", f"tensor '{name}' is missing; the file is not a complete model")
        if weight.shape != shape:
            raise refuse(
                "WRONG_SHAPE", f"tensor '{name}' has shape {list(weight.shape)} where this model needs {list(shape)}"
            )


def expect_no_others(weights: Weights, known: set[str]) -> None:
    """A tensor nobody would use means another model than the one described."""
    extra = sorted(set(weights) - known)
    if extra:
        raise refuse("EXTRA_TENSOR", f"tensor '{extra[0]}' has no place in this architecture ({len(extra)} such)")


def optional(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Those of ``shapes`` that the file has."""
    return {name: shape for name, shape in shapes.items() if name in weights}


def vector(weight: Weight) -> tuple[float, ...]:
    """A one-dimensional float tensor as Python floats."""
    from kinetic.formats import by_type

    return tuple(by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1).tolist())
