"""Settings that have no effect because what they belong to is off (FORMAT.md, "Settings that are off").

A question that answers a challenge has the plain value in each of them. Otherwise whoever asks could vary them, without
changing any draw, until the challenge gives a seed that they like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from receipts.decimals import parse_decimal_f32
from receipts.schema import PLAIN_SAMPLING, Record, parse_bias, sampling_values

_PENALTIES = ("repeat_penalty", "frequency_penalty", "presence_penalty")

_OFF: tuple[tuple[Callable[[dict[str, Any]], bool], tuple[str, ...]], ...] = (
    (
        lambda s: s["repeat_last_n"] == 0 or [s[name] for name in _PENALTIES] == [1, 0, 0],
        ("repeat_last_n", *_PENALTIES),
    ),
    (
        lambda s: s["xtc_probability"] == 0 or s["xtc_threshold"] > 0.5,  # no two candidates can be over it
        ("xtc_probability", "xtc_threshold"),
    ),
    (lambda s: s["dynatemp_range"] == 0, ("dynatemp_exponent",)),
    (
        lambda s: s["dry_multiplier"] == 0 or s["dry_base"] < 1 or s["dry_penalty_last_n"] == 0,
        ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    ),
    (lambda s: s["mirostat"] == 0, ("mirostat_tau", "mirostat_eta")),
)
"""When a sampler is off, and what belongs to it."""

_PLAIN = sampling_values({"sampling": PLAIN_SAMPLING})


def idle_settings(record: Record) -> list[str]:
    """Paths of what has no effect and is not the plain value, such as ``sampling.dry_base``. The form must hold."""
    return [*_of_samplers(record), *_of_nothing(record)]


def _of_samplers(record: Record) -> Iterator[str]:
    values = sampling_values(record)
    for is_off, names in _OFF:
        if is_off(values):
            yield from (f"sampling.{name}" for name in names if values[name] != _PLAIN[name])


def _of_nothing(record: Record) -> Iterator[str]:
    """Entries that add nothing: a bias of 0, an adapter of scale 0."""
    for at, entry in enumerate(record["sampling"]["logit_bias"]):
        if parse_bias(entry["bias"]) == 0:
            yield f"sampling.logit_bias[{at}]"
    for at, adapter in enumerate(record["adapters"]):
        if parse_decimal_f32(adapter["scale"]) == 0:
            yield f"adapters[{at}]"
