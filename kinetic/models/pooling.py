"""How a file says that a text becomes a vector."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.models.family import Embedding, refuse

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

POOLINGS = ("none", "mean", "cls", "last", "rank")
"""By their numbers in GGUF files."""


def read_embedding(gguf: Gguf, architecture: str, family: Embedding) -> Embedding:
    """``family`` with the file's pooling, and the labels of its rank head.

    Raises UnsupportedModel for a pooling or an attention that this build does not compute.
    """
    key = f"{architecture}.pooling_type"
    number = gguf.get(key, "int", 0)
    if not 0 <= number < len(POOLINGS):
        raise refuse("UNSUPPORTED_POOLING", f"'{key}' is {number}, and this build knows 0 to {len(POOLINGS) - 1}")
    causal = f"{architecture}.attention.causal"
    if not family.both_ways and not gguf.get(causal, "bool", True):
        raise refuse("UNSUPPORTED_ATTENTION", f"'{causal}' is false, which this build computes in encoders only")
    return replace(
        family,
        pooling=POOLINGS[number],
        labels=_labels(gguf, architecture),
        rank_pooling=_of_rank(gguf, architecture, family),
    )


def _of_rank(gguf: Gguf, architecture: str, family: Embedding) -> str:
    """Which vector a rank head reads: that of the last row where attention is causal, else the first row's, unless
    the file says that it is the mean."""
    key = f"{architecture}.classifier.pooling_type"
    number = gguf.get(key, "int", 0)
    if POOLINGS[number : number + 1] == ("mean",):
        return "mean"
    return "cls" if family.both_ways else "last"


def _labels(gguf: Gguf, architecture: str) -> tuple[str, ...]:
    labels = gguf.metadata.get(f"{architecture}.classifier.output_labels")
    return () if labels is None or isinstance(labels, (int, float, str)) else tuple(str(label) for label in labels)
