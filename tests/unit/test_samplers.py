"""DRY, top-n-sigma, typical, XTC and dynamic temperature: exact boundaries, ties, and what costs nothing when off."""

import math
import time
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from kinetic import rng
from kinetic.backends.reference.candidates import candidates
from kinetic.errors import NonFinite, UsageError
from kinetic.samplers import cuts, dry
from kinetic.samplers.dynamic import dynamic_temperature, entropy_share
from kinetic.sampling import SMALLEST, Sampler, adjusted, survivors, validate, weights
from kinetic.types import Sampling

OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
DRY = replace(OPEN, dry_multiplier=0.8, dry_sequence_breakers=())
NONE = dry.Trie()


def f32(*values):
    return np.array(values, np.float32)


def logs(*shares):
    return np.array([math.log(share) for share in shares], np.float32)


def row_of(size, seed=1):
    return (np.random.default_rng(seed).standard_normal(size) * 4).astype(np.float32)


def left(row, settings, **more):
    """Ids that survive the cuts, best first."""
    s = validate(settings, len(row))
    near = cuts.top_n_sigma(row, s.top_n_sigma) if s.top_n_sigma else row
    return survivors(*candidates(near, s.top_k, math.inf), s, **more)[0].tolist()


# --- DRY ---


def slow_repeats(window, limit, allowed):
    """By definition: every earlier copy of the newest tokens, and what followed it."""
    found = {}
    for end in range(1, len(window)):
        length = 0
        while length < min(limit, end) and window[end - 1 - length] == window[len(window) - 1 - length]:
            length += 1
        if length >= allowed:
            found[window[end]] = max(found.get(window[end], -1), length)
    return found


@pytest.mark.parametrize("tokens", [1, 2, 3, 6])
def test_repeats_are_those_of_the_definition(tokens):
    random = np.random.default_rng(tokens)
    for size in range(30):
        window = random.integers(0, tokens, size).tolist()
        for limit, allowed in ((size, 0), (size, 2), (3, 1), (0, 0)):
            assert dry.repeats(window, limit, allowed) == slow_repeats(window, limit, allowed), (window, limit)


def test_a_penalty_grows_with_the_repetition():
    assert dry.penalties([1, 2, 3, 9, 1, 2, 3], 0.5, 2.0, 2, NONE) == {9: 0.5 * 2.0}
    assert dry.penalties([1, 2, 9, 1, 2], 0.5, 2.0, 2, NONE) == {9: 0.5}
    assert dry.penalties([2, 9, 1, 2], 0.5, 2.0, 2, NONE) == {}
    assert dry.penalties([1, 2, 8, 1, 2, 9, 1, 2], 0.5, 2.0, 2, NONE) == {8: 0.5, 9: 0.5}


@pytest.mark.parametrize("history", [(), (1,), (1, 1)])
def test_too_short_a_history_gives_no_penalty(history):
    row = row_of(10)
    assert adjusted(row, history, validate(DRY, 10)) is row


def test_the_window_bounds_what_is_searched():
    row, history = row_of(10), [1, 2, 9, 3, 1, 2]
    expected = row.copy()
    expected[9] -= np.float32(0.8)
    for last_n, is_seen in ((-1, True), (64, True), (6, True), (5, False), (2, False)):
        s = validate(replace(DRY, dry_penalty_last_n=last_n), 10)
        assert np.array_equal(adjusted(row, history, s), expected if is_seen else row), last_n


def test_no_repetition_reaches_over_a_breaker():
    window = [1, 2, 3, 4, 9, 1, 2, 3, 4]
    assert dry.penalties(window, 1.0, 2.0, 2, NONE) == {9: 4.0}
    assert dry.penalties(window, 1.0, 2.0, 2, dry.Trie.of([(1,)])) == {9: 2.0}
    assert dry.penalties(window, 1.0, 2.0, 2, dry.Trie.of([(2,)])) == {9: 1.0}
    assert dry.penalties(window, 1.0, 2.0, 2, dry.Trie.of([(3,)])) == {}
    assert dry.penalties(window, 1.0, 2.0, 2, dry.Trie.of([(9,)])) == {}  # itself a breaker, though it repeats
    assert dry.penalties(window, 1.0, 2.0, 2, dry.Trie.of([(1, 2), (1, 5), (4, 9)])) == {9: 1.0}


