"""``exaone4``: norms after both halves, heads normed before they are rotated."""

from __future__ import annotations

from conformance.recipes.model import Model, Sizes
from conformance.recipes.near_llama import POST, near_llama


def mixed() -> Model:
    return near_llama("exaone4", Sizes(2, 64, 6, 2, 48, 96), 101, norms=POST, head_norms=(48, 48))
