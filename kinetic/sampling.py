"""From a row of logits to a token: the samplers of ``kinetic-1``, in the order in which they run.

    row -> logit bias -> penalties -> DRY -> top-n-sigma -> candidates -> top-k -> typical -> top-p -> min-p -> XTC
        -> temperature -> draw

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic import rng
from kinetic.backends.control_word import default_rounding
from kinetic.backends.reference.functions import exp32
from kinetic.bits import F32
from kinetic.errors import UsageError
from kinetic.samplers import cuts, dry
from kinetic.samplers.dynamic import dynamic_temperature
from kinetic.types import Sampling

ONE = np.float32(1 << 40)
"""The weight of the best candidate; 262,144 such weights add up to 2^58, which an int64 holds."""

REACH = 28.0
"""weight(x) is 0 below -40 ln 2 = -27.73, so nothing further from the best can ever be drawn."""

MOST_BREAKERS, LONGEST_BREAKER = 64, 40
"""Of DRY, and bytes of each. llama.cpp cuts longer ones off; the bounds also keep the search of a vocabulary short."""

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

    def __init__(
        self, settings: Sampling, completion_index: int, vocab_size: int, breakers: dry.Breakers | None = None
    ) -> None:
        """``breakers``: runs of tokens that stand for ``settings.dry_sequence_breakers`` (kinetic.text.breakers)."""
        self.settings = validate(settings, vocab_size)
        if self.settings.dry_sequence_breakers and breakers is None:
            raise UsageError("the tokens of DRY's sequence breakers are missing", name="NO_BREAKERS")
        self._breakers = dry.Trie.of(breakers or ())
        _require_whole("completion_index", completion_index, 0, 2**32 - 1, "a whole number from 0 to 2^32 - 1")
        self.completion_index = completion_index

    def draw(self, row: F32, history: Sequence[int], candidates: Candidates, exp: Exp = exp32) -> Draw:
        """The token that follows ``history`` (all tokens so far, prompt included), by its logits, row float32 [V].

        Raises NonFinite for a NaN or +inf among the logits, or if no token is left.
        """
        s = self.settings
        with default_rounding():
            row = adjusted(row, history, s, self._breakers)
            if s.temperature == 0:
                ids, values = candidates(row, *self.choice)
                return Draw(int(ids[0]), *_runner_up(ids, values))
            near = cuts.top_n_sigma(row, s.top_n_sigma) if s.top_n_sigma else row
            ids, values = candidates(near, *self.choice)
            kept = survivors(ids, values, s, exp, is_xtc_due=self._is_xtc_due(len(history)))
            bits = rng.random_bits(s.seed, self.completion_index, len(history), rng.DRAW)
            token = pick(*kept, bits)
            if ids.size == 1:  # the second best lies beyond top-k, the reach or top-n-sigma
                ids, values = candidates(row, 2, math.inf)
            return Draw(token, *_runner_up(ids, values))

    @property
    def choice(self) -> tuple[int, float]:
        """(k, floor) that ``draw`` asks ``candidates`` for, unless bias, penalties or a cut make another row."""
        s = self.settings
        return (2, math.inf) if s.temperature == 0 else (s.top_k, _floor(s))

    @property
    def best(self) -> int:
        """How many of the largest logits say all that ``draw`` says; 0: it may need any of them."""
        s = self.settings
        penalises = s.repeat_last_n != 0 and (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) != (1, 0, 0)
        return 2 if s.temperature == 0 and not (s.logit_bias or penalises or s.dry_multiplier) else 0

    def _is_xtc_due(self, position: int) -> bool:
        """With the probability asked for: random bits below it, as an exact share of 2^64."""
        s = self.settings
        if not s.xtc_probability:
            return False
        bits = rng.random_bits(s.seed, self.completion_index, position, rng.XTC)
        return bits < cuts.share(s.xtc_probability, 1 << 64)


def _floor(s: Sampling) -> float:
    """How far from the best a candidate can lie and still be drawn.

    Dynamic temperature counts them all, and after XTC another may be the best.
    """
    return math.inf if s.dynatemp_range or s.xtc_probability else REACH * max(s.temperature, 1.0)


def adjusted(row: F32, history: Sequence[int], s: Sampling, breakers: dry.Trie | None = None) -> F32:
    """``row`` [V] plus the logit bias, then with the penalties and DRY's; the row itself when there is none of them."""
    window = _penalty_window(history, s)
    repeating = _dry_penalties(history, s, breakers or dry.Trie())
    if not s.logit_bias and not window and not repeating:
        return row
    row = row.copy()
    # An overflow does not pass: the candidates op leaves -inf out and refuses +inf and NaN.
    with np.errstate(all="ignore"):
        if s.logit_bias:
            ids, biases = zip(*s.logit_bias, strict=True)
            row[list(ids)] += np.array(biases, np.float32)
        if window:
            _penalise(row, Counter(window), s)
        if repeating:
            row[list(repeating)] -= np.array(list(repeating.values())).astype(np.float32)
    return row


