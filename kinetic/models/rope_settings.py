"""Rotary positions as a file's metadata gives them, with the ways to stretch them that this build computes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kinetic.backends.base import Rope
from kinetic.backends.rope_tables import Yarn, yarn_magnitude
from kinetic.models.family import refuse, rotary
from kinetic.models.settings import MAX_CONTEXT, Dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def read_rope(
    gguf: Gguf,
    architecture: str,
    d: Dense,
    *,
    interleaved: bool,
    divisors: tuple[float, ...] = (),
    longrope: bool = False,
) -> Rope:
    """The rotation of ``architecture.rope.*``, scaled as the file says: not, linearly, or by YaRN.

    ``longrope``: this family may also say that, and gives as ``divisors`` what it means.
    """
    kind = gguf.get(f"{architecture}.rope.scaling.type", "str", "linear")
    if kind not in ("none", "linear", "yarn") and not (longrope and kind == "longrope"):
        raise refuse("UNSUPPORTED_ROPE", f"rope scaling '{kind}' is not supported by this build")
    factor = 1.0 if kind == "none" else rope_factor(gguf, architecture)
    magnitude = attention_factor(gguf, architecture)
    yarn = None
    if kind == "yarn":
        yarn = Yarn(original_context(gguf, architecture, d))
        _expect_usual_bounds(gguf, architecture)
        magnitude = yarn_magnitude(factor, magnitude)
    return rotary(
        d.rope_base, d.rope_width, d.context_length, interleaved=interleaved,
        divisors=divisors, factor=factor, yarn=yarn, magnitude=magnitude,
    )  # fmt: skip


def plain_rope(d: Dense, *, interleaved: bool) -> Rope:
    """A rotation that nothing stretches, whatever the file says of scaling."""
    return rotary(d.rope_base, d.rope_width, d.context_length, interleaved=interleaved)


def attention_factor(gguf: Gguf, architecture: str) -> float:
    """What cosines and sines are multiplied by, whatever the scaling."""
    key = f"{architecture}.rope.scaling.attn_factor"
    value: float = gguf.get(key, "float", 1.0)
    if not (math.isfinite(value) and value > 0):
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must be a positive number")
    return value


def original_context(gguf: Gguf, architecture: str, d: Dense) -> int:
    """The context that the rotation was first made for."""
    key = f"{architecture}.rope.scaling.original_context_length"
    value: int = gguf.get(key, "int", d.context_length)
    if not 1 <= value <= MAX_CONTEXT:
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must lie between 1 and {MAX_CONTEXT}")
    return value


def _expect_usual_bounds(gguf: Gguf, architecture: str) -> None:
    """llama.cpp takes the usual bounds of YaRN whatever a file says, so others are refused, not guessed at."""
    for name, usual in (("yarn_beta_fast", Yarn.fast_turns), ("yarn_beta_slow", Yarn.slow_turns)):
        key = f"{architecture}.rope.scaling.{name}"
        if (value := gguf.get(key, "float", usual)) != usual:
            raise refuse("UNSUPPORTED_ROPE", f"'{key}' is {value}; this build knows only {usual}")


def linear_rope_factor(gguf: Gguf, architecture: str) -> float:
    """What positions are divided by. Refuses the scalings that this build does not compute."""
    kind = gguf.get(f"{architecture}.rope.scaling.type", "str", "linear")
    if kind not in ("none", "linear"):
        raise refuse("UNSUPPORTED_ROPE", f"rope scaling '{kind}' is not supported by this build")
    factor = rope_factor(gguf, architecture)
    return 1.0 if kind == "none" else factor


def rope_factor(gguf: Gguf, architecture: str) -> float:
    """How many times longer than it was made for a context may be; 1 where the file does not say."""
    factor: float = gguf.get(f"{architecture}.rope.scaling.factor", "float", 0.0)
    factor = factor or gguf.get(f"{architecture}.rope.scale_linear", "float", 0.0) or 1.0
    if not (math.isfinite(factor) and factor > 0):
        raise refuse("BAD_SETTING", f"the rope scaling factor is {factor}; it must be a positive number")
    return factor
