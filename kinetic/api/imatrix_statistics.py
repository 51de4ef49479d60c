"""What an importance matrix says of a model, as llama-imatrix --show-statistics has it.

Of each weight: mean, deviation, skewness and kurtosis of the mean inputs of its columns, how evenly their energy
(mean square) is spread, and how it compares with the same weight one layer before. Of files without sums of values the
mean squares take the place of the mean inputs. Sums are exact, so the figures are the same on every machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kinetic import softmax
from kinetic.api.imatrix_file import Entry, Matrix
from kinetic.lanes import F64

NAN = math.nan
LEAST_SHARE = 1e-10
"""Columns with a smaller share of the energy don't count for its entropy."""


@dataclass(frozen=True)
class Pair:
    """Inputs of a weight beside those of the same weight one layer before: sums over their columns."""

    columns: int
    product: float
    squares: tuple[float, float]
    covariance: float
    variances: tuple[float, float]
    distance: float
    energies: tuple[float, float]


@dataclass(frozen=True)
class Line:
    """The statistics of one weight; NaN where there is nothing to compare with. ``layer`` is -1 outside of layers."""

    layer: int
    name: str
    columns: int
    mean: float
    deviation: float
    skewness: float
    kurtosis: float
    evenness: float
    """Entropy of the energy, in per cent of that of an even spread."""
    energy: float
    pair: Pair | None


@dataclass(frozen=True)
class Compared:
    """How one layer, or weight, compares with the one before. NaN where there is none."""

    gain: float = NAN
    """Ratio of the root mean squares."""
    distance: float = NAN
    cosine: float = NAN
    correlation: float = NAN
    covariance: float = NAN


def lines(matrix: Matrix) -> list[Line]:
    """By layer and name; what is in no layer comes last."""
    before = _earlier(matrix)
    found = [_line(name, entry, before.get(name)) for name, entry in matrix.entries.items() if entry.rows]
    return sorted(found, key=lambda line: (line.layer if line.layer >= 0 else math.inf, line.name))


def _line(name: str, entry: Entry, before: Entry | None) -> Line:
    energies, inputs = (_known(means).tolist() for means in (entry.means(entry.squares), _inputs(entry)))
    n, energy = len(inputs), math.fsum(energies)
    mean = math.fsum(inputs) / n
    m2, m3, m4 = (_moment(inputs, mean, power) for power in (2, 3, 4))
    deviation = math.sqrt(m2)
    return Line(
        layer_of(name),
        *(name, n, mean, deviation),
        skewness=m3 / (m2 * deviation) if deviation > LEAST_SHARE else 0.0,
        kurtosis=m4 / (m2 * m2) - 3 if deviation > LEAST_SHARE else 0.0,
        evenness=_evenness(tuple(energies), energy),
        energy=energy,
        pair=_pair(entry, before) if before is not None else None,
    )


def _inputs(entry: Entry) -> F64:
    """Mean of each column, or its mean square [experts * K]; NaN where there were no rows."""
    return entry.means(entry.squares if entry.sums is None else entry.sums)


def _known(means: F64) -> F64:
    """Those that are not NaN."""
    return means[~np.isnan(means)]


def _moment(values: Sequence[float], mean: float, power: int) -> float:
    return math.fsum(math.prod([value - mean] * power) for value in values) / len(values)


@lru_cache(maxsize=16)
def _evenness(energies: tuple[float, ...], energy: float) -> float:
    """Kept for the weights that share their inputs: exact logarithms take their time."""
    if len(energies) < 2:
        return NAN
    shares = [value / energy for value in energies if energy > 0]
    entropy = -math.fsum(share * softmax.ln(share) for share in shares if share > LEAST_SHARE)
    return 100 * entropy / softmax.ln(float(len(energies)))


def layer_of(name: str) -> int:
    """The number after ``blk.``, of at most 9 digits, or -1."""
    parts = name.split(".")
    number = parts[parts.index("blk") + 1] if "blk" in parts[:-1] else ""
    return int(number) if re.fullmatch("[0-9]{1,9}", number) else -1


def _earlier(matrix: Matrix) -> dict[str, Entry]:
    """By name of a weight: the same one in the nearest layer before that has it, if both are of the same shape."""
    last: dict[str, tuple[int, Entry]] = {}
    found: dict[str, Entry] = {}
    for name in sorted(matrix.entries, key=layer_of):
        layer, entry = layer_of(name), matrix.entries[name]
        if layer < 0:
            continue
        kind = name.replace(f"blk.{layer}", "blk.", 1)
        nearest, before = last.get(kind, (layer, entry))
        if nearest < layer and before.fits(entry):
            found[name] = before
        last[kind] = layer, entry
    return found


def _pair(entry: Entry, before: Entry) -> Pair | None:
    """Of the experts that were asked in both; None where there are none."""
    if entry.sums is None or before.sums is None:
        entry, before = Entry(entry.squares, None, entry.counts), Entry(before.squares, None, before.counts)
    kept = ~np.isnan(entry.means(entry.squares) + before.means(before.squares))
    if not kept.any():
        return None
    x, y = _inputs(entry)[kept], _inputs(before)[kept]
    dx, dy = x - math.fsum(x) / len(x), y - math.fsum(y) / len(y)
    return Pair(
        columns=len(x),
        product=math.fsum(x * y),
        squares=(math.fsum(x * x), math.fsum(y * y)),
        covariance=math.fsum(dx * dy),
        variances=(math.fsum(dx * dx), math.fsum(dy * dy)),
        distance=math.fsum((x - y) * (x - y)),
        energies=(math.fsum(entry.means(entry.squares)[kept]), math.fsum(before.means(before.squares)[kept])),
    )


def compare(pairs: Iterable[Pair | None]) -> Compared:
    """One weight with the one before, or all weights of a layer taken together."""
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return Compared()
    columns = sum(pair.columns for pair in known)
    now, earlier = (math.fsum(pair.energies[side] for pair in known) for side in (0, 1))
    covariance = math.fsum(pair.covariance for pair in known)
    return Compared(
        gain=math.sqrt(now / earlier) if earlier > 0 else NAN,
        distance=math.sqrt(math.fsum(pair.distance for pair in known)),
        cosine=_ratio(math.fsum(pair.product for pair in known), [pair.squares for pair in known]),
        correlation=_ratio(covariance, [pair.variances for pair in known]),
        covariance=covariance / columns,
    )


def _ratio(product: float, squares: Sequence[tuple[float, float]]) -> float:
    """A product over the roots of both squares, from -1 to 1."""
    x, y = (math.fsum(pair[side] for pair in squares) for side in (0, 1))
    if x == 0 or y == 0:
        return NAN if x == y else 0.0
    return max(-1.0, min(1.0, product / (math.sqrt(x) * math.sqrt(y))))


def layers(found: Sequence[Line]) -> Iterator[tuple[int, float, Compared]]:
    """Of each layer its number, the energy of its weights, and how it compares with the one before."""
    for layer in sorted({line.layer for line in found if line.layer >= 0}):
        own = [line for line in found if line.layer == layer]
        yield layer, math.fsum(line.energy for line in own), compare(line.pair for line in own)
