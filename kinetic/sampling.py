"""From a row of logits to a token: the samplers of ``kinetic-1``, in the order in which they run.

    row -> logit bias -> penalties -> candidates -> top-k -> top-p -> min-p -> temperature -> draw

A draw is a pure function of the row, the settings, the tokens before it and
the completion index. It depends on no other draw, so a verifier can check all
positions at once, and a draft is right iff it equals the token drawn here.

Float32 steps are single operations in the order written. Probabilities are
integers, so that every sum is exact and no order of adding can matter:

    weight(x) = trunc(exp32(x) * 2^40),  x = logit - largest logit, at most 0

Random bits: ``kinetic.rng``. The prose version is in docs/NUMERICS.md. The
functions below take settings in the canonical form that ``validate`` returns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic import rng
from kinetic.backends.control_word import default_rounding
from kinetic.backends.reference.functions import exp32
from kinetic.bits import F32
from kinetic.errors import UsageError
from kinetic.types import Sampling

RNG = "philox4x32-10"
ORDER = ("logit_bias", "penalties", "top_k", "top_p", "min_p", "temperature")
"""llama.cpp's default order among the samplers that exist here; a receipt names both."""

ONE = np.float32(1 << 40)
"""The weight of the best candidate; 262,144 such weights add up to 2^58, which an int64 holds."""

REACH = 28.0
"""weight(x) is 0 below -40 ln 2 = -27.73, so nothing further from the best can ever be drawn."""

SMALLEST = 2.0**-120
"""A temperature or repeat penalty below it is a slip, not a wish; above it no distance within reach overflows."""

Ids = NDArray[np.int32]
Weights = NDArray[np.int64]
Candidates = Callable[[F32, int, float], tuple[Ids, F32]]
"""``candidates(row, k, floor)`` of a backend; ``backends.reference.candidates`` defines it."""
Exp = Callable[[F32], F32]
"""A backend's own ``exp32``: one-dimensional, bit-equal to the reference's."""


class Draw(NamedTuple):
    """A drawn token; ``runner_up`` is the second best of the row after bias and penalties, ``gap`` how far behind.

    With only one token left to draw from, ``runner_up`` is -1 and ``gap`` is infinite.
    """

    token: int
    runner_up: int
    gap: float


class Sampler:
    """The settings of one completion. Holds nothing that a draw could change."""

    def __init__(self, settings: Sampling, completion_index: int, vocab_size: int) -> None:
        self.settings = validate(settings, vocab_size)
        _require_whole("completion_index", completion_index, 0, 2**32 - 1, "a whole number from 0 to 2^32 - 1")
        self.completion_index = completion_index

    def draw(self, row: F32, history: Sequence[int], candidates: Candidates, exp: Exp = exp32) -> Draw:
        """The token that follows ``history`` (all tokens so far, prompt included), by its logits, row float32 [V].

        Raises NonFinite for a NaN or +inf among the logits, or if no token is left.
        """
        s = self.settings
        with default_rounding():
            row = adjusted(row, history, s)
            if s.temperature == 0:
                ids, values = candidates(row, 2, math.inf)
                return Draw(int(ids[0]), *_runner_up(ids, values))
            ids, values = candidates(row, s.top_k, REACH * max(s.temperature, 1.0))
            bits = rng.random_bits(s.seed, self.completion_index, len(history), rng.DRAW)
            token = pick(*survivors(ids, values, s, exp), bits)
            if ids.size == 1:  # the second best lies beyond top-k or the reach
                ids, values = candidates(row, 2, math.inf)
            return Draw(token, *_runner_up(ids, values))


def adjusted(row: F32, history: Sequence[int], s: Sampling) -> F32:
    """``row`` [V] plus the logit bias, then with the penalties; the row itself when there is neither."""
    window = _penalty_window(history, s)
    if not s.logit_bias and not window:
        return row
    row = row.copy()
    # An overflow does not pass: the candidates op leaves -inf out and refuses +inf and NaN.
    with np.errstate(all="ignore"):
        if s.logit_bias:
            ids, biases = zip(*s.logit_bias, strict=True)
            row[list(ids)] += np.array(biases, np.float32)
        if window:
            _penalise(row, Counter(window), s)
    return row


def _penalty_window(history: Sequence[int], s: Sampling) -> Sequence[int]:
    if s.repeat_last_n == 0 or (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) == (1, 0, 0):
        return ()
    return history if s.repeat_last_n == -1 else history[-s.repeat_last_n :]


def _penalise(row: F32, counts: Counter[int], s: Sampling) -> None:
    """For each token seen, c times: ``l / repeat`` or ``l * repeat``, then ``l - (c * frequency + presence)``."""
    ids = list(counts)
    repeat = np.float32(s.repeat_penalty)
    logits = np.where(row[ids] > 0, row[ids] / repeat, row[ids] * repeat)
    times = np.array(list(counts.values()), np.float32)
    row[ids] = logits - (times * np.float32(s.frequency_penalty) + np.float32(s.presence_penalty))


