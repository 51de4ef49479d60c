"""A text becomes the vector whose digest is committed, whatever texts are beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from conformance.case import F32, Case, Evidence, require, row_digests, together
from conformance.recipes import committed
from conformance.recipes.encoders import ENCODERS
from conformance.recipes.model import write
from conformance.recipes.tokenizers import COMMON
from conformance.setting import Setting, tokens_of
from kinetic.api.embedder import Embedder

PROPERTY = "A text's vector has the same bits on every machine, whatever texts are beside it."
OF_MODELS = False

LENGTHS = (1, 2, 9, 33)
"""Tokens of the texts whose vectors have a committed digest."""

LONG = (65, 257)
"""Of others, where the reference needn't have the patience."""

POOLINGS = ("", "none", "last")
"""The model's own, which is the first row or the mean, and two more."""


def cases(setting: Setting) -> Iterator[Case]:
    for name in ENCODERS:
        yield Case(name, partial(_run, setting, name))


def measure(setting: Setting, name: str, threads: int) -> list[bytes]:
    """Digests of all vectors of the texts of ``LENGTHS``, each alone."""
    found: list[bytes] = []
    for pooling in POOLINGS:
        for vectors in _vectors(setting, name, pooling, threads, [[text] for text in _texts(LENGTHS)]):
            found += row_digests(vectors)
    return found


def digest(setting: Setting, name: str) -> str:
    """What is committed of them."""
    return together(measure(setting, name, 1))


def _run(setting: Setting, name: str) -> Evidence:
    found = measure(setting, name, 1)
    require(together(found) == committed("vectors").get(name), "the vectors are not those committed")
    texts = _texts(LENGTHS + (LONG if setting.device == "cpu" else ()))
    for pooling in POOLINGS:
        alone = _vectors(setting, name, pooling, 1, [[text] for text in texts])
        beside = _vectors(setting, name, pooling, setting.threads, [texts[::-1]])[::-1]
        for text, one, other in zip(texts, alone, beside, strict=True):
            same = np.array_equal(one.view(np.uint32), other.view(np.uint32))
            require(same, f"a text of {len(text)} tokens has another vector beside others")
    return Evidence(f"{len(found)} vectors with the committed digest, the same beside other texts", together(found))


def _texts(lengths: Sequence[int]) -> list[list[int]]:
    return [tokens_of(length, COMMON) for length in lengths]


def _vectors(
    setting: Setting, name: str, pooling: str, threads: int, groups: Sequence[Sequence[Sequence[int]]]
) -> list[F32]:
    """Not normalised, of the texts of each group computed together."""
    with Embedder(_path(setting, name), pooling=pooling, device=setting.device, threads=threads) as embedder:
        return [vectors for group in groups for vectors in embedder.vectors(group, -1)]


def _path(setting: Setting, name: str) -> Path:
    path = setting.folder / f"embeds-{name}.gguf"
    return path if path.is_file() else write(ENCODERS[name](), path)
