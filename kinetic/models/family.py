"""What a family hands to the engine, and the checks that every family needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kinetic.backends.base import Attention, Forward, Rope, State, Weights
from kinetic.backends.rope_tables import LARGEST_ANGLE, frequencies
from kinetic.errors import UnsupportedModel
from kinetic.formats import by_type
from kinetic.layers.pooled import Head

UNUSED = (".attn_rot_embd.weight", ".input_scale")
"""Endings of tensors that are never read, whatever their shape and type.

Old converters repeat the rotary frequencies in every layer; llama.cpp ignores them too.
"""


@dataclass(frozen=True)
class NextToken:
    """A layer that predicts one token more, as a small model of its own: logits of the token behind the next one.

    Its row i is token i and the hidden row of token i - 1 (``Program.run(batch, given)`` [T, ``width``], zeros for the
    first). ``trunk`` is the family's forward with its hidden rows tapped as ``deltanet.HIDDEN``; ``forward`` taps
    its own under the same name, which serve for a further token.
    """

    forward: Forward
    attention: tuple[Attention, ...]
    trunk: Forward
    width: int


@dataclass(frozen=True)
class HiddenDrafter:
    """A model that guesses what comes from the hidden rows of another one, whose weights it may share.

    Its rows are tokens with ``width`` numbers beside each (``Ops.given``). What these are made of is the tap
    ``deltanet.HIDDEN`` of the other model, or the inputs of its ``layers`` one after another; ``encode`` makes
    [T, ``width``] of them, if it is there.

    Without a ``block``, a row is token i and what was seen at token i - 1, and gives logits of token i + 1; its own
    tap ``deltanet.HIDDEN`` stands for what will be seen at token i. It is at position i if ``begins_empty``, where row
    0 is given zeros; else at position i - 1.

    With a ``block`` of tokens, a row is either of what was seen at token i, at position i, or belongs to the block that
    comes behind these: the last token, then as many times ``mask``, each of which gives logits of the token in its
    place. Beside it stand zeros and [E] ones; beside a row of what was seen that and [E] zeros.
    """

    architecture: str
    forward: Forward
    attention: tuple[Attention, ...]
    width: int
    context_length: int
    layers: tuple[int, ...] = ()
    encode: Forward | None = None
    begins_empty: bool = False
    ids: tuple[int, ...] = ()  # the other model's tokens, by number of a logit, where it does not have them all
    block: int = 0
    mask: int = 0


@dataclass(frozen=True)
class Embedding:
    """How texts become vectors. ``pooling`` is one of ``pooling.POOLINGS``, as the file says it.

    ``only``: the model gives no logits, and ``Family.forward`` all rows [T, E] that vectors are made of. ``project``
    is applied to pooled vectors, ``rank`` to those of ``rank_pooling`` for scores [n, labels], which ``softmax``
    brings to a sum of 1.
    """

    pooling: str = "none"
    only: bool = False
    both_ways: bool = False
    """Whether rows see those behind them."""
    project: Head | None = None
    rank: Head | None = None
    rank_pooling: str = "last"
    softmax: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """A model ready to run: ``forward`` computes logits, ``attention`` lists the layers that keep keys and values."""

    architecture: str
    vocab_size: int
    context_length: int
    attention: tuple[Attention, ...]
    forward: Forward
    states: tuple[State, ...] = ()
    """What its recurrent layers carry from token to token."""
    next_token: NextToken | None = None
    embedding: Embedding = field(default_factory=Embedding)


def refuse(name: str, message: str) -> UnsupportedModel:
    return UnsupportedModel(message, name=name)


def expect_shapes(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every tensor of ``shapes`` must be there with that row-major shape."""
    for name, shape in shapes.items():
        weight = weights.get(name)
        if weight is None:
            raise refuse("MISSING_TENSOR", f"tensor '{name}' is missing; the file is not a complete model")
        if weight.shape != shape:
            raise refuse(
                "WRONG_SHAPE", f"tensor '{name}' has shape {list(weight.shape)} where this model needs {list(shape)}"
            )


def expect_no_others(weights: Weights, known: set[str]) -> None:
    """A tensor nobody would use means another model than the one described, but for those of ``UNUSED``."""
    extra = sorted(name for name in set(weights) - known if not name.endswith(UNUSED))
    if extra:
        raise refuse("EXTRA_TENSOR", f"tensor '{extra[0]}' has no place in this architecture ({len(extra)} such)")


def optional(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Those of ``shapes`` that the file has."""
    return {name: shape for name, shape in shapes.items() if name in weights}


def rotary(base: float, width: int, context: int, *, interleaved: bool, magnitude: float = 1.0, **scaling: Any) -> Rope:
    """A rotary embedding whose angles stay in the range where they are reduced exactly."""
    if not (math.isfinite(base) and base > 1.0):
        raise refuse("BAD_SETTING", f"the base of the rotary positions is {base}; it must be a number above 1")
    made = Rope(frequencies(base, width, **scaling), interleaved, magnitude)
    if max(made.frequencies) * context > LARGEST_ANGLE:
        raise refuse("UNSUPPORTED_ROPE", f"rotary angles beyond {LARGEST_ANGLE} are not supported by this build")
    return made


def rope_divisors(weights: Weights, name: str = "rope_freqs.weight") -> tuple[float, ...]:
    """What each rotary frequency is divided by, from the tensor ``name``; empty if the file has none."""
    weight = weights.get(name)
    if weight is None:
        return ()
    values = tuple(by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1).tolist())
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise refuse("BAD_ROPE_FACTORS", f"tensor '{weight.name}' holds {value}; factors are positive numbers")
    return values