def test_the_longest_of_the_breakers_that_begin_at_a_token_counts():
    runs = dry.Trie.of([(5,), (5, 6, 7), (5, 6, 8, 8)])
    assert dry.reach([0, 5, 6, 7, 1, 1], runs) == 2
    assert dry.reach([0, 5, 6, 8, 1, 1], runs) == 4
    assert dry.reach([0, 5, 6], runs) == 1
    assert dry.reach([0, 1], runs) == 2
    assert runs.holds(5)
    assert not runs.holds(6)


def test_powers_are_products_one_by_one_and_stay_finite():
    base = float(np.float32(1.75))
    assert dry.powers(base, 4) == [1.0, base, base * base, base * base * base, base * base * base * base]
    assert len(dry.powers(2.0, 10**9)) == 128
    assert dry.powers(1.0, 3) == [1.0] * 4
    assert dry.powers(3e38, 5) == [1.0, 3e38]
    window = [7] * 4000
    assert dry.penalties(window, 1.0, 2.0, 2, NONE) == {7: 2.0**127}


def test_an_overflowing_penalty_bans_the_token():
    row = row_of(10)
    s = validate(replace(DRY, dry_multiplier=3e38, dry_base=2.0), 10)
    assert adjusted(row, [7] * 100, s)[7] == -math.inf
    assert Sampler(s, 0, 10).draw(row, [7] * 100, candidates).token != 7


@pytest.mark.parametrize("window", [[7] * 60_000, [1, 2] * 30_000, ([3] * 299 + [4]) * 200])
def test_the_work_grows_with_the_window_alone(window):
    """60,000 tokens take some hundredths of a second; their square, 3.6 billion steps, many minutes."""
    runs = dry.Trie.of([(3,) * 20 + (5,), (1, 2) * 10 + (9,)])
    begun = time.monotonic()
    dry.penalties(window, 1.0, 1.0001, 2, runs)
    assert time.monotonic() - begun < 20


def test_dry_holds_at_temperature_0():
    row = f32(1.0, 1.5, 0.0, 0.0)
    s = replace(DRY, temperature=0.0)
    assert Sampler(s, 0, 4).draw(row, [2, 3, 1, 2, 3], candidates).token == 0
    assert Sampler(s, 0, 4).draw(row, [2, 3], candidates).token == 1


def test_breakers_without_their_tokens_are_refused():
    with pytest.raises(UsageError) as caught:
        Sampler(replace(DRY, dry_sequence_breakers=("\n",)), 0, 10)
    assert caught.value.name == "NO_BREAKERS"
    Sampler(Sampling(), 0, 10)  # where DRY is off they are of no use


# --- top-n-sigma ---


def test_top_n_sigma_keeps_what_lies_within():
    row = f32(10, 8, 6, 4, 2)  # deviation 2.83
    assert left(row, replace(OPEN, top_n_sigma=0.70)) == [0]
    assert left(row, replace(OPEN, top_n_sigma=0.72)) == [0, 1]
    assert left(row, replace(OPEN, top_n_sigma=1.5)) == [0, 1, 2]
    assert left(row, replace(OPEN, top_n_sigma=-1)) == [0, 1, 2, 3, 4]


def test_a_logit_on_the_line_stays():
    assert left(f32(3, 1, 3, 1), replace(OPEN, top_n_sigma=2)) == [0, 2, 1, 3]  # deviation exactly 1
    assert left(f32(3, 1, 3, 1), replace(OPEN, top_n_sigma=1.9999999)) == [0, 2]


def test_banned_tokens_are_no_part_of_the_deviation():
    row = f32(10, 8, 6, 4, 2)
    banned = np.append(row, f32(-math.inf, -math.inf))
    assert np.array_equal(cuts.top_n_sigma(banned, 1.5)[:5], cuts.top_n_sigma(row, 1.5))


@pytest.mark.parametrize("row", [f32(1, math.nan, 2), f32(1, math.inf), f32(-math.inf, -math.inf)])
def test_what_cannot_be_drawn_is_refused_as_without_it(row):
    with pytest.raises(NonFinite):
        Sampler(replace(OPEN, top_n_sigma=1.0), 0, len(row)).draw(row, [0], candidates)


def test_the_runner_up_is_that_of_the_whole_row():
    draw = Sampler(replace(OPEN, top_n_sigma=0.1), 0, 5).draw(f32(10, 8, 6, 4, 2), [0], candidates)
    assert (draw.token, draw.runner_up, draw.gap) == (0, 1, 2.0)


