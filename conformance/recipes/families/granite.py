"""``granite``: embeddings, scores, what each half adds, and logits are scaled."""

from __future__ import annotations

from conformance.recipes.model import Model, Sizes
from conformance.recipes.near_llama import near_llama

SCALES = {"embedding_scale": 1.3, "residual_scale": 0.8, "attention.scale": 0.2, "logit_scale": 1.5}


def mixed() -> Model:
    return near_llama("granite", Sizes(2, 64, 6, 2, 48, 96), 51, keys=SCALES)