def survivors(ids: Ids, values: F32, s: Sampling, exp: Exp = exp32) -> tuple[Ids, Weights]:
    """What top-p and min-p leave of the top-k candidates, best first, and their weights at the temperature."""
    distance = values - values[0]
    # One call for both sets of weights: on forty candidates the call costs more than the numbers.
    plain, tempered = weights(np.concatenate((distance, distance / np.float32(s.temperature))), exp).reshape(2, -1)
    if s.top_p < 1:
        cumulative = plain.cumsum()  # exact: integers
        count = 1 + int(cumulative.searchsorted(_share(s.top_p, int(cumulative[-1]))))
        ids, plain, tempered = ids[:count], plain[:count], tempered[:count]
    if s.min_p > 0:
        kept = plain >= _share(s.min_p, int(plain[0]))
        ids, tempered = ids[kept], tempered[kept]
    return ids, tempered


def weights(x: F32, exp: Exp = exp32) -> Weights:
    """``trunc(exp32(x) * 2^40)``, x float32 [n] at most 0; scaling by a power of two is exact."""
    return (exp(x) * ONE).astype(np.int64)


def _share(p: float, total: int) -> int:
    """The smallest integer that is at least ``p * total``, without rounding: a binary32 is a ratio of integers."""
    numerator, denominator = p.as_integer_ratio()
    return -(-numerator * total // denominator)


def pick(ids: Ids, weights: Weights, bits: int) -> int:
    """The first id whose cumulative weight exceeds ``(bits * total) >> 64``; bits is a uniform 64-bit integer."""
    cumulative = weights.cumsum()  # exact: integers
    target = bits * int(cumulative[-1]) >> 64
    return int(ids[cumulative.searchsorted(target, side="right")])


def _runner_up(ids: Ids, values: F32) -> tuple[int, float]:
    if ids.size == 1:
        return -1, math.inf
    return int(ids[1]), float(values[0]) - float(values[1])


def validate(settings: Sampling, vocab_size: int) -> Sampling:
    """The same settings in their one canonical form, or UsageError with the first fault.

    Floats are rounded to binary32 and -0 is 0; a temperature below 0 becomes 0;
    logit biases are sorted by id, and several for one token are added up.
    ``top_p`` 0 keeps one candidate, as in llama.cpp, and is written as ``top_k`` 1.
    """
    with default_rounding():
        return _validated(settings, vocab_size)


def _validated(settings: Sampling, vocab_size: int) -> Sampling:
    s = replace(
        settings,
        temperature=max(_float32("temperature", settings.temperature), 0.0),
        top_p=_float32("top_p", settings.top_p),
        min_p=_float32("min_p", settings.min_p),
        repeat_penalty=_float32("repeat_penalty", settings.repeat_penalty),
        frequency_penalty=_float32("frequency_penalty", settings.frequency_penalty),
        presence_penalty=_float32("presence_penalty", settings.presence_penalty),
        logit_bias=_canonical_bias(settings.logit_bias, vocab_size),
    )
    _require(s.temperature == 0 or s.temperature >= SMALLEST, "temperature", s.temperature, "0 or at least 2^-120")
    _require(0 <= s.top_p <= 1, "top_p", s.top_p, "from 0 to 1 (1 is off)")
    _require(0 <= s.min_p <= 1, "min_p", s.min_p, "from 0 to 1 (0 is off)")
    _require(s.repeat_penalty >= SMALLEST, "repeat_penalty", s.repeat_penalty, "at least 2^-120 (1 is off)")
    _require_whole("top_k", s.top_k, 0, 2**31 - 1, "0 (off) or a number of tokens below 2^31")
    _require_whole("repeat_last_n", s.repeat_last_n, -1, 2**31 - 1, "-1 (all), 0 (off) or a number below 2^31")
    _require_whole("seed", s.seed, 0, 2**64 - 1, "a whole number from 0 to 2^64 - 1")
    return s if s.top_p else replace(s, top_k=1, top_p=1.0)


def _canonical_bias(biases: Sequence[tuple[int, float]], vocab_size: int) -> tuple[tuple[int, float], ...]:
    total: dict[int, np.float32] = {}
    with np.errstate(over="ignore"):
        for token, bias in biases:
            if not (isinstance(token, int) and 0 <= token < vocab_size):
                raise UsageError(
                    f"token {token} of --logit-bias is not in the vocabulary of {vocab_size}", name="BAD_LOGIT_BIAS"
                )
            total[token] = total.get(token, np.float32(0)) + _round(bias)
            _require(bool(total[token] < math.inf), "logit_bias", bias, "a finite 32-bit number or -inf")
    banned = sum(bias == -math.inf for bias in total.values())  # exact: a count
    _require(banned < vocab_size, "logit_bias", "-inf for every token", "finite for one token at least")
    return tuple((token, float(bias)) for token, bias in sorted(total.items()))


def _float32(name: str, value: float) -> float:
    rounded = float(_round(value)) + 0.0  # adding 0 turns -0 into 0
    _require(math.isfinite(rounded), name, value, "a finite 32-bit number")
    return rounded


def _round(value: float) -> np.float32:
    try:
        with np.errstate(over="ignore"):
            return np.float32(float(value))
    except OverflowError:  # an integer beyond every float
        return np.float32(math.inf if value > 0 else -math.inf)


def _require_whole(name: str, value: int, low: int, high: int, expected: str) -> None:
    _require(isinstance(value, int) and low <= value <= high, name, value, expected)


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise UsageError(f"{name} is {value}, but must be {expected}", name=f"BAD_{name.upper()}")