# --- typical ---


def test_typical_leaves_out_the_too_probable():
    row = logs(0.5, 0.15, 0.15, 0.1, 0.1)  # expected surprise 1.38 nats, those of the tokens 0.69, 1.9, 1.9, 2.3, 2.3
    assert left(row, replace(OPEN, typ_p=0.1)) == [1]
    assert left(row, replace(OPEN, typ_p=0.2)) == [1, 2]
    assert left(row, replace(OPEN, typ_p=0.4)) == [0, 1, 2]
    assert left(row, replace(OPEN, typ_p=1.0)) == [0, 1, 2, 3, 4]


def test_equal_candidates_are_kept_in_candidate_order():
    assert left(f32(1, 1, 1, 1), replace(OPEN, typ_p=0.25)) == [0, 1]  # a quarter must be exceeded
    assert left(f32(1, 1, 1, 1), replace(OPEN, typ_p=0.2499)) == [0]


@pytest.mark.parametrize("row", [f32(3), f32(-math.inf, 3, -math.inf), f32(3, -90)])
def test_a_single_candidate_survives_everything(row):
    best = int(row.argmax())
    s = replace(OPEN, typ_p=0.01, top_n_sigma=0.01, xtc_probability=1.0, xtc_threshold=0.0, dynatemp_range=1.0)
    assert left(row, s, is_xtc_due=True)[0] == best
    assert Sampler(s, 0, len(row)).draw(row, [0], candidates).token == best


def test_exact_dot_is_exact():
    random = np.random.default_rng(2)
    a, b = (random.integers(0, 2**40, 500, endpoint=True) for _ in range(2))
    assert cuts.exact_dot(a, b) == sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
    full = np.full(1 << 16, 1 << 40)
    assert cuts.exact_dot(full, full) == 1 << 96


def test_typical_agrees_with_logarithms():
    for seed in range(20):
        row = row_of(50, seed)
        p = np.exp(row.astype(np.float64) - row.max())
        p /= p.sum()
        off = np.abs(-np.log(p) - (-(p * np.log(p)).sum()))
        order = np.argsort(off)
        count = 1 + int(np.searchsorted(np.cumsum(p[order]), 0.7, side="right"))
        assert set(left(row, replace(OPEN, typ_p=0.7))) == set(order[:count].tolist())


# --- XTC ---


def test_xtc_leaves_the_last_of_those_over_the_threshold():
    row = logs(0.4, 0.3, 0.2, 0.1)
    for threshold, kept in ((0.5, [0, 1, 2, 3]), (0.35, [0, 1, 2, 3]), (0.25, [1, 2, 3]), (0.15, [2, 3]), (0.05, [3])):
        assert left(row, replace(OPEN, xtc_probability=1.0, xtc_threshold=threshold), is_xtc_due=True) == kept


def test_a_share_equal_to_the_threshold_is_over_it():
    s = replace(OPEN, xtc_probability=1.0, xtc_threshold=0.25)
    assert left(f32(1, 1, 1, 1), s, is_xtc_due=True) == [3]
    assert left(f32(1, 1, 1, 1), replace(s, xtc_threshold=0.2500001), is_xtc_due=True) == [0, 1, 2, 3]


def test_threshold_0_counts_no_candidate_without_weight():
    s = replace(OPEN, xtc_probability=1.0, xtc_threshold=0.0)
    assert left(f32(0, -5, -80, -90), s, is_xtc_due=True) == [1, 2, 3]


def test_xtc_is_due_by_bits_of_its_own():
    s, positions = replace(OPEN, xtc_probability=0.3, seed=11), range(1, 400)
    sampler = Sampler(s, 2, 10)
    due = [sampler._is_xtc_due(position) for position in positions]
    expected = [
        Fraction(rng.random_bits(11, 2, n, rng.XTC), 2**64) < Fraction(float(np.float32(0.3))) for n in positions
    ]
    assert due == expected
    assert 80 < sum(due) < 160
    assert all(Sampler(replace(s, xtc_probability=1.0), 2, 10)._is_xtc_due(n) for n in positions)
    assert not any(Sampler(replace(s, xtc_probability=0.0), 2, 10)._is_xtc_due(n) for n in positions)


