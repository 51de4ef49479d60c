"""``olmo2``: norms after both halves, whole rows of queries and keys normed, windows, YaRN where there is none."""

from __future__ import annotations

from conformance.recipes.model import Model, Sizes
from conformance.recipes.near_llama import POST, near_llama

SIZES = Sizes(5, 64, 6, 2, 48, 96)
KEYS = {
    "attention.sliding_window": 64,
    "attention.sliding_window_pattern": 4,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}


def mixed() -> Model:
    return near_llama("olmo2", SIZES, 61, norms=POST, keys=KEYS, head_norms=(6 * 48, 2 * 48))
