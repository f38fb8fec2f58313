"""One answer from the trials: fastest, on the plateau the calmest, and the present cell where nothing is gained."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.search import recommend


def sure(trials, draws=100):
    return np.zeros((draws, len(trials)))


def noisy(trials, sd, seed=0):
    return np.random.default_rng(seed).normal(0, sd, (4000, len(trials)))


def answer(trials, draws=None, baseline=0, epsilon=0.02):
    draws = sure(trials) if draws is None else draws
    return recommend(trials, trials[baseline].cell, draws, epsilon=epsilon, delta=0.05)


def test_the_fastest_cell_is_recommended(make_trial):
    trials = [make_trial(64, 4096, 1000), make_trial(128, 4096, 1500), make_trial(256, 4096, 1300)]
    found = answer(trials)
    assert (str(found.recommended), found.worth_changing) == ("128x4096", True)
    assert found.gain == found.gain_low == found.gain_high == pytest.approx(0.5)
    assert found.probability_within_epsilon == 1
    assert [str(cell) for cell in found.plateau] == ["128x4096"]
    assert "At 64x4096 max_num_seqs binds for 70% of the time" in found.reason
    assert "128x4096 gives +50.0 % tokens/s" in found.reason
    assert "256 slots would change that by -13.3 %" in found.reason


def test_on_the_plateau_the_lower_latency_wins(make_trial):
    trials = [make_trial(64, 4096, 1000), make_trial(256, 4096, 1500, 0.080), make_trial(128, 4096, 1480, 0.040)]
    found = answer(trials)
    assert str(found.recommended) == "128x4096"
    assert found.gain == pytest.approx(0.48)
    assert {str(cell) for cell in found.plateau} == {"128x4096", "256x4096"}


def test_at_the_same_latency_fewer_preemptions_win(make_trial):
    trials = [make_trial(64, 4096, 1000), make_trial(96, 4096, 1500, 0.040, 7), make_trial(128, 4096, 1500, 0.0404)]
    assert str(answer(trials).recommended) == "128x4096"


def test_at_the_same_latency_and_preemptions_the_smaller_dials_win(make_trial):
    cells = [(64, 4096, 1000), (256, 2048, 1500), (128, 8192, 1500), (128, 4096, 1500)]
    assert str(answer([make_trial(*cell) for cell in cells]).recommended) == "128x4096"


def test_outside_the_margin_latency_does_not_count(make_trial):
    trials = [make_trial(64, 4096, 1000), make_trial(256, 4096, 1500, 0.080), make_trial(128, 4096, 1460, 0.040)]
    assert str(answer(trials).recommended) == "256x4096"
    assert str(answer(trials, epsilon=0.05).recommended) == "128x4096"


def test_the_present_cell_stays_when_it_is_the_best(make_trial):
    found = answer([make_trial(128, 4096, 1500), make_trial(64, 4096, 1000)])
    assert (str(found.recommended), found.worth_changing) == ("128x4096", False)
    assert (found.gain, found.gain_low, found.gain_high) == (0, 0, 0)
    assert found.reason.startswith("Keep 128x4096: no cell is better")


def test_the_present_cell_stays_when_the_gain_is_within_the_margin(make_trial):
    found = answer([make_trial(256, 8192, 1490), make_trial(128, 4096, 1500)])
    assert (str(found.recommended), found.worth_changing, found.gain) == ("256x8192", False, 0)
    assert found.reason.startswith("Keep 256x8192: 128x4096 would change throughput by +0.7 %")


def test_the_present_cell_stays_when_the_gain_may_be_noise(make_trial):
    trials = [make_trial(64, 4096, 1000), make_trial(128, 4096, 1060)]
    assert answer(trials, noisy(trials, 0.05)).worth_changing is False
    assert answer(trials, noisy(trials, 0.005)).worth_changing is True


def test_a_fifth_less_latency_at_the_same_speed_is_worth_a_change(make_trial):
    trials = [make_trial(512, 8192, 1500, 0.100), make_trial(128, 8192, 1510, 0.060)]
    found = answer(trials, noisy(trials, 0.001))
    assert (str(found.recommended), found.worth_changing) == ("128x8192", True)
    assert "as fast as 512x8192 (+0.7 %), with a p99 inter-token latency of 60 ms instead of 100 ms" in found.reason
    assert answer([make_trial(512, 8192, 1500, 0.100), make_trial(128, 8192, 1500, 0.085)]).worth_changing is False


def test_an_error_that_cells_share_does_not_widen_the_interval(make_trial):
    trials = [make_trial(64, 4096, 1000), make_trial(128, 4096, 1500)]
    shared = np.random.default_rng(0).normal(0, 0.2, (1000, 1)).repeat(2, axis=1)
    found = answer(trials, shared)
    assert (found.gain_low, found.gain_high) == pytest.approx((0.5, 0.5))


def test_doubt_lowers_the_probability_to_be_within_the_margin(make_trial):
    trials = [make_trial(64, 4096, 1000), make_trial(128, 4096, 1500), make_trial(256, 4096, 1500)]
    tight, wide = (answer(trials, noisy(trials, sd)).probability_within_epsilon for sd in (0.01, 0.1))
    assert 0.8 < tight <= 1
    assert 0.5 < wide < tight


TRIALS = st.lists(
    st.tuples(st.integers(1, 9), st.floats(100, 2000), st.floats(1e-3, 1), st.integers(0, 3)),
    min_size=1, max_size=8, unique_by=lambda trial: trial[0],
)  # fmt: skip


@given(TRIALS, st.floats(0, 0.3), st.floats(0.001, 0.2), st.integers(0, 99))
def test_every_answer_holds_together(make_trial, shapes, sd, epsilon, seed):
    trials = [make_trial(seqs, 4096, *figures) for seqs, *figures in shapes]
    found = answer(trials, noisy(trials, sd, seed), epsilon=epsilon)
    best = max(trial.total_tokens_per_s for trial in trials)
    speed = {trial.cell: trial.total_tokens_per_s for trial in trials}
    assert found.gain_low <= found.gain <= found.gain_high
    assert 0 <= found.probability_within_epsilon <= 1
    assert found.recommended in speed
    assert all(speed[cell] >= best * (1 - epsilon) for cell in found.plateau)
    assert (found.recommended == found.baseline) == (not found.worth_changing)
    assert found.recommended in {found.baseline, *found.plateau}
    if found.worth_changing:
        assert found.gain == pytest.approx(speed[found.recommended] / speed[found.baseline] - 1)
    assert found.reason.endswith(".")