def test_what_xtc_leaves_is_weighed_from_its_best():
    row = f32(0, -1, -27)
    s = validate(replace(OPEN, xtc_probability=1.0, xtc_threshold=0.2), 3)
    ids, kept = survivors(*candidates(row, 0, math.inf), s, is_xtc_due=True)
    assert ids.tolist() == [1, 2]
    assert kept.tolist() == weights(f32(0, -26)).tolist()


def test_a_draw_with_xtc_needs_no_other_reach():
    """A candidate beyond the reach of the best may be within that of what XTC leaves."""
    s = replace(OPEN, temperature=2.0, xtc_probability=1.0, xtc_threshold=0.0)
    row = f32(0, -20, -27, -60)
    floors = []

    def watched(row, k, floor):
        floors.append(floor)
        return candidates(row, k, floor)

    Sampler(s, 0, 4).draw(row, [0], watched)
    assert floors == [math.inf]


# --- dynamic temperature ---


def heat(row, temperature, spread, exponent):
    distance = np.sort(row)[::-1] - row.max()
    return dynamic_temperature(distance, weights(distance), temperature, spread, exponent)


def test_dynamic_temperature_follows_the_entropy():
    assert heat(f32(1, 1, 1), 0.8, 0.5, 1.0) == np.float32(0.8) + np.float32(0.5)
    assert heat(f32(100, 1, 1), 0.8, 0.5, 1.0) == np.float32(0.8) - np.float32(0.5)
    assert heat(f32(100, 1, 1), 0.3, 0.5, 1.0) == 0
    for seed in range(10):
        row = row_of(40, seed)
        p = np.exp(row.astype(np.float64) - row.max())
        p /= p.sum()
        share = -(p * np.log(p)).sum() / math.log(40)
        assert abs(heat(row, 0.8, 0.5, 0.7) - (0.3 + 1.0 * share**0.7)) < 1e-6


def test_exponents_at_the_edges():
    row = row_of(40)
    assert heat(row, 0.8, 0.5, 0.0) == np.float32(0.8) + np.float32(0.5)
    assert heat(row, 0.8, 0.5, 3e38) == np.float32(0.8) - np.float32(0.5)
    assert heat(f32(100, 1), 0.8, 0.5, 0.0) == np.float32(0.8) + np.float32(0.5)


def test_an_entropy_share_is_from_0_to_1():
    zero = np.zeros(7, np.float32)
    assert entropy_share(zero, weights(zero)) == 1
    alone = f32(0, -50, -90)
    assert entropy_share(alone, weights(alone)) == Decimal(0)


def test_a_temperature_that_vanishes_draws_the_best():
    s = replace(OPEN, temperature=0.5, dynatemp_range=0.5, seed=3)
    row = f32(1, 99, 2)
    assert {Sampler(s, 0, 3).draw(row, [0] * n, candidates).token for n in range(20)} == {1}
    s = validate(s, 3)
    assert survivors(*candidates(row, 0, math.inf), s)[1].tolist() == [1 << 40, 0, 0]
    assert np.float32(SMALLEST) > 0


# --- all of them ---


def test_draws_follow_the_weights_that_are_left():
    row = logs(0.4, 0.3, 0.2, 0.1)
    s = replace(OPEN, xtc_probability=0.5, xtc_threshold=0.25, seed=5)
    sampler = Sampler(s, 0, 4)
    found = Counter(sampler.draw(row, [0] * n, candidates).token for n in range(1, 2001))
    expected = {0: 0.2, 1: 0.15 + 0.25, 2: 0.1 + 0.5 / 3, 3: 0.05 + 0.25 / 3}
    assert all(abs(found[token] / 2000 - share) < 0.04 for token, share in expected.items())


@pytest.mark.parametrize(
    "settings",
    [
        {"typ_p": 0.5},
        {"xtc_probability": 1.0},
        {"dynatemp_range": 1.0},
    ],
)
def test_temperature_0_is_the_best_whatever_else_is_set(settings):
    row = row_of(50)
    assert Sampler(replace(OPEN, temperature=0.0, **settings), 0, 50).draw(row, [0], candidates).token == row.argmax()


def test_a_backends_reach_changes_no_draw():
    s = replace(OPEN, typ_p=0.9, temperature=1.5, seed=8)
    sampler = Sampler(s, 0, 300)
    for n in range(1, 40):
        row = row_of(300, n) * np.float32(4)
        wide = sampler.draw(row, [0] * n, lambda row, k, floor: candidates(row, k, math.inf))
        assert wide == sampler.draw(row, [0] * n, candidates)
