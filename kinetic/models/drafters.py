"""Models that guess for another one from what its layers have seen: 'eagle3' and 'dflash' files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kinetic.models.family import refuse
from kinetic.models.settings import MAX_LAYERS, Dense, read_dense

if TYPE_CHECKING:
    from kinetic.backends.base import Weight, Weights
    from kinetic.gguf import Gguf


def read_drafter(gguf: Gguf, name: str, weights: Weights, target: Weights) -> Dense:
    """Its settings. Raises UnsupportedModel where its tokens or its width are not those it needs."""
    table = shared(weights, target, "token_embd.weight")
    dense = read_dense(gguf, name, vocabulary=table.shape[0])
    tokens = target["token_embd.weight"].shape[0]
    if table.shape[0] != tokens:
        raise refuse("OTHER_VOCABULARY", f"a drafter of {table.shape[0]} tokens can't guess for a model of {tokens}")
    if table.shape[1] != dense.width:
        raise refuse("OTHER_WIDTH", f"the embedding table is {table.shape[1]} wide, and this drafter {dense.width}")
    return dense


def shared(weights: Weights, target: Weights, name: str) -> Weight:
    """A tensor of its own, or the target's; of an output layer that is the embedding table if there is no other."""
    return weights.get(name) or target.get(name) or target["token_embd.weight"]


def target_layers(gguf: Gguf, name: str) -> tuple[int, ...]:
    """The layers whose inputs it reads."""
    key = f"{name}.target_layers"
    listed = gguf.metadata.get(key)
    numbers = [] if listed is None or isinstance(listed, (int, float, str)) else list(listed)
    if not numbers or not all(type(number) is int and 0 <= number < MAX_LAYERS for number in numbers):
        raise refuse("BAD_SETTING", f"'{key}' must be a list of layers of the model that it guesses for")
    if len(set(numbers)) < len(numbers):
        raise refuse("BAD_SETTING", f"'{key}' names a layer twice")
    return tuple(numbers)


def token_ids(weights: Weights, tokens: int) -> tuple[int, ...]:
    """What the tensor 'd2t' says which tokens its logits are of; empty if there is none."""
    weight = weights.get("d2t")
    if weight is None:
        return ()
    if weight.data.nbytes != 8 * weight.shape[0]:
        raise refuse("BAD_TOKENS", "tensor 'd2t' must hold 64-bit integers")
    numbers = np.ascontiguousarray(weight.data).reshape(-1).view("<i8").tolist()
    if not all(0 <= number < tokens for number in numbers):
        raise refuse("BAD_TOKENS", f"tensor 'd2t' names tokens that a vocabulary of {tokens} does not have")
    return tuple(numbers)


def refuse_settings(gguf: Gguf, name: str, known: Mapping[str, object]) -> None:
    """What a file may ask for that this build does not compute. ``known``: what each setting must be where it is."""
    for key, value in known.items():
        if gguf.metadata.get(f"{name}.{key}", value) != value:
            raise refuse("UNSUPPORTED_SETTING", f"'{name}.{key}' asks for what this build does not compute")
