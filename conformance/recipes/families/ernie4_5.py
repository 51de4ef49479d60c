"""``ernie4_5``: llama, its output matrix the embedding table."""

from __future__ import annotations

from conformance.recipes.model import Model, Sizes
from conformance.recipes.near_llama import near_llama


def mixed() -> Model:
    return near_llama("ernie4_5", Sizes(2, 64, 6, 2, 48, 96), 81)
