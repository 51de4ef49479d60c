"""Built-in models: nothing is stored of them but how they are made, and digests of what they must give.

    recipe = recipes()["llama-mixed"]
    path = recipe.write(folder)

One of mixed formats for each family (``families``), one more where experts are a choice, and one of each weight
format. ``digests.json`` holds what ``python -m tools.make_conformance_digests`` computed with the reference: any
backend must give the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from conformance.recipes.model import Model, write

DIGESTS = Path(__file__).resolve().parent / "digests.json"

MIXED = "mixed"

EXPERTS = "experts-mixed"
"""The same of a family that may have experts: its model that does."""

PLAIN = "llama"
"""The family of models of one format. Families and formats meet only in operations that the mixed models try."""

LONG, SHORT = 262, 40
"""Rows of logits that are digested: of a mixed model past the end of a chunk of 256 keys, and of the others."""


class Recipe(NamedTuple):
    """How one built-in model is made."""

    family: str
    kind: str
    """A weight format, ``MIXED`` or ``EXPERTS``."""
    make: Callable[[], Model]

    @property
    def name(self) -> str:
        return f"{self.family}-{self.kind.lower()}"

    @property
    def rows(self) -> int:
        return LONG if self.kind in (MIXED, EXPERTS) else SHORT

    def write(self, folder: Path) -> Path:
        """The model's file in ``folder``, made unless it is there."""
        path = folder / f"{self.name}.gguf"
        return path if path.is_file() else write(self.make(), path)


class Expected(NamedTuple):
    """What must come of a recipe, BLAKE3 in hex."""

    file: str
    """Of the GGUF file."""
    logits: str
    """Of the float32 logits [rows, V], little-endian, of the recipe's tokens (``subject.tokens_of``)."""
    greedy: str
    """Of the tokens of a greedy answer, each as four bytes, little-endian. So for the next."""
    drawn: str


@cache
def recipes() -> dict[str, Recipe]:
    """All of them by name."""
    from conformance.recipes.families import FAMILIES
    from kinetic.api.probe import formats

    made = [Recipe(name, MIXED, family.mixed) for name, family in FAMILIES.items()]
    made += [Recipe(name, EXPERTS, family.experts) for name, family in FAMILIES.items() if hasattr(family, "experts")]
    made += [Recipe(PLAIN, kind, partial(FAMILIES[PLAIN].of_format, kind)) for kind in formats()]
    return {recipe.name: recipe for recipe in made}


@cache
def expected() -> dict[str, Expected]:
    """The committed digests by recipe."""
    table = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return {name: Expected(**digests) for name, digests in table["recipes"].items()}


@cache
def committed(part: str) -> dict[str, str]:
    """Other committed digests by name: of "functions", "samplers", "quantised" or "texts", the cases of these names, or
    "vectors", those of embeddings."""
    table: dict[str, str] = json.loads(DIGESTS.read_text(encoding="utf-8"))[part]
    return table
