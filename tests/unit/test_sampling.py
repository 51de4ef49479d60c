"""The samplers: exact boundaries, purity, and what each setting means."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from kinetic import rng
from kinetic.backends.reference.candidates import candidates
from kinetic.errors import NonFinite
from kinetic.sampling import REACH, Draw, Sampler, adjusted, pick, survivors, validate, weights
from kinetic.types import Sampling

GREEDY = Sampling(temperature=0.0)
OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""Every truncation off."""


def f32(*values):
    return np.array(values, np.float32)


def row_of(size, seed=1):
    return (np.random.default_rng(seed).standard_normal(size) * 4).astype(np.float32)


def draw(row, settings, history=(), index=0):
    return Sampler(settings, index, len(row)).draw(row, history, candidates)


def tokens(row, settings, positions=range(40), index=0):
    sampler = Sampler(settings, index, len(row))
    return [sampler.draw(row, [0] * position, candidates).token for position in positions]


def left(row, settings):
    """Ids that survive the truncations, best first."""
    s = validate(settings, len(row))
    return survivors(*candidates(row, s.top_k, math.inf), s)[0].tolist()


# --- weights ---


def test_weight_of_the_best_is_two_to_the_forty():
    assert weights(f32(0.0, -0.0)).tolist() == [1 << 40, 1 << 40]


def test_weights_vanish_within_reach():
    assert weights(f32(-27.72, -27.73, -REACH, -1e30, -math.inf)).tolist() == [1, 0, 0, 0, 0]


def test_weights_follow_exp():
    x = -np.abs(row_of(2000))
    exact = [math.exp(float(d)) * 2**40 for d in x]
    assert all(abs(w - e) <= 1 + e * 2**-22 for w, e in zip(weights(x).tolist(), exact, strict=True))
    assert weights(x).max() <= 1 << 40


# --- greedy ---


def test_greedy_takes_the_lowest_id_of_a_tie():
    assert draw(f32(1, 3, 2, 3, 3), GREEDY) == Draw(1, 3, 0.0)


def test_greedy_holds_minus_zero_equal_to_zero():
    assert draw(f32(-1, -0.0, 0.0), GREEDY) == Draw(1, 2, 0.0)
    assert draw(f32(-1, 0.0, -0.0), GREEDY) == Draw(1, 2, 0.0)


@pytest.mark.parametrize("temperature", [0.0, -0.0, -1.0])
def test_temperature_zero_and_below_is_greedy(temperature):
    """CASES S4: nothing is divided by it."""
    row = row_of(500)
    assert set(tokens(row, Sampling(temperature=temperature, top_k=0))) == {int(row.argmax())}


def test_greedy_sees_bias_and_penalties():
    row = f32(1.0, 3.0, 2.0)
    assert draw(row, replace(GREEDY, logit_bias=((0, 2.5),))).token == 0
    assert draw(row, replace(GREEDY, repeat_penalty=4.0), history=[1]).token == 2


# --- runner-up and gap ---


def test_runner_up_is_the_second_best_after_bias_and_penalties():
    row = f32(5.0, 4.75, 1.0)
    assert draw(row, GREEDY) == Draw(0, 1, 0.25)
    assert draw(row, replace(GREEDY, logit_bias=((2, 3.5),))) == Draw(0, 1, 0.25)
    assert draw(row, replace(GREEDY, logit_bias=((2, 3.875),))) == Draw(0, 2, 0.125)
    assert draw(row, replace(GREEDY, presence_penalty=1.0), history=[0]) == Draw(1, 0, 0.75)


@pytest.mark.parametrize("settings", [OPEN, replace(OPEN, top_k=1), replace(OPEN, top_k=40), Sampling()])
def test_runner_up_is_known_beyond_every_truncation(settings):
    assert draw(f32(-60.0, 40.0, -100.0), settings) == Draw(1, 0, 100.0)


def test_the_last_token_left_has_no_runner_up():
    for settings in (GREEDY, OPEN, Sampling()):
        assert draw(f32(-math.inf, 2.0, -math.inf), settings) == Draw(1, -1, math.inf)


