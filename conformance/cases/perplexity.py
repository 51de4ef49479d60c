"""What is measured from logits is as exact as they are: log-probabilities of a text, for each family."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from blake3 import blake3

from conformance.case import Case, Evidence, require
from conformance.setting import Setting, Subject
from kinetic.api.perplexity import Settings, measure
from kinetic.api.scorer import Scorer

PROPERTY = "Perplexity has the same bits for every batch size and number of threads."
OF_MODELS = True

SIZES = (7, 32, 256, 512)
"""Rows at once; more than a chunk has are as many as it has."""
LONGEST = 128
"""Tokens of a chunk."""


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.subjects:
        yield Case(subject.name, partial(_run, setting, subject))


def _run(setting: Setting, subject: Subject) -> Evidence:
    expected = _losses(setting, subject, 1, (1,))[0]
    for threads in (1, 2):
        for size, found in zip(SIZES, _losses(setting, subject, threads, SIZES), strict=True):
            require(found == expected, f"with {size} rows at once and {threads} threads the losses have other bits")
    text = f"-ln p of {len(expected) // 8:,} tokens, with {len(SIZES)} batch sizes and 1 and 2 threads"
    return Evidence(text, blake3(expected).hexdigest())


def _losses(setting: Setting, subject: Subject, threads: int, sizes: tuple[int, ...]) -> list[bytes]:
    """-ln p of each scored token, float64 little-endian, with so many rows at once."""
    context = min(LONGEST, len(subject.tokens) // 2)
    with Scorer(
        subject.path, device=setting.device, threads=threads, pack_cache=False, progress=setting.news
    ) as scorer:
        found = [measure(scorer, subject.tokens, Settings(context, rows=size)) for size in sizes]
    return [np.array(each.losses, "<f8").tobytes() for each in found]
