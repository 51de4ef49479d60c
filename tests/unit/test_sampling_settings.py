"""Which settings are refused, which are accepted, and their one canonical form."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from kinetic.backends.reference.candidates import candidates
from kinetic.errors import UsageError
from kinetic.sampling import Sampler, validate
from kinetic.types import Sampling


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", v) for v in (math.nan, math.inf, -math.inf, 2.0**-121, 1e-45, 1e39, 10**400)],
        *[("top_k", v) for v in (-1, 2**31, 1.5)],
        *[("top_p", v) for v in (-0.01, 1.01, math.nan, math.inf)],
        *[("min_p", v) for v in (-0.01, 1.01, math.nan, math.inf)],
        *[("repeat_last_n", v) for v in (-2, 2**31, 0.5)],
        *[("repeat_penalty", v) for v in (0.0, -1.0, 1e-50, math.nan, math.inf)],
        *[("frequency_penalty", v) for v in (math.nan, math.inf, -math.inf, 1e39)],
        *[("presence_penalty", v) for v in (math.nan, math.inf, -math.inf, 1e39)],
        *[("seed", v) for v in (-1, 2**64, 0.0)],
        *[("typ_p", v) for v in (0.0, -0.1, 1.01, 1e-50, math.nan)],
        *[("top_n_sigma", v) for v in (math.nan, math.inf)],
        *[("xtc_probability", v) for v in (-0.1, 1.1, math.nan)],
        *[("xtc_threshold", v) for v in (-0.1, 1.1, math.nan)],
        *[("dynatemp_range", v) for v in (-0.1, math.inf, math.nan)],
        *[("dynatemp_exponent", v) for v in (-0.1, math.inf, math.nan)],
        *[("dry_multiplier", v) for v in (-0.1, math.inf, math.nan)],
        *[("dry_base", v) for v in (-0.1, math.inf, math.nan)],
        *[("dry_allowed_length", v) for v in (-1, 2**31, 1.5)],
        *[("dry_penalty_last_n", v) for v in (-2, 2**31, 1.5)],
        *[("dry_sequence_breakers", v) for v in ("abc", (1,), ("",), ("x" * 41,), ("\u20ac" * 14,), ("\ud800",))],
        ("dry_sequence_breakers", tuple(map(str, range(65)))),
        *[("logit_bias", ((1, v),)) for v in (math.nan, math.inf, 1e39)],
        ("logit_bias", ((1, 3e38), (1, 3e38))),
        ("logit_bias", tuple((i, -math.inf) for i in range(10))),
    ],
)
def test_senseless_settings_are_refused(field, value):
    with pytest.raises(UsageError, match=f"^{field} is .*, but must be ") as caught:
        validate(replace(Sampling(), **{field: value}), 10)
    assert caught.value.name == f"BAD_{field.upper()}"


@pytest.mark.parametrize("token", [-1, 10, 1.0])
def test_a_bias_is_for_a_token_of_the_vocabulary(token):
    with pytest.raises(UsageError, match=r"^token .* is not in the vocabulary of 10$") as caught:
        validate(replace(Sampling(), logit_bias=((token, 1.0),)), 10)
    assert caught.value.name == "BAD_LOGIT_BIAS"


@pytest.mark.parametrize("index", [-1, 2**32, 0.5])
def test_a_senseless_completion_index_is_refused(index):
    with pytest.raises(UsageError, match=r"^completion_index"):
        Sampler(Sampling(), index, 10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("temperature", v) for v in (0, 2.0**-120, 3e38)],
        *[("top_k", v) for v in (0, 1, 2**31 - 1)],
        *[("top_p", v) for v in (0, 1)],
        *[("min_p", v) for v in (0, 1)],
        *[("repeat_last_n", v) for v in (-1, 0, 2**31 - 1)],
        *[("seed", v) for v in (0, 2**64 - 1)],
        *[("typ_p", v) for v in (1e-45, 1)],
        *[("top_n_sigma", v) for v in (-1, 1e-45, 3e38)],
        *[("xtc_probability", v) for v in (0, 1)],
        *[("dynatemp_range", v) for v in (0, 1e-45, 3e38)],
        *[("dynatemp_exponent", v) for v in (0, 3e38)],
        ("logit_bias", ((0, -math.inf), (9, -3e38))),
    ],
)
def test_extreme_settings_are_accepted(field, value):
    settings = replace(Sampling(), **{field: value})
    row = np.arange(10, dtype=np.float32)
    assert 0 <= Sampler(settings, 0, 10).draw(row, [1], candidates).token < 10


def test_canonical_form():
    settings = Sampling(temperature=-3, frequency_penalty=-0.0, logit_bias=((7, 1.0), (2, -math.inf), (7, 0.1)))
    s = validate(settings, 10)
    assert math.copysign(1, s.temperature) == 1
    assert s.temperature == 0
    assert math.copysign(1, s.frequency_penalty) == 1
    assert s.top_p == float(np.float32(0.95))
    assert s.logit_bias == ((2, -math.inf), (7, float(np.float32(1) + np.float32(0.1))))
    assert validate(s, 10) == s


OFF = {"dry_penalty_last_n": -1, "dry_sequence_breakers": (), "repeat_last_n": 0}
"""What differs from the default where DRY and penalties are off."""


def test_what_is_off_has_one_form():
    expected = validate(Sampling(), 10)
    assert asdict(expected) == asdict(replace(Sampling(), **OFF)) | {
        name: float(np.float32(getattr(Sampling, name))) for name in ("temperature", "top_p", "min_p", "xtc_threshold")
    }
    assert expected == validate(replace(Sampling(), dry_base=3.0, dry_allowed_length=7, xtc_threshold=0.3), 10)
    assert expected == validate(replace(Sampling(), dynatemp_exponent=2.0, top_n_sigma=-1.0), 10)
    assert expected == validate(replace(Sampling(), dry_multiplier=0.8, dry_base=0.9), 10)
    assert expected == validate(replace(Sampling(), dry_multiplier=0.8, dry_penalty_last_n=0), 10)
    assert expected == validate(replace(Sampling(), xtc_probability=0.5, xtc_threshold=0.51), 10)
    assert expected == validate(replace(Sampling(), repeat_last_n=-1), 10)
    assert expected == validate(replace(Sampling(), repeat_last_n=0, repeat_penalty=1.3, presence_penalty=0.5), 10)
    assert expected == validate(replace(Sampling(), logit_bias=((3, 0.0), (4, 1.5), (4, -1.5))), 10)


def test_breakers_are_sorted_and_none_twice():
    s = validate(replace(Sampling(), dry_multiplier=0.8, dry_sequence_breakers=(":", "\n", ":")), 10)
    assert s.dry_sequence_breakers == ("\n", ":")
    assert validate(s, 10) == s


def test_a_range_must_leave_the_temperature_finite():
    with pytest.raises(UsageError, match=r"^dynatemp_range is "):
        validate(replace(Sampling(), temperature=3e38, dynatemp_range=3e38), 10)