# --- truncations, at their exact boundaries ---


def test_top_k_zero_is_off():
    """CASES S3: elsewhere it meant greedy."""
    assert left(row_of(300), replace(OPEN, top_k=0)) == left(row_of(300), replace(OPEN, top_k=300))
    assert len(set(tokens(np.zeros(300, np.float32), replace(OPEN, top_k=0)))) > 20


def test_top_k_prefers_low_ids_in_a_tie():
    assert left(f32(1, 2, 1, 2, 1), replace(OPEN, top_k=3)) == [1, 3, 0]


def test_top_k_one_is_the_argmax():
    row = row_of(500)
    assert set(tokens(row, Sampling(temperature=2.0, top_k=1))) == {int(row.argmax())}


def test_top_p_compares_exactly():
    row = np.zeros(4, np.float32)
    above_half = float(np.nextafter(np.float32(0.5), np.float32(1)))
    assert left(row, replace(OPEN, top_p=0.5)) == [0, 1]
    assert left(row, replace(OPEN, top_p=above_half)) == [0, 1, 2]


@pytest.mark.parametrize(("top_p", "count"), [(0.0, 1), (1e-30, 1), (1.0, 4)])
def test_top_p_extremes(top_p, count):
    assert len(left(np.zeros(4, np.float32), replace(OPEN, top_p=top_p))) == count


def test_top_p_is_a_share_of_what_top_k_left():
    assert left(np.zeros(100, np.float32), replace(OPEN, top_k=10, top_p=0.5)) == list(range(5))


def test_min_p_compares_exactly():
    row = f32(0.0, -1.0, -2.0)
    share = float(np.float32(weights(f32(-1.0))[0] / 2**40))  # exact: 24 bits times a power of two
    assert Fraction(share) * 2**40 == int(weights(f32(-1.0))[0])
    assert left(row, replace(OPEN, min_p=share)) == [0, 1]
    assert left(row, replace(OPEN, min_p=float(np.nextafter(np.float32(share), np.float32(1))))) == [0]


@pytest.mark.parametrize(("min_p", "count"), [(0.0, 3), (1.0, 2), (1e-30, 2)])
def test_min_p_extremes(min_p, count):
    assert len(left(f32(0.0, 0.0, -40.0), replace(OPEN, min_p=min_p))) == count


def test_truncations_come_before_the_temperature():
    for temperature in (0.1, 1.0, 10.0):
        settings = Sampling(temperature=temperature, top_p=0.9, min_p=0.1)
        assert left(row_of(500), settings) == left(row_of(500), replace(settings, temperature=0.5))


# --- temperature ---


@pytest.mark.parametrize("temperature", [0.25, 0.8, 1.0, 3.0])
def test_temperature_divides_the_distance(temperature):
    row = f32(2.0, 1.0, -3.0)
    s = validate(replace(OPEN, temperature=temperature), 3)
    _, tempered = survivors(*candidates(row, 0, math.inf), s)
    assert tempered.tolist() == weights(f32(0.0, -1.0, -5.0) / np.float32(temperature)).tolist()


def test_the_smallest_temperature_makes_no_nan():
    row = f32(3e38, 2.0, -3e38)
    assert set(tokens(row, replace(OPEN, temperature=2.0**-120))) == {0}


def test_a_huge_temperature_is_nearly_uniform():
    counts = Counter(tokens(f32(100, 0, -100), replace(OPEN, temperature=3e38), range(300)))
    assert min(counts.values()) > 70


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0, 1e37])
@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.999}, {"min_p": 1e-6}])
def test_the_floor_changes_no_draw(temperature, truncation):
    row = row_of(2000) * np.float32(6)
    sampler = Sampler(replace(OPEN, temperature=temperature, **truncation), 0, row.size)
    for position in range(12):
        all_of_them = sampler.draw(row, [0] * position, lambda row, k, floor: candidates(row, k, math.inf))
        assert sampler.draw(row, [0] * position, candidates) == all_of_them


