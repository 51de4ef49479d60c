"""Exact sums kept on the way: the bits of ``math.fsum`` over everything, without going over everything again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinetic.api.kl_divergence import Divergence, Rows
from kinetic.api.means import Estimate, Mean, Total, powered
from kinetic.api.perplexity import Perplexity
from kinetic.softmax import log_sums
from tests.support.blocks import normals


def numbers(count):
    """Of sizes far apart, with both signs."""
    return [float(x) * 2.0 ** (i * 7 % 301 - 150) for i, x in enumerate(normals(4, count))]


def test_sums_are_those_of_fsum():
    found, values = Total(), [1e16, 1.0, -1e16, 1e-300, *numbers(300), 0.0, -0.0, 2.0**53, 0.5, -0.25]
    for end in range(len(values)):
        found.add(values[end : end + 1])
        assert found.value == math.fsum(values[: end + 1])
    assert sum(values[:4]) != math.fsum(values[:4])


@pytest.mark.parametrize("values", [[2.5], [3.0, 3.0, 3.0], numbers(50)])
def test_a_mean_in_parts(values):
    found = Mean()
    for start in range(0, len(values), 7):
        found.add(values[start : start + 7])
    middle = math.fsum(values) / len(values)
    variance = math.fsum(value * value for value in values) / len(values) - middle * middle
    uncertainty = math.sqrt(variance / (len(values) - 1)) if variance > 0 and len(values) > 1 else 0.0
    assert found.estimate == Estimate(middle, uncertainty)


def test_what_was_summed_is_not_read_again():
    a, b = (3 * normals(seed, 300).reshape(6, 50) for seed in (1, 2))
    whole, parted, spent = Divergence(), Divergence(), Divergence()
    whole.add(Rows(a, log_sums(a)), b, log_sums(b), [1, 2, 3, 4, 5, 6])
    for found in (parted, spent):
        found.add(Rows(a[:2], log_sums(a[:2])), b[:2], log_sums(b[:2]), [1, 2])
        if found is spent:
            found.divergences.clear()
            found.changes.clear()
        found.add(Rows(a[2:], log_sums(a[2:])), b[2:], log_sums(b[2:]), [3, 4, 5, 6])
    assert parted.facts() == whole.facts()
    assert len(spent.divergences) == 4
    for name in ("kld", "delta_p", "delta_p_rms", "ln_ratio", "difference", "correlation"):
        assert spent.facts()[name] == whole.facts()[name]


def test_running_perplexity_is_not_reckoned_anew():
    found, values = Perplexity(), np.array(numbers(40)[16:22])
    found.add(values[:2])
    found.losses.clear()
    found.add(values[2:])
    assert found.mean.value == math.fsum(values) / len(values)


def test_beyond_float64_is_infinity():
    assert powered(Estimate(3e6, 1.0)) == (math.inf, math.inf)
