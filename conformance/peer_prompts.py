"""The questions asked of a peer: texts made from our own sentences, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.recipes import numbers

SEED = 200
"""Of the order of sentences; any would do."""

LENGTH = 200
"""Tokens of a question. Each has a few more or fewer, so that neighbours don't march in step."""

SENTENCES = 22
"""Of a text: more than ``LENGTH`` tokens with the tokenizers in use."""

_PARTS = (
    ("The ferry", "A young carpenter", "The old clock", "Her neighbour", "The research station", "A flock of geese",
     "The night train", "My grandmother", "The town library", "A small bakery", "The lighthouse", "The new bridge"),
    ("reached the harbour", "was repaired", "kept a careful record", "told a long story", "waited in the rain",
     "lost its way", "found a letter", "changed its plans", "grew quiet", "made a discovery", "opened its doors"),
    ("before the first snow", "while the others slept", "in the spring of that year", "without a word",
     "for the third time", "because the road was closed", "after a long winter", "near the river", "with some help"),
)  # fmt: skip

ENDINGS = (
    "Explain in a few sentences why this mattered:",
    "The story goes on as follows:",
    "In short, three things can be learned from this:",
    "A list of what happened next:",
)


def text(number: int) -> str:
    """Question ``number``."""
    picked = [numbers.integers(SEED, 10 * number + i, 0, len(part), SENTENCES) for i, part in enumerate(_PARTS)]
    sentences = [" ".join(part[i] for part, i in zip(_PARTS, row, strict=True)) for row in zip(*picked, strict=True)]
    return f"{'. '.join(sentences)}. {ENDINGS[number % len(ENDINGS)]}"


def shortened(tokens: Sequence[int], number: int) -> list[int]:
    """A question of about ``LENGTH`` tokens that still ends as it did: some from the middle are left out."""
    size = LENGTH - 20 + 7 * number % 41
    return [*tokens] if len(tokens) <= size else [*tokens[: size - 12], *tokens[-12:]]


def related(tokens: Sequence[int], other: Sequence[int]) -> list[int]:
    """A question that begins as one does and goes on as another: what a cached prefix comes from."""
    return [*tokens[: len(tokens) // 2], *other[len(other) // 2 :]]
