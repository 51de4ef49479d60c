"""Rotary positions as a file's metadata gives them, with the ways to stretch them that this build computes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kinetic.backends.base import Rope
from kinetic.backends.rope_tables import Yarn, yarn_magnitude
from kinetic.models.context_settings import original_context, stretching
from kinetic.models.family import refuse, rotary
from kinetic.models.settings import Dense

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
    """The rotation of ``architecture.rope.*``, scaled as the file says or as was asked for: not, linearly, or by YaRN.

    ``longrope``: this family may also say that, and gives as ``divisors`` what it means.
    """
    gguf.rope_is_read = True
    kind, factor = stretching(gguf, architecture)
    if kind not in ("none", "linear", "yarn") and not (longrope and kind == "longrope"):
        raise refuse("UNSUPPORTED_ROPE", f"rope scaling '{kind}' is not supported by this build")
    yarn = _yarn(gguf, architecture, kind)
    magnitude = attention_factor(gguf, architecture, with_yarn=yarn is not None)
    if yarn is not None:
        magnitude = yarn_magnitude(factor, magnitude)
    return rotary(
        d.rope_base, d.rope_width, d.context_length, interleaved=interleaved,
        divisors=divisors, factor=factor, yarn=yarn, magnitude=magnitude,
    )  # fmt: skip


def plain_rope(d: Dense, *, interleaved: bool, magnitude: float = 1.0) -> Rope:
    """A rotation that nothing stretches, whatever the file says of scaling."""
    return rotary(d.rope_base, d.rope_width, d.context_length, interleaved=interleaved, magnitude=magnitude)


def attention_factor(gguf: Gguf, architecture: str, *, with_yarn: bool = False) -> float:
    """What cosines and sines are multiplied by, whatever the scaling. With YaRN no other can be asked for."""
    key = f"{architecture}.rope.scaling.attn_factor"
    value: float = gguf.get(key, "float", 1.0)
    if not (math.isfinite(value) and value > 0):
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must be a positive number")
    asked = gguf.rope.yarn_attn_factor
    if asked is None:
        return value
    if with_yarn:
        why = "with YaRN that factor follows from the scale, as in llama.cpp"
        raise refuse("UNUSED_ROPE", f"--yarn-attn-factor has no effect here: {why}; it takes --yarn-ext-factor 0")
    return value * asked


def _yarn(gguf: Gguf, architecture: str, kind: str) -> Yarn | None:
    """YaRN as the file says or as was asked for; None without it. Raises UnsupportedModel."""
    asked = gguf.rope
    share = asked.yarn_ext_factor
    if share is None:
        share = 1.0 if kind == "yarn" else 0.0
    if share == 0:
        for name in ("yarn_orig_ctx", "yarn_beta_fast", "yarn_beta_slow"):
            if getattr(asked, name):
                flag = name.replace("_", "-")
                raise refuse("UNUSED_ROPE", f"--{flag} has no effect without YaRN: it takes --rope-scaling yarn")
        return None
    original = asked.yarn_orig_ctx or original_context(gguf, architecture)
    fast = _turns(gguf, architecture, "yarn_beta_fast", Yarn.fast_turns)
    return Yarn(original, fast, _turns(gguf, architecture, "yarn_beta_slow", Yarn.slow_turns), share)


def _turns(gguf: Gguf, architecture: str, name: str, usual: float) -> float:
    """A bound of YaRN. llama.cpp takes the usual one whatever a file says, so others are refused, not guessed at."""
    asked: float | None = getattr(gguf.rope, name)
    if asked is not None:
        return asked
    key = f"{architecture}.rope.scaling.{name}"
    if (value := gguf.get(key, "float", usual)) != usual:
        raise refuse("UNSUPPORTED_ROPE", f"'{key}' is {value}; this build knows only {usual}")
    return usual
