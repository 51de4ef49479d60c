"""The type that each tensor of a file is to have, as llama-quantize b11434 chooses it.

In order: what must stay stays; a type given for embeddings or output; a type given for a name; the mixture's own
choice. Then a type whose blocks don't divide the rows gives way to another, which is called a substitution here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kinetic.errors import UnsupportedModel, UsageError
from kinetic.gguf_types import PLAIN_TYPES
from kinetic.quantize.facts import Facts
from kinetic.quantize.mixture import Mixture
from kinetic.quantize.patterns import Pattern, first
from kinetic.quantize.recipe import Recipe
from kinetic.quantize.tensors import EMBEDDINGS, Kind, kind_of, may_change
from kinetic.quantize.types import BLOCKS

_INSTEAD: Final = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""A type with large blocks -> the one with blocks of 32 that stands in for it."""


class Asked(NamedTuple):
    """A tensor to choose for. ``shape`` is row-major, ``tensor_type`` what it is stored as."""

    name: str
    shape: tuple[int, ...]
    tensor_type: str


class Choice(NamedTuple):
    """``wanted`` differs from ``tensor_type`` where rows of this length can't have it."""

    tensor_type: str
    wanted: str
    may_change: bool


def choose(tensors: Sequence[Asked], recipe: Recipe, facts: Facts, has_importance: bool) -> Iterator[Choice]:
    """One choice for each tensor, in the file's order. Raises UsageError, UnsupportedModel and LimitExceeded."""
    kinds = [kind_of(tensor.name) for tensor in tensors]
    mixture = Mixture(recipe, facts, kinds, has_importance)
    patterns = [(Pattern(pattern), name) for pattern, name in recipe.tensor_types]
    for tensor, kind in zip(tensors, kinds, strict=True):
        yield _choose(tensor, kind, mixture, patterns)


def _choose(tensor: Asked, kind: Kind, mixture: Mixture, patterns: Sequence[tuple[Pattern, str]]) -> Choice:
    recipe, default = mixture.recipe, mixture.default
    is_left = recipe.leave_output and kind == Kind.OUTPUT
    if recipe.copies or is_left or not may_change(tensor.name, tensor.shape, mixture.facts.architecture):
        return Choice(tensor.tensor_type, tensor.tensor_type, False)
    named = first(patterns, tensor.name)
    # A pattern comes before the option, but not for token_embd.
    if recipe.embedding_type and kind == Kind.EMBEDDING and not (named and tensor.name != EMBEDDINGS[0]):
        return _given(tensor, recipe.embedding_type)
    if recipe.output_type and kind == Kind.OUTPUT:
        return _given(tensor, recipe.output_type)
    if default in PLAIN_TYPES:
        return Choice(default, default, True)
    if named or recipe.pure:
        wanted = named or default
        return Choice(fitting(tensor, wanted), wanted, True)
    chosen = mixture.type_of(tensor.name, kind, tensor.shape)
    # For an output the mixture itself gives way where rows don't fit; that is a substitution too.
    wanted = chosen if recipe.output_type or not mixture.is_output(kind) else mixture.wanted_output()
    return Choice(fitting(tensor, chosen), wanted, True)


def _given(tensor: Asked, name: str) -> Choice:
    """A type asked for by an option of its own, for which nothing else may stand in."""
    if tensor.shape[-1] % BLOCKS[name]:
        problem = f"tensor {tensor.name!r} has rows of {tensor.shape[-1]} values, which don't divide into {name}'s"
        raise UsageError(f"{problem} blocks of {BLOCKS[name]}: ask for another type", name="BAD_ROW_LENGTH")
    return Choice(name, name, True)


def fitting(tensor: Asked, wanted: str) -> str:
    """``wanted``, or what stands in for it in rows that don't divide into its blocks. Raises UnsupportedModel."""
    row = tensor.shape[-1]
    if row % BLOCKS[wanted] == 0:
        return wanted
    instead = _INSTEAD.get(wanted, wanted if BLOCKS[wanted] <= 32 else "")
    if not instead:
        problem = f"tensor {tensor.name!r} has rows of {row} values, which don't divide into {wanted}'s blocks of"
        raise UnsupportedModel(f"{problem} {BLOCKS[wanted]}: ask for another type", name="BAD_ROW_LENGTH")
    return instead if row % BLOCKS[instead] == 0 else "F16"
