"""Whether another setting, or another file, changes a model's output by more than an engine is free to round.

Both models read a text of our own, and the mean KL divergence of B's probabilities from A's says how far apart they
are. The measure is A's noise floor: the divergence from A of the same weights, decoded to float32, whose products
take activations as they are, but for one unit in the last place, where A's products round them to 8 bits in
blocks of 32 first. That rounding is a choice of the engine, which the file does not ask for; a change that moves
less than it does can't be told from it. Of a model whose weights are floats only the unit in the last place is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetic import softmax
from kinetic.api import machine
from kinetic.api.kl_divergence import Divergence, Rows
from kinetic.api.means import Estimate
from kinetic.api.scorer import ROWS, Progress, Scorer
from kinetic.backends.base import Weight
from kinetic.backends.control_word import default_rounding
from kinetic.errors import OutOfMemory, UsageError
from kinetic.formats import by_type
from kinetic.layers.watched import nudged

if TYPE_CHECKING:
    from kinetic.backends.base import Weights
    from kinetic.bits import F32

PIECE = 256
"""Tokens read at once by both; fewer where a context is shorter."""

EVERYTHING = -np.inf
"""No token is too improbable to count."""

F32_TYPE = 0
DECODED_BYTES = 8
"""Bytes of memory for each weight of the model that the floor is measured with: as it is decoded, and packed."""


@dataclass(frozen=True)
class Setting:
    """A model, and how it is run. ``threads`` 0 is one per core, ``rows`` the most computed at once."""

    model: str
    device: str = "cpu"
    gpu_layers: int | str = "auto"
    threads: int = 0
    rows: int = ROWS


@dataclass(frozen=True)
class Apart:
    """How far a model's output is from A's: ``kld`` in nats, the largest of a token, share of tokens with the same
    most probable successor."""

    kld: Estimate
    largest: float
    same_top: Estimate


@dataclass(frozen=True)
class Outcome:
    """``floor`` is None where a number was given instead, which is then ``limit``."""

    found: Apart
    floor: Apart | None
    limit: float
    tokens: int

    @property
    def is_inside(self) -> bool:
        return self.found.kld.value <= self.limit

    def facts(self) -> dict[str, Any]:
        return asdict(self) | {"inside": self.is_inside}


def text() -> str:
    """What both read: prose, a list, code, numbers, four languages."""
    return Path(__file__).with_name("check_output.txt").read_text(encoding="utf-8")


def check(
    a: Setting,
    b: Setting,
    *,
    floor: float | None = None,
    news: Callable[[str], None] | None = None,
    pack_cache: bool = True,
    on_progress: Progress | None = None,
) -> Outcome:
    """Compare B with A. ``floor`` is a divergence measured before, in the place of A's own.

    Raises UsageError if the two don't have the same tokens, OutOfMemory if the floor needs more than there is.
    """

    def opened(setting: Setting, **unusual: Any) -> Scorer:
        return Scorer(
            setting.model,
            device=setting.device,
            gpu_layers=setting.gpu_layers,
            threads=setting.threads,
            pack_cache=pack_cache,
            progress=news,
            **unusual,
        )

    with opened(a) as base:
        with opened(b) as other:
            found = _apart(base, a.rows, other, b.rows, on_progress)
        if floor is not None:
            return Outcome(_summary(found), None, floor, found.count)
        with opened(replace(a, rows=ROWS), weights=Decoded, watch=nudged) as free:
            least = _summary(_apart(base, a.rows, free, ROWS, on_progress))
    return Outcome(_summary(found), least, least.kld.value, found.count)


def _summary(found: Divergence) -> Apart:
    return Apart(found.divergence.estimate, max(found.divergences), found.same_top)


def _apart(base: Scorer, base_rows: int, other: Scorer, rows: int, on_progress: Progress | None) -> Divergence:
    tokens = base.encode(text())
    if tokens != other.encode(text()) or base.vocab_size != other.vocab_size:
        raise UsageError("these models have other tokens, so their output can't be compared", name="OTHER_TOKENS")
    piece = min(PIECE, base.context, other.context)
    found = Divergence()
    for start in range(0, len(tokens) - 1, piece - 1):
        part = tokens[start : start + piece]
        logits, new = _logits(base, part, base_rows), _logits(other, part, rows)
        if len(logits):
            known = Rows(logits, softmax.log_sums(logits))
            found.add(known, new, softmax.log_sums(new), part[1:], EVERYTHING)
        if on_progress:
            on_progress(start + len(part), len(tokens))
    return found


def _logits(scorer: Scorer, part: list[int], rows: int) -> F32:
    """Of each token of a piece but the last: float32 [n, V]."""
    return np.concatenate(list(scorer.passes(scorer.chunk(part)[:-1], 0, rows)))


# --- the floor ---


class Decoded(Mapping[str, Weight]):
    """Weights of a file, the quantised matrices as float32. Raises OutOfMemory where that needs more than there is."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._made: dict[str, Weight] = {}
        count = sum(np.prod(weight.shape, dtype=np.int64) for weight in weights.values())  # exact: integers
        free = machine.describe().free
        if free is not None and DECODED_BYTES * count > free:
            raise OutOfMemory(
                f"the noise floor of this model needs {DECODED_BYTES * count / 1e9:.1f} GB and {free / 1e9:.1f} GB are"
                " free: give one that was measured elsewhere with --floor"
            )

    def __getitem__(self, name: str) -> Weight:
        if name not in self._made:
            self._made[name] = _as_floats(self._weights[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _as_floats(weight: Weight) -> Weight:
    fmt = by_type(weight.ggml_type, weight.name)
    if not fmt.QUANTISED:
        return weight
    with default_rounding():
        values = np.ascontiguousarray(fmt.decode(weight.data), "<f4").view(np.uint8)
    weight.release(0, weight.data.nbytes)
    return Weight(weight.name, F32_TYPE, weight.shape, values.reshape(len(weight.data), -1))