def _dry_penalties(history: Sequence[int], s: Sampling, breakers: dry.Trie) -> dict[int, float]:
    if not s.dry_multiplier:
        return {}
    window = history if s.dry_penalty_last_n == -1 else history[-s.dry_penalty_last_n :]
    return dry.penalties(window, s.dry_multiplier, s.dry_base, s.dry_allowed_length, breakers)


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


def survivors(ids: Ids, values: F32, s: Sampling, exp: Exp = exp32, *, is_xtc_due: bool = False) -> tuple[Ids, Weights]:
    """What the cuts leave of the top-k candidates, best first, and their weights at the temperature."""
    if s.typ_p < 1:
        distance = values - values[0]
        kept = cuts.typical(distance, weights(distance, exp), s.typ_p)
        ids, values = ids[kept], values[kept]
    distance = values - values[0]
    with np.errstate(over="ignore"):  # where nothing bounds a distance
        cooler = distance / np.float32(s.temperature)
    # One call for both sets of weights: on forty candidates the call costs more than the numbers.
    plain, tempered = weights(np.concatenate((distance, cooler)), exp).reshape(2, -1)
    kept = _nucleus(plain, s)
    ids, values = ids[kept], values[kept]
    if is_xtc_due:
        below = cuts.xtc(plain[kept], s.xtc_threshold)
        ids, values = ids[below], values[below]
    if is_xtc_due or s.dynatemp_range:
        return ids, _tempered(values, s, exp)
    return ids, tempered[kept]


def _nucleus(plain: Weights, s: Sampling) -> NDArray[np.bool_]:
    """Which candidates top-p and min-p leave, by their weights."""
    kept = np.ones(plain.size, np.bool_)
    if s.top_p < 1:
        cumulative = plain.cumsum()  # exact: integers
        count = 1 + int(cumulative.searchsorted(cuts.share(s.top_p, int(cumulative[-1]))))
        kept[count:] = False
    if s.min_p > 0:
        kept &= plain >= cuts.share(s.min_p, int(plain[0]))
    return kept


def _tempered(values: F32, s: Sampling, exp: Exp) -> Weights:
    """Weights at the temperature, counted from the best of ``values``."""
    distance, temperature = values - values[0], np.float32(s.temperature)
    if s.dynatemp_range and values.size > 1:
        plain = weights(distance, exp)
        found = dynamic_temperature(distance, plain, s.temperature, s.dynatemp_range, s.dynatemp_exponent)
        temperature = max(found, np.float32(SMALLEST))
    with np.errstate(over="ignore"):
        return weights(distance / temperature, exp)


def weights(x: F32, exp: Exp = exp32) -> Weights:
    """``trunc(exp32(x) * 2^40)``, x float32 [n] at most 0; scaling by a power of two is exact."""
    return (exp(x) * ONE).astype(np.int64)


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
    logit biases are sorted by id, several for one token are added up, and 0 is left out.
    ``top_p`` 0 keeps one candidate, as in llama.cpp, and is written as ``top_k`` 1.
    A ``top_n_sigma`` below 0 becomes 0, and what belongs to a sampler that is off
    becomes what nobody set: so one way of sampling has one form.
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
        typ_p=_float32("typ_p", settings.typ_p),
        top_n_sigma=max(_float32("top_n_sigma", settings.top_n_sigma), 0.0),
        xtc_probability=_float32("xtc_probability", settings.xtc_probability),
        xtc_threshold=_float32("xtc_threshold", settings.xtc_threshold),
        dynatemp_range=_float32("dynatemp_range", settings.dynatemp_range),
        dynatemp_exponent=_float32("dynatemp_exponent", settings.dynatemp_exponent),
        dry_multiplier=_float32("dry_multiplier", settings.dry_multiplier),
        dry_base=_float32("dry_base", settings.dry_base),
        dry_sequence_breakers=_canonical_breakers(settings.dry_sequence_breakers),
        logit_bias=_canonical_bias(settings.logit_bias, vocab_size),
    )
    _require(s.temperature == 0 or s.temperature >= SMALLEST, "temperature", s.temperature, "0 or at least 2^-120")
    _require(0 <= s.top_p <= 1, "top_p", s.top_p, "from 0 to 1 (1 is off)")
    _require(0 <= s.min_p <= 1, "min_p", s.min_p, "from 0 to 1 (0 is off)")
    _require(s.repeat_penalty >= SMALLEST, "repeat_penalty", s.repeat_penalty, "at least 2^-120 (1 is off)")
    _require_whole("top_k", s.top_k, 0, 2**31 - 1, "0 (off) or a number of tokens below 2^31")
    _require_whole("repeat_last_n", s.repeat_last_n, -1, 2**31 - 1, "-1 (all), 0 (off) or a number below 2^31")
    _require_whole("seed", s.seed, 0, 2**64 - 1, "a whole number from 0 to 2^64 - 1")
    _require_later_samplers(s)
    s = replace(s, **_unused(s))
    return s if s.top_p else replace(s, top_k=1, top_p=1.0)


