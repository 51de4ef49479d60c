"""A challenge's seed follows from settings that have an effect, and from no others."""

from __future__ import annotations

import pytest

from receipts.checks import check_record

CHALLENGE = "ab" * 16


@pytest.mark.parametrize(
    "idle",
    [
        {"repeat_last_n": -1},
        {"repeat_last_n": 0, "repeat_penalty": 1.5, "presence_penalty": 0.5},
        {"xtc_threshold": 0.2},
        {"xtc_probability": 0.5, "xtc_threshold": 0.6},
        {"dynatemp_exponent": 2.0},
        {"dry_base": 3.0, "dry_allowed_length": 7, "dry_penalty_last_n": 9, "dry_sequence_breakers": [":"]},
        {"dry_multiplier": 0.8, "dry_base": 0.5},
        {"logit_bias": {2: 0.0}},
    ],
)
def test_settings_of_what_is_off_do_not_move_the_seed(make, idle):
    """Else it could be chosen with them. They are written plain, so the receipt holds."""
    answer = make().generate("x", challenge=CHALLENGE, **idle)
    assert answer.seed == make().generate("x", challenge=CHALLENGE).seed
    check_record(answer.receipt())
