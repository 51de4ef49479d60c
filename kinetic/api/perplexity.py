"""Perplexity of a model on a text, as llama-perplexity of llama.cpp reckons it.

The tokens are cut into chunks of ``context``; each is read by itself, and its second half is scored: the ln of the
probability that the model gives to each token, given those before it in the chunk. The first token of a chunk
becomes BOS if the model adds one. With a stride the windows overlap, and the last ``stride`` tokens of each are scored.

Every number here is the same for every batch size and number of threads: logits are, ``softmax`` is, and sums
over tokens are exact (``means``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kinetic import softmax
from kinetic.api.means import Estimate, Mean, powered
from kinetic.api.scorer import ROWS, Progress, Scorer
from kinetic.bits import F32
from kinetic.errors import UsageError
from kinetic.lanes import F64

PADDED = 256
"""llama.cpp rounds a context up to a multiple of this, which shows where windows overlap."""


class Cut(NamedTuple):
    """A chunk to read: ``tokens`` as they stand in the text; the last ``scored`` of them are predicted."""

    start: int
    tokens: Sequence[int]
    scored: int


@dataclass(frozen=True)
class Settings:
    """``context`` tokens in a chunk; ``chunks`` at most, -1: all; ``stride`` 0: chunks don't overlap."""

    context: int = 512
    chunks: int = -1
    stride: int = 0
    rows: int = ROWS
    """Most rows computed at once. Any number gives the same result."""


@dataclass
class Perplexity:
    """What was found so far. ``losses`` are -ln p of each scored token, in order."""

    losses: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    """Perplexity after each chunk."""
    _mean: Mean = field(default_factory=Mean, repr=False, compare=False)

    def add(self, losses: F64) -> None:
        values = losses.tolist()
        self.losses += values
        self._mean.add(values)
        self.running.append(self.estimate.value)

    @property
    def mean(self) -> Estimate:
        """Of -ln p."""
        return self._mean.estimate

    @property
    def estimate(self) -> Estimate:
        """Perplexity: e to the mean."""
        return powered(self.mean)


def cuts(tokens: Sequence[int], settings: Settings) -> list[Cut]:
    """The chunks of a text. Raises UsageError if it is too short, or the settings make no sense."""
    context, stride = settings.context, settings.stride
    if context < 4:
        raise UsageError(
            f"a chunk of {context} tokens is too short to score half of it: give -c 4 or more", name="CONTEXT"
        )
    if len(tokens) < 2 * context:
        raise UsageError(
            f"the text has {len(tokens)} tokens, and {2 * context} are needed for chunks of {context}:"
            " give a longer text, or lower -c",
            name="TEXT_TOO_SHORT",
        )
    if stride:
        return _windows(tokens, settings)
    found = [
        Cut(start, tokens[start : start + context], context - 1 - context // 2)
        for start in range(0, len(tokens) - context + 1, context)
    ]
    return found[: None if settings.chunks < 0 else settings.chunks]


def _windows(tokens: Sequence[int], settings: Settings) -> list[Cut]:
    """As llama-perplexity does with -b no more than -c: a window is the chunk and half a stride."""
    stride = settings.stride
    width = -(-(settings.context + stride // 2) // PADDED) * PADDED
    if not 0 < stride < width:
        raise UsageError(f"a stride of {stride} does not fit into windows of {width}: lower it", name="STRIDE")
    if len(tokens) <= width:
        raise UsageError(f"the text has {len(tokens)} tokens, and a window needs {width + 1}", name="TEXT_TOO_SHORT")
    count = -(-(len(tokens) - width) // stride)
    count = count if settings.chunks < 0 else min(count, settings.chunks)
    return [Cut(i * stride, tokens[i * stride : i * stride + width], stride) for i in range(count)]


def score(scorer: Scorer, cut: Cut, rows: int = ROWS, is_whole: bool = True) -> Iterator[tuple[F32, F64, list[int]]]:
    """Logits [n, V], their ``softmax.log_sums`` [n] and the n tokens that follow, pass by pass.

    ``is_whole``: the chunk stands by itself, so that its first token becomes BOS where the model adds one.
    """
    tokens = scorer.chunk(cut.tokens) if is_whole else list(cut.tokens)
    first = len(tokens) - 1 - cut.scored
    done = first + 1
    for logits in scorer.passes(tokens[:-1], first, rows):
        if len(logits):
            yield logits, softmax.log_sums(logits), tokens[done : done + len(logits)]
        done += len(logits)


def losses(logits: F32, sums: F64, following: Sequence[int]) -> F64:
    """-ln p of each following token: float64 [n]."""
    chosen = logits[np.arange(len(logits)), np.array(following, np.int64)]
    return sums - chosen.astype(np.float64)


def measure(
    scorer: Scorer,
    tokens: Sequence[int],
    settings: Settings,
    *,
    on_chunk: Callable[[Cut, Perplexity], None] | None = None,
    on_rows: Callable[[F32, F64], None] | None = None,
    on_progress: Progress | None = None,
) -> Perplexity:
    """The whole text. ``on_rows`` gets logits and log sums as they come, ``on_chunk`` what is known after a chunk."""
    found, wanted = Perplexity(), cuts(tokens, settings)
    for number, cut in enumerate(wanted):
        parts = []
        # With overlapping windows llama-perplexity puts no BOS anywhere but where the text has it.
        for logits, sums, following in score(scorer, cut, settings.rows, is_whole=not settings.stride):
            parts.append(losses(logits, sums, following))
            if on_rows:
                on_rows(logits, sums)
        found.add(np.concatenate(parts))
        if on_chunk:
            on_chunk(cut, found)
        if on_progress:
            on_progress(number + 1, len(wanted))
    return found
