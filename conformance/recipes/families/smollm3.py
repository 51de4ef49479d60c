"""``smollm3``: no rotation in the fourth of five layers."""

from __future__ import annotations

from conformance.recipes.model import Model, Sizes
from conformance.recipes.near_llama import near_llama


def mixed() -> Model:
    return near_llama("smollm3", Sizes(5, 64, 6, 2, 48, 96), 71)
