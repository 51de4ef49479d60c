"""``hunyuan-dense``: heads normed after they are rotated."""

from __future__ import annotations

from conformance.recipes.model import Model, Sizes
from conformance.recipes.near_llama import near_llama


def mixed() -> Model:
    return near_llama("hunyuan-dense", Sizes(2, 64, 6, 2, 48, 96), 91, head_norms=(48, 48))
