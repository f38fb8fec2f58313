"""The answer for a rate within targets, and for a latency."""

import numpy as np
import pytest

from maitre.records import Attainment, Cell, HighestRate, Objective, Percentiles, TargetAttainment
from maitre.search.recommend_merit import recommend_by

RATE = Objective(kind="rate", targets=("ttft_p95=500ms", "itl_p99=50ms"))
LATENCY = Objective(kind="latency", targets=("ttft_p95=500ms", "itl_p99=50ms"))
PLAIN_LATENCY = Objective(kind="latency")
SMALL, MIDDLE, LARGE = (Cell(max_num_seqs=s, max_num_batched_tokens=2048) for s in (64, 128, 256))


@pytest.fixture
def rated(make_trial):
    def make(seqs, rate, bound_by="itl_p99=50ms", value_s=0.06, **changes):
        highest = HighestRate(rate_rps=rate, bound_by=bound_by, capacity_rps=20.0)
        return make_trial(seqs, 2048, 1000, highest_rate=highest, attainment=held(0.4, value_s), **changes)

    return make


@pytest.fixture
def late(make_trial):
    def make(seqs, ttft_s, itl_s=0.03, e2e_s=1.0, **changes):
        e2e = Percentiles(p50=e2e_s, p95=e2e_s, p99=e2e_s, max=e2e_s)
        return make_trial(seqs, 2048, 1000, attainment=held(ttft_s, itl_s), e2e_s=e2e, **changes)

    return make


def held(ttft_s, itl_s):
    by_target = (
        TargetAttainment(target="ttft_p95=500ms", value_s=ttft_s, share=1.0, met=ttft_s <= 0.5),
        TargetAttainment(target="itl_p99=50ms", value_s=itl_s, share=1.0, met=itl_s <= 0.05),
    )
    return Attainment(met=all(t.met for t in by_target), num_attaining=1, share=1, share_low=0, share_high=1,
                      goodput_rps=1, by_target=by_target)  # fmt: skip


def answer(objective, trials, baseline=SMALL, sd=0.001, **options):
    draws = np.random.default_rng(0).normal(0, sd, (2000, len(trials)))
    return recommend_by(objective, trials, baseline, draws, **{"epsilon": 0.02, "delta": 0.05} | options)


def test_the_highest_rate_wins_and_says_what_ends_it(rated):
    said = answer(RATE, [rated(64, 5.0), rated(128, 8.0, "ttft_p95=500ms"), rated(256, 7.0)])
    assert said.recommended == MIDDLE
    assert said.worth_changing
    assert said.gain == pytest.approx(0.6)
    assert said.gain_low < 0.6 < said.gain_high
    assert "up to 5 requests/s, where itl_p99=50ms ends it. At 128x2048" in said.reason
    assert said.reason.endswith("up to 8 requests/s, where ttft_p95=500ms ends it.")


def test_among_equal_rates_the_smaller_dials_win(rated):
    said = answer(RATE, [rated(64, 5.0), rated(128, 7.9), rated(256, 8.0)])
    assert said.recommended == MIDDLE
    assert said.plateau == (MIDDLE, LARGE)


def test_preemptions_are_avoided_first(rated):
    assert answer(RATE, [rated(64, 5.0), rated(128, 8.0, preemptions=3), rated(256, 8.0)]).recommended == LARGE


def test_a_gain_that_may_be_none_changes_nothing(rated):
    said = answer(RATE, [rated(64, 7.0), rated(128, 8.0)], sd=0.1)
    assert said.recommended == SMALL
    assert not said.worth_changing
    assert said.gain == 0
    assert "128x2048 would change the highest rate by +14.3 % (-" in said.reason


def test_the_best_cell_is_kept(rated):
    said = answer(RATE, [rated(64, 8.0, "capacity"), rated(128, 7.0)])
    assert said.reason.startswith("Keep 64x2048: no cell is better; there ")
    assert said.reason.endswith("where the capacity ends it.")


def test_a_present_setting_that_never_meets_the_targets_leaves_no_gain_to_count(rated):
    said = answer(RATE, [rated(64, 0.0), rated(128, 8.0)])
    assert said.recommended == MIDDLE
    assert said.worth_changing
    assert (said.gain, said.gain_low, said.gain_high) == (None, None, None)
    assert "At 64x2048 itl_p99=50ms is out of reach, even for requests that come one by one (60 ms)." in said.reason


def test_where_nobody_meets_the_targets_the_present_setting_stays(rated):
    said = answer(RATE, [rated(64, 0.0), rated(128, 0.0)])
    assert said.recommended == SMALL
    assert not said.worth_changing
    assert said.gain == 0
    assert said.plateau == ()
    assert said.probability_within_epsilon is None
    assert "no cell of the grid meets the targets" in said.reason


def test_the_least_latency_wins(late):
    said = answer(LATENCY, [late(64, 0.4), late(128, 0.2), late(256, 0.3)])
    assert said.recommended == MIDDLE
    assert said.gain == pytest.approx(1.0)  # the present setting takes twice as long
    assert said.reason == "At 64x2048 ttft_p95 is 400 ms. At 128x2048 ttft_p95 is 200 ms."


def test_cells_that_miss_another_target_do_not_count(late):
    said = answer(LATENCY, [late(64, 0.4), late(128, 0.2, itl_s=0.07), late(256, 0.3)])
    assert said.recommended == LARGE


def test_a_present_setting_that_misses_a_target_is_left_even_for_a_longer_latency(late):
    said = answer(LATENCY, [late(64, 0.1, itl_s=0.07), late(128, 0.2)])
    assert said.recommended == MIDDLE
    assert said.worth_changing
    assert said.gain == pytest.approx(-0.5)
    assert "ttft_p95 is 100 ms, which misses itl_p99=50ms" in said.reason


def test_if_all_miss_a_target_the_least_latency_still_wins(late):
    said = answer(LATENCY, [late(64, 0.4, itl_s=0.07), late(128, 0.2, itl_s=0.07)])
    assert said.recommended == MIDDLE


def test_without_targets_it_is_about_p95_of_end_to_end(late):
    trials = [late(64, 0.1, e2e_s=9.0), late(128, 0.9, e2e_s=6.0)]
    plain = [trial.model_copy(update={"attainment": None}) for trial in trials]
    said = answer(PLAIN_LATENCY, plain)
    assert said.recommended == MIDDLE
    assert said.reason == "At 64x2048 e2e_p95 is 9 s. At 128x2048 e2e_p95 is 6 s."


def test_a_latency_that_hardly_changes_is_told_as_a_change_of_the_latency(late):
    plain = [
        trial.model_copy(update={"attainment": None}) for trial in (late(64, 1, e2e_s=6.3), late(128, 1, e2e_s=6.0))
    ]
    said = answer(PLAIN_LATENCY, plain, sd=0.1)
    assert "128x2048 would change e2e_p95 by -4.8 % (-" in said.reason