# --- penalties (llama.cpp's rules) ---


def test_repeat_penalty_pushes_down_on_both_sides_of_zero():
    s = validate(Sampling(repeat_penalty=1.5), 4)
    expected = [np.float32(3) / np.float32(1.5), np.float32(-2) * np.float32(1.5), 0.0, 5.0]
    assert adjusted(f32(3, -2, 0, 5), [0, 1, 2], s).tolist() == expected


def test_frequency_counts_and_presence_does_not():
    s = validate(Sampling(frequency_penalty=0.1, presence_penalty=0.7), 3)
    tenth, presence = np.float32(0.1), np.float32(0.7)
    expected = [np.float32(1) - (np.float32(3) * tenth + presence), np.float32(1) - (tenth + presence), 1.0]
    assert adjusted(f32(1, 1, 1), [0, 1, 0, 0], s).tolist() == expected


def test_penalties_may_reward():
    s = validate(Sampling(repeat_penalty=0.5, frequency_penalty=-1.0, presence_penalty=-0.25), 2)
    assert adjusted(f32(1, 1), [0, 0], s).tolist() == [4.25, 1.0]


@pytest.mark.parametrize(
    ("last_n", "penalised"), [(-1, {0, 1, 2}), (100, {0, 1, 2}), (2, {1, 2}), (1, {2}), (0, set())]
)
def test_repeat_last_n_counts_from_the_end_and_minus_one_means_all(last_n, penalised):
    """CASES S1: elsewhere -1 meant none."""
    s = validate(Sampling(repeat_penalty=2.0, repeat_last_n=last_n), 4)
    after = adjusted(f32(1, 1, 1, 1), [0, 1, 2], s)
    assert {i for i in range(4) if after[i] < 1} == penalised


def test_neutral_settings_leave_the_row_alone():
    row = row_of(10)
    assert adjusted(row, [1, 2, 3], validate(Sampling(), 10)) is row


def test_the_given_row_is_never_written():
    row = row_of(10)
    before = row.tobytes()
    draw(row, Sampling(repeat_penalty=2.0, logit_bias=((3, 1.0),)), history=[1, 2])
    assert row.tobytes() == before


def test_bias_comes_before_penalties():
    s = validate(Sampling(repeat_penalty=2.0, logit_bias=((0, 3.0),)), 1)
    assert adjusted(f32(-1), [0], s).tolist() == [1.0]


# --- logit bias ---


@pytest.mark.parametrize("settings", [GREEDY, OPEN, Sampling(temperature=1.5)])
def test_a_banned_token_is_never_drawn(settings):
    row = f32(1, 9, 1, 1)
    banned = replace(settings, logit_bias=((1, -math.inf),))
    assert 1 not in tokens(row, banned)
    assert draw(row, banned).runner_up != 1


def test_a_bias_of_minus_a_hundred_is_as_good_as_a_ban():
    assert 1 not in tokens(f32(1, 9, 1, 1), replace(OPEN, logit_bias=((1, -100.0),)))


# --- numbers that are not finite ---


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [GREEDY, OPEN, Sampling()])
@pytest.mark.parametrize("bias", [(), ((2, -math.inf),)])
def test_a_bad_logit_ends_the_run_even_if_banned(bad, settings, bias):
    row = row_of(100)
    row[2] = bad
    with pytest.raises(NonFinite, match="token 2"):
        draw(row, replace(settings, logit_bias=bias))


def test_overflow_by_bias_or_penalty_does_not_pass():
    with pytest.raises(NonFinite, match="token 0"):
        draw(f32(3e38, 0), replace(OPEN, logit_bias=((0, 3e38),)))
    with pytest.raises(NonFinite, match="token 0"):
        draw(f32(1000, 0), replace(OPEN, repeat_penalty=2.0**-120), history=[0])


