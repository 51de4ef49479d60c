"""``lfm2``: short convolutions of three taps in three layers of five, attention in the others."""

from __future__ import annotations

from conformance.recipes.model import Model, Sizes
from conformance.recipes.near_llama import MIXED
from conformance.recipes.short_conv import convolved

SIZES = Sizes(5, 64, 4, 2, 32, 96)


def mixed() -> Model:
    return convolved("lfm2", SIZES, (0, 0, 1, 0, 1), 121, MIXED)
