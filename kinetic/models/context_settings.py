"""How long a context may be, and how positions are stretched to it: as a file says, or as was asked for (Gguf.rope)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kinetic.models.family import refuse
from kinetic.models.limits import MAX_CONTEXT

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def trained_context(gguf: Gguf, architecture: str) -> int:
    """The context that the file says the model was made for."""
    key = f"{architecture}.context_length"
    return _in_range(key, gguf.get(key, "int"))


def original_context(gguf: Gguf, architecture: str) -> int:
    """The context that the rotation was first made for, as the file says it."""
    key = f"{architecture}.rope.scaling.original_context_length"
    return _in_range(key, gguf.get(key, "int", trained_context(gguf, architecture)))


def longest_context(gguf: Gguf, architecture: str) -> int:
    """The most tokens of a run: more than the file says only where its positions are asked to be stretched."""
    asked, trained = gguf.rope, trained_context(gguf, architecture)
    if not (asked.rope_scaling or asked.factor or asked.yarn_orig_ctx):
        return trained
    first = asked.yarn_orig_ctx or original_context(gguf, architecture)
    stretched = int(min(first * stretching(gguf, architecture)[1], MAX_CONTEXT))
    return max(trained, stretched)


def rope_base(gguf: Gguf, architecture: str) -> float:
    key = f"{architecture}.rope.freq_base"
    base: float = gguf.rope.rope_freq_base or gguf.get(key, "float", 10000.0)
    if not (math.isfinite(base) and base > 1.0):
        raise refuse("BAD_SETTING", f"'{key}' is {base}; it must be a number above 1")
    return base


def stretching(gguf: Gguf, architecture: str) -> tuple[str, float]:
    """How positions are stretched, and how many times; 1 for the kind 'none'. Asked for, or as the file says."""
    kind = gguf.rope.rope_scaling or gguf.get(f"{architecture}.rope.scaling.type", "str", "linear")
    return kind, 1.0 if kind == "none" else gguf.rope.factor or rope_factor(gguf, architecture)


def rope_factor(gguf: Gguf, architecture: str) -> float:
    """How many times longer than it was made for a context may be; 1 where the file does not say."""
    factor: float = gguf.get(f"{architecture}.rope.scaling.factor", "float", 0.0)
    factor = factor or gguf.get(f"{architecture}.rope.scale_linear", "float", 0.0) or 1.0
    if not (math.isfinite(factor) and factor > 0):
        raise refuse("BAD_SETTING", f"the rope scaling factor is {factor}; it must be a positive number")
    return factor


def _in_range(key: str, value: int) -> int:
    if not 1 <= value <= MAX_CONTEXT:
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must lie between 1 and {MAX_CONTEXT}")
    return value