def test_no_token_left():
    with pytest.raises(NonFinite, match="every logit"):
        draw(f32(-math.inf, 3), replace(OPEN, logit_bias=((1, -math.inf),)))


# --- the draw ---


def test_pick_follows_the_weights_exactly():
    ids, w = np.array([5, 3, 9], np.int32), np.array([7, 2, 1], np.int64)
    tenth = (1 << 64) // 10
    drawn = [pick(ids, w, tenth * i + tenth // 2) for i in range(10)]
    assert drawn == [5] * 7 + [3] * 2 + [9]
    assert pick(ids, w, 0) == 5
    assert pick(ids, w, (1 << 64) - 1) == 9


def test_pick_never_takes_a_weight_of_zero():
    ids, w = np.arange(5, dtype=np.int32), np.array([0, 3, 0, 1, 0], np.int64)
    assert {pick(ids, w, i << 54) for i in range(1024)} == {1, 3}
    assert pick(ids, w, (1 << 64) - 1) == 3


def test_pick_needs_all_64_bits():
    w = np.full(1 << 18, 1 << 40, np.int64)
    ids = np.arange(1 << 18, dtype=np.int32)
    assert pick(ids, w, (3 << 46) - 1) == 2
    assert pick(ids, w, 3 << 46) == 3


def test_draws_of_ties_are_the_random_bits_themselves():
    row = np.zeros(1000, np.float32)
    expected = [rng.random_bits(7, 3, position, rng.DRAW) * 1000 >> 64 for position in range(40)]
    assert tokens(row, replace(OPEN, seed=7), index=3) == expected


def test_draws_follow_the_distribution():
    row = np.array([math.log(p) for p in (0.4, 0.3, 0.2, 0.08, 0.02)], np.float32)
    counts = Counter(tokens(row, replace(OPEN, seed=11), range(2000)))
    expected = [2000 * p for p in (0.4, 0.3, 0.2, 0.08, 0.02)]
    chi_square = math.fsum((counts[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert chi_square < 13.3  # 1 % of fair samples exceed it (4 degrees of freedom)


def test_a_draw_depends_on_nothing_that_happened_before():
    row, settings = row_of(500), Sampling(seed=42, temperature=1.5)
    forward = tokens(row, settings)
    assert tokens(row, settings, reversed(range(40))) == forward[::-1]
    assert [tokens(row, settings, [position])[0] for position in range(40)] == forward
    sampler = Sampler(settings, 0, 500)
    for _ in range(3):
        assert sampler.draw(row, [1] * 17, candidates).token == forward[17]


def test_seed_index_and_position_each_change_the_stream():
    row, settings = np.zeros(1000, np.float32), replace(OPEN, seed=42)
    base = tokens(row, settings)
    assert len(set(base)) > 30
    assert tokens(row, replace(settings, seed=43)) != base
    assert tokens(row, replace(settings, seed=42 + (1 << 32))) != base
    assert tokens(row, settings, index=1) != base


def test_seed_and_temperature_are_independent():
    row = row_of(500)
    assert tokens(row, replace(GREEDY, seed=1)) == tokens(row, replace(GREEDY, seed=2))
    assert len(set(tokens(row, Sampling(temperature=2.0, seed=123)))) > 1
    cold, warm = (validate(Sampling(temperature=t, seed=9), 500) for t in (0.1, 1.0))
    assert cold == replace(warm, temperature=cold.temperature)


def test_a_drawn_token_is_always_a_survivor():
    row = row_of(3000)
    for settings in (Sampling(), Sampling(top_k=5), Sampling(top_k=0, top_p=0.5), Sampling(min_p=0.3)):
        assert set(tokens(row, settings)) <= set(left(row, settings))


def test_a_vocabulary_of_ties_is_counted_exactly():
    ids = np.arange(262_144, dtype=np.int32)
    values = np.zeros(262_144, np.float32)
    s = validate(replace(OPEN, top_p=0.99), 262_144)
    assert survivors(ids, values, s, np.ones_like)[0].size == math.ceil(Fraction(s.top_p) * 262_144)
