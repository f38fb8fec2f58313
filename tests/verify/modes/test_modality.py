"""Two paces are seen where the buckets show them, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.special import xlogy

from maitre.metric_series import Histogram
from maitre.verify.modes.modality import judge_modes
from maitre.verify.modes.unimodal import one_mode_p_values, unimodal_fit, unimodal_gap
from maitre.verify.modes.valley import deepest_valley

DEFAULT = np.array([0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80])
"""Bounds of vLLM 0.8.5 and later, v1/metrics/buckets.py."""
FINE = 0.002 * 1.15 ** np.arange(46)


def window(*paces, upper=DEFAULT, steps=2000, batch=16, seed=0, overflow=0):
    """A sub-window of steps at paces given as (median in s, share, spread)."""
    rng = np.random.default_rng(seed)
    shares = [share for _, share, _ in paces]
    which = rng.choice(len(paces), steps, p=np.array(shares) / sum(shares))
    medians, spreads = (np.array([pace[n] for pace in paces])[which] for n in (0, 2))
    times = medians * np.exp(spreads * rng.standard_normal(steps))
    bounds = np.append(upper, np.inf)
    counts = np.bincount(np.searchsorted(bounds, times), minlength=len(bounds)) * float(batch)
    counts[-1] += overflow
    return Histogram(bounds, counts, float(times.sum() * batch))


def day(*paces, hours=24, **options):
    """As many sub-windows, each of other noise."""
    return [window(*paces, seed=hour, **options) for hour in range(hours)]


def judge(windows, steps=2000.0):
    return judge_modes(windows, [steps] * len(windows), seed=0)


@pytest.mark.parametrize(
    ("fast", "slow", "share"), [(0.012, 0.06, 0.8), (0.03, 0.2, 0.9), (0.032, 0.275, 0.5)], ids=str
)
def test_steps_with_prompts_between_decode_steps_are_a_second_pace(fast, slow, share):
    judged = judge(day((fast, share, 0.15), (slow, 1 - share, 0.15)))
    assert judged.verdict == "two-modes"
    first, second = judged.modes
    assert first.lower_s <= fast <= first.upper_s
    assert first.share == pytest.approx(share, abs=0.03)
    assert second.lower_s <= slow * 1.15
    assert second.upper_s >= slow / 1.15
    assert "--max-num-batched-tokens" in judged.remedy


def test_one_pace_is_one_mode_and_says_what_it_could_not_see():
    judged = judge(day((0.04, 1.0, 0.2)))
    assert (judged.verdict, judged.two_mode_share) == ("one-mode", 0.0)
    assert judged.blind_ratio == pytest.approx(0.075 / 0.025)  # the bucket of 25 to 50 ms, and the one after it
    assert "×3" in judged.reason


def test_paces_in_neighbouring_buckets_hide_and_finer_buckets_show_them():
    paces = ((0.03, 0.7, 0.1), (0.06, 0.3, 0.1))
    coarse = judge(day(*paces))
    assert coarse.verdict == "one-mode"
    assert coarse.blind_ratio >= 2
    assert judge(day(*paces, upper=FINE)).verdict == "two-modes"


def test_below_the_first_bound_nothing_can_be_told():
    judged = judge(day((0.004, 0.8, 0.1), (0.009, 0.2, 0.05)))
    assert (judged.verdict, judged.blind_ratio) == ("cannot-tell", None)
    assert "--custom-histogram-buckets" in judged.remedy
    assert "--enable-logging-iteration-details" in judged.remedy


def test_beyond_the_last_bound_nothing_can_be_told():
    few = DEFAULT[:4]
    judged = judge(day((0.06, 1.0, 0.3), upper=few, overflow=10_000))
    assert judged.verdict == "cannot-tell"
    assert judged.overflow_share > 0.1


def test_a_healthy_server_has_a_few_slow_steps():
    assert judge(day((0.03, 0.97, 0.1), (0.2, 0.03, 0.1))).verdict == "one-mode"


def test_day_and_night_are_two_regimes_and_not_two_modes():
    night, noon = day((0.015, 1.0, 0.15), hours=12), day((0.12, 1.0, 0.15), hours=12)
    judged = judge([*night, *noon])
    assert (judged.verdict, judged.two_regimes) == ("one-mode", True)
    assert "load changed" in judged.reason
    assert judge([*noon, *night]).two_regimes


def test_a_stall_that_most_tokens_do_not_see_is_no_verdict_but_is_counted():
    stalled = day((0.03, 0.8, 0.15), (0.25, 0.2, 0.15), hours=6)
    judged = judge([*stalled, *day((0.03, 1.0, 0.15), hours=18)])
    assert judged.verdict == "one-mode"
    assert judged.two_mode_share == pytest.approx(0.25, abs=0.02)


def test_sequences_of_one_step_are_one_observation():
    """With 300 tokens from 5 steps of 60, what looks like a valley is five numbers."""
    counts = np.zeros(len(DEFAULT) + 1)
    counts[[2, 4, 6]] = 180.0, 60.0, 60.0
    judged = judge_modes([Histogram(np.append(DEFAULT, np.inf), counts, 1.0)], [5.0], seed=0)
    assert judged.verdict == "cannot-tell"
    assert "5 independent steps" in judged.reason


def test_without_the_number_of_steps_a_full_batch_is_assumed():
    paces = ((0.03, 0.8, 0.15), (0.25, 0.2, 0.15))
    few, many = (judge_modes(day(*paces, batch=batch), [None] * 24, seed=0) for batch in (1, 64))
    assert few.verdict == "cannot-tell"
    assert many.verdict == "two-modes"


def test_short_sub_windows_are_put_together():
    paces = ((0.03, 0.8, 0.15), (0.25, 0.2, 0.15))
    judged = judge(day(*paces, steps=100), steps=100.0)
    assert (judged.verdict, judged.num_windows) == ("two-modes", 12)


@pytest.mark.parametrize("windows", [[], [Histogram(np.append(DEFAULT, np.inf), np.zeros(20), 0.0)]], ids=len)
def test_silence_is_cannot_tell(windows):
    assert judge_modes(windows, [None] * len(windows), seed=0).verdict == "cannot-tell"


def test_buckets_that_changed_on_the_way_are_judged_by_the_bounds_of_most_tokens():
    paces = ((0.03, 0.7, 0.1), (0.06, 0.3, 0.1))
    mostly_fine = [*day(*paces, upper=FINE, hours=8), *day(*paces, hours=2)]
    assert judge(mostly_fine).verdict == "two-modes"


def test_the_same_seed_gives_the_same_answer():
    windows = day((0.03, 0.8, 0.3), (0.11, 0.2, 0.3), hours=3, steps=300)
    assert judge(windows, 300.0) == judge(windows, 300.0)


COUNTS = st.lists(st.integers(0, 5000), min_size=len(DEFAULT) + 1, max_size=len(DEFAULT) + 1)


@settings(max_examples=40)
@given(windows=st.lists(COUNTS, max_size=4), steps=st.one_of(st.none(), st.integers(0, 3000)))
def test_any_counts_get_an_answer_with_its_reason(windows, steps):
    told = judge_modes([Histogram(np.append(DEFAULT, np.inf), np.array(one, float), np.nan) for one in windows],
                       [steps] * len(windows), seed=0)  # fmt: skip
    assert told.reason
    assert (told.verdict == "cannot-tell") <= bool(told.remedy)
    assert (told.verdict == "two-modes") == (len(told.modes) == 2 and not told.two_regimes)


@settings(max_examples=20)
@given(slow=st.sampled_from([0.04, 0.06, 0.15, 0.3]), share=st.sampled_from([0.5, 0.9, 0.97]), factor=st.floats(0.1, 9))
def test_the_unit_of_time_does_not_matter(slow, share, factor):
    windows = day((0.03, share, 0.15), (slow, 1 - share, 0.15), hours=4)
    scaled = [Histogram(one.upper * factor, one.counts, one.total * factor) for one in windows]
    first, second = judge(windows), judge(scaled)
    assert (first.verdict, first.two_mode_share) == (second.verdict, second.two_mode_share)


def test_the_gap_agrees_with_isotonic_regression():
    rng = np.random.default_rng(0)
    widths = rng.uniform(0.2, 3, 9)
    counts = rng.poisson(rng.choice([0.5, 5, 50], (40, 1)), (40, 9)).astype(float)
    for row, gap in zip(counts, unimodal_gap(counts, widths), strict=True):
        assert gap == pytest.approx(gap_by_isotonic_regression(row, widths), abs=1e-9)


def gap_by_isotonic_regression(counts, widths):
    """With the peak tried at each split."""
    fits = []
    for split in range(len(counts) + 1):
        parts = ((slice(None, split), True), (slice(split, None), False))
        levels = [
            isotonic_regression(counts[part] / widths[part], weights=widths[part], increasing=rises).x
            for part, rises in parts
            if counts[part].size
        ]
        fits.append(xlogy(counts, np.where(counts > 0, np.concatenate(levels), 1.0)).sum())
    return 2 * (xlogy(counts, counts / widths).sum() - max(fits))


def test_the_best_fit_has_one_mode_and_as_much_mass():
    counts, widths = np.array([5.0, 40.0, 10.0, 30.0, 2.0]), np.array([1.0, 1.0, 2.0, 1.0, 4.0])
    fit = unimodal_fit(counts, widths)
    assert fit.sum() == pytest.approx(1.0)
    assert unimodal_gap(fit[np.newaxis] * 1000, widths) == pytest.approx(0.0, abs=1e-9)


def test_noise_around_one_mode_is_seldom_significant():
    """The plateau, where noise looks most like valleys."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(500, np.full(12, 1 / 12), 300).astype(float)
    p_values = one_mode_p_values(counts, np.ones(12), 200, 0.01, rng)
    assert np.mean(p_values < 0.01) <= 0.03


def test_a_valley_needs_a_peak_with_enough_tokens_on_each_side():
    upper = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    assert deepest_valley(np.array([0, 90, 0, 10, 0.0]), upper) == (1, 2, 3, 0.9, pytest.approx(0.1))
    assert deepest_valley(np.array([0, 97, 0, 3, 0.0]), upper) is None
    assert deepest_valley(np.array([0, 60, 30, 10, 0.0]), upper) is None
