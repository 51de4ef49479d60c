"""How far a model's probabilities are from those of another: the statistics of llama-perplexity --kl-divergence.

Q is the model that is judged, base the one it is judged by. Uncertainties are standard errors, and those of a
difference take in that both models read the same text. Sums over tokens are exact, so order can't matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinetic import softmax
from kinetic.api.means import Estimate, Mean, Total, powered
from kinetic.api.perplexity import losses
from kinetic.backends.control_word import default_rounding
from kinetic.bits import F32
from kinetic.lanes import F64, LANES, fold
from kinetic.softmax import ROWS, Workspace

NEGLIGIBLE = -16.0
"""What has less than e^-16 in the base is left out by llama.cpp, whose base files hold no less."""

PERCENTS = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1)


class LogProbabilities(Protocol):
    """ln p of each token in some rows."""

    def part(self, rows: slice, columns: slice) -> F64:
        """A fresh array float64 [rows, columns]."""

    def of(self, tokens: Sequence[int]) -> F64:
        """Of one token in each row: [n]."""

    def best(self) -> NDArray[np.int64]:
        """The most probable token of each row: [n]."""


class Rows:
    """Those that rows of logits [n, V] give; ``sums`` are their ``softmax.log_sums``."""

    def __init__(self, logits: F32, sums: F64) -> None:
        self._logits, self._sums = logits, sums

    def part(self, rows: slice, columns: slice) -> F64:
        return self._logits[rows, columns] - self._sums[rows, None]

    def of(self, tokens: Sequence[int]) -> F64:
        return -losses(self._logits, self._sums, tokens)

    def best(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._logits.argmax(axis=1)
        return found


def divergences(base: LogProbabilities, found: LogProbabilities, shape: tuple[int, int], least: float) -> F64:
    """The KL divergence of ``found`` from ``base`` in each of n rows [n, V], in nats: float64 [n].

    sum of p (ln p - ln q) over the tokens whose ln p is above ``least``, p being the base's. The order of the sum
    is that of ``softmax``; equal probabilities give exactly 0.
    """
    work, sums = Workspace(), []
    with default_rounding():
        for first in range(0, shape[0], ROWS):
            rows = slice(first, min(first + ROWS, shape[0]))
            lanes = np.zeros((rows.stop - first, LANES))
            for start in range(0, shape[1], LANES):
                columns = slice(start, start + LANES)
                logs = base.part(rows, columns)
                apart = logs - found.part(rows, columns)
                apart *= logs > least
                apart *= softmax.exp_in_place(logs, work)
                lanes[:, : apart.shape[1]] += apart
            sums.append(fold(lanes))
    return np.concatenate(sums)


@dataclass
class Divergence:
    """What was found of each scored token, in order."""

    losses: list[float] = field(default_factory=list)
    base_losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    """Probability of the token that follows, Q less base."""
    same: int = 0
    """Rows in which both find the same token most probable."""
    loss: Mean = field(default_factory=Mean, repr=False)
    base_loss: Mean = field(default_factory=Mean, repr=False)
    divergence: Mean = field(default_factory=Mean, repr=False)
    change: Mean = field(default_factory=Mean, repr=False)
    _squared_change: Mean = field(default_factory=Mean, repr=False)
    _products: Total = field(default_factory=Total, repr=False)
    """Of both losses of a token."""

    def add(
        self, base: LogProbabilities, logits: F32, sums: F64, following: Sequence[int], least: float = NEGLIGIBLE
    ) -> None:
        found = Rows(logits, sums)
        new, old = found.of(following), base.of(following)
        changes = [softmax.exp(a) - softmax.exp(b) for a, b in zip(new.tolist(), old.tolist(), strict=True)]
        for values, mean, part in (
            (self.losses, self.loss, (-new).tolist()),
            (self.base_losses, self.base_loss, (-old).tolist()),
            (self.divergences, self.divergence, divergences(base, found, logits.shape, least).tolist()),
            (self.changes, self.change, changes),
        ):
            values += part
            mean.add(part)
        self._squared_change.add([change * change for change in changes])
        self._products.add((new * old).tolist())
        self.same += int(np.count_nonzero(found.best() == base.best()))

    @property
    def count(self) -> int:
        return len(self.losses)

    @property
    def log_ratio(self) -> Estimate:
        """Mean ln(PPL(Q) / PPL(base))."""
        new, old = self.loss.estimate, self.base_loss.estimate
        square = new.uncertainty * new.uncertainty + old.uncertainty * old.uncertainty - 2 * self._covariance
        return Estimate(new.value - old.value, math.sqrt(max(square, 0.0)))

    @property
    def correlation(self) -> float:
        """Of ln PPL(Q) and ln PPL(base); 0 where one of them has no spread."""
        spread = self.loss.estimate.uncertainty * self.base_loss.estimate.uncertainty
        return self._covariance / spread if spread else 0.0

    @property
    def difference(self) -> Estimate:
        """Mean PPL(Q) - PPL(base)."""
        new, old = powered(self.loss.estimate), powered(self.base_loss.estimate)
        square = new.uncertainty * new.uncertainty + old.uncertainty * old.uncertainty
        square -= 2 * new.value * old.value * self._covariance
        return Estimate(new.value - old.value, math.sqrt(max(square, 0.0)))

    @property
    def rms_change(self) -> Estimate:
        """Root of the mean square of the changes of probability."""
        squares = self._squared_change.estimate
        root = math.sqrt(squares.value)
        return Estimate(root, 0.5 / root * squares.uncertainty if root else 0.0)

    @property
    def same_top(self) -> Estimate:
        """Share of rows with the same most probable token."""
        share = self.same / self.count
        return Estimate(share, math.sqrt(share * (1 - share) / max(self.count - 1, 1)))

    @property
    def _covariance(self) -> float:
        """Of the means of both losses."""
        if self.count < 2:
            return 0.0
        products = self._products.value / self.count
        return (products - self.loss.estimate.value * self.base_loss.estimate.value) / (self.count - 1)

    def facts(self) -> dict[str, object]:
        """All of it, as JSON has it: an estimate is [value, uncertainty]; probabilities are shares, not per cent."""
        return {
            "tokens": self.count,
            "ppl": powered(self.loss.estimate),
            "ppl_base": powered(self.base_loss.estimate),
            "correlation": self.correlation,
            "ln_ratio": self.log_ratio,
            "ratio": powered(self.log_ratio),
            "difference": self.difference,
            "kld": self.divergence.estimate,
            "kld_percentiles": percentiles(self.divergences),
            "delta_p": self.change.estimate,
            "delta_p_percentiles": percentiles(self.changes),
            "delta_p_rms": self.rms_change,
            "same_top": self.same_top,
        }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """``maximum``, those of PERCENTS and ``minimum``; between two values the line between them counts."""
    ordered = sorted(values)
    found = {"maximum": ordered[-1]}
    for percent in PERCENTS:
        place = percent * (len(ordered) - 1) / 100
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found[f"{percent:g}"] = ordered[low] + (place - low) * (ordered[high] - ordered[low])
    return found | {"minimum": ordered[0]}