def _require_later_samplers(s: Sampling) -> None:
    _require(0 < s.typ_p <= 1, "typ_p", s.typ_p, "above 0 and at most 1 (1 is off)")
    _require(0 <= s.xtc_probability <= 1, "xtc_probability", s.xtc_probability, "from 0 (off) to 1")
    _require(0 <= s.xtc_threshold <= 1, "xtc_threshold", s.xtc_threshold, "from 0 to 1 (above 0.5 is off)")
    hottest = _round(s.temperature + s.dynatemp_range)
    is_range = s.dynatemp_range >= 0 and bool(hottest < math.inf)
    _require(is_range, "dynatemp_range", s.dynatemp_range, "0 (off) or more, and finite with the temperature added")
    _require(s.dynatemp_exponent >= 0, "dynatemp_exponent", s.dynatemp_exponent, "at least 0")
    _require(s.dry_multiplier >= 0, "dry_multiplier", s.dry_multiplier, "0 (off) or more")
    _require(s.dry_base >= 0, "dry_base", s.dry_base, "at least 0 (below 1 is off)")
    _require_whole("dry_allowed_length", s.dry_allowed_length, 0, 2**31 - 1, "a number of tokens below 2^31")
    _require_whole("dry_penalty_last_n", s.dry_penalty_last_n, -1, 2**31 - 1, "-1 (all), 0 (off) or below 2^31")


def _unused(s: Sampling) -> dict[str, Any]:
    """What belongs to samplers that are off, as it stands in a receipt when nobody set it."""
    plain: dict[str, Any] = {}
    if not s.repeat_last_n or (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) == (1, 0, 0):
        plain |= {"repeat_last_n": 0, "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    if not s.xtc_probability or s.xtc_threshold > 0.5:  # no two candidates can be over it
        plain |= {"xtc_probability": 0.0, "xtc_threshold": float(np.float32(0.1))}
    if not s.dynatemp_range:
        plain |= {"dynatemp_exponent": 1.0}
    if not s.dry_multiplier or s.dry_base < 1 or not s.dry_penalty_last_n:
        plain |= {"dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2}
        plain |= {"dry_penalty_last_n": -1, "dry_sequence_breakers": ()}
    return plain


def _canonical_breakers(breakers: Sequence[str]) -> tuple[str, ...]:
    is_list = not isinstance(breakers, str) and all(isinstance(text, str) for text in breakers)
    _require(is_list, "dry_sequence_breakers", repr(breakers), "a list of texts")
    distinct = tuple(sorted(set(breakers)))
    _require(
        len(distinct) <= MOST_BREAKERS, "dry_sequence_breakers", f"{len(distinct)} texts", f"{MOST_BREAKERS} at most"
    )
    for text in distinct:
        size = len(text.encode("utf-8", "surrogatepass"))
        is_plain = 0 < size <= LONGEST_BREAKER and not any("\ud800" <= c <= "\udfff" for c in text)
        _require(is_plain, "dry_sequence_breakers", repr(text), f"UTF-8 texts of 1 to {LONGEST_BREAKER} bytes each")
    return distinct


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
    return tuple((token, float(bias)) for token, bias in sorted(total.items()) if bias)  # 0 changes nothing


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
