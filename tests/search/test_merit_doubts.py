"""Doubts about rates and latencies, and what else could be had."""

import numpy as np
import pytest

from maitre.records import Attainment, HighestRate, Objective, Percentiles, TargetAttainment
from maitre.search.merit_doubts import doubt_merits
from maitre.search.recommend_merit import recommend_by

RATE = Objective(kind="rate", targets=("itl_p99=50ms",))
LATENCY = Objective(kind="latency", targets=("ttft_p95=500ms",))


def percentiles(value):
    return Percentiles(p50=value, p95=value, p99=value, max=value)


@pytest.fixture
def rated(make_trial):
    def make(seqs, tokens, rate, bound_by="ttft_p95=500ms", stay_s=1.0, **changes):
        highest = HighestRate(rate_rps=rate, bound_by=bound_by, capacity_rps=20.0)
        bound_share = {"seqs": 0.0, "token-budget": 0.0, "kv-blocks": 0.0, "requests": 1.0}
        facts = {"highest_rate": highest, "e2e_s": percentiles(stay_s), "bound_share": bound_share} | changes
        return make_trial(seqs, tokens, 1000, **facts)

    return make


@pytest.fixture
def late(make_trial):
    def make(seqs, ttft_s, itl_s, **changes):
        target = TargetAttainment(target="ttft_p95=500ms", value_s=ttft_s, share=1.0, met=ttft_s <= 0.5)
        held = Attainment(met=target.met, num_attaining=1, share=1, share_low=0, share_high=1, goodput_rps=1,
                          by_target=(target,))  # fmt: skip
        bound_share = {"seqs": 0.0, "token-budget": 0.0, "kv-blocks": 0.0, "requests": 1.0}
        facts = {"attainment": held, "ttft_s": percentiles(ttft_s), "itl_s": percentiles(itl_s)}
        return make_trial(seqs, 2048, 1000, **{"bound_share": bound_share} | facts | changes)

    return make


def doubts(objective, *trials):
    said = recommend_by(objective, trials, trials[0].cell, np.zeros((10, len(trials))), epsilon=0.02, delta=0.05)
    return {finding.code: finding for finding in doubt_merits(objective, trials, said)}


def test_a_long_run_inside_the_grid_leaves_no_doubt(rated):
    assert doubts(RATE, rated(64, 512, 5.0), rated(256, 2048, 3.0)) == {}


def test_a_run_that_is_hardly_longer_than_a_request_stays(rated):
    found = doubts(RATE, rated(64, 512, 5.0, stay_s=3.0, num_requests=50))
    assert "50 requests at 5 a second last 10 s, and half of them stay for 3 s" in found["short-run"].message
    assert found["short-run"].remedy == "take at least 67 requests"


def test_a_stream_that_ends_the_rate_at_the_smallest_budget(rated):
    found = doubts(RATE, rated(64, 2048, 5.0, "itl_p99=50ms"), rated(64, 4096, 4.0, "itl_p99=50ms"))
    assert found["edge-of-grid"].remedy == "try --max-num-batched-tokens 512,1024, too"
    assert not doubts(RATE, rated(64, 512, 5.0, "itl_p99=50ms"), rated(64, 4096, 4.0, "itl_p99=50ms"))


def test_full_slots_at_the_largest_number(rated):
    full = {"seqs": 0.5, "token-budget": 0.0, "kv-blocks": 0.0, "requests": 0.5}
    found = doubts(RATE, rated(64, 512, 5.0, bound_share=full), rated(32, 512, 3.0, bound_share=full))
    assert found["edge-of-grid"].remedy == "try --max-num-seqs 128,256, too"


def test_targets_that_no_cell_meets(rated):
    found = doubts(RATE, rated(64, 2048, 0.0, "itl_p99=50ms"))
    assert list(found) == ["targets-out-of-reach"]
    assert "no cell of the grid meets itl_p99=50ms" in found["targets-out-of-reach"].message


def test_traffic_that_is_mostly_waiting(late):
    full = {"seqs": 0.4, "token-budget": 0.0, "kv-blocks": 0.3, "requests": 0.3}
    assert "70%" in doubts(LATENCY, late(64, 0.3, 0.03, bound_share=full))["overload"].message


def test_a_cell_that_is_better_in_another_latency_is_named(late):
    found = doubts(LATENCY, late(64, 0.2, 0.05), late(128, 0.3, 0.03), late(256, 0.4, 0.04))
    assert (
        found["trade-off"].message == "128x2048 has ttft_p95 300 ms instead of 200 ms, itl_p99 30 ms instead of 50 ms"
    )


def test_a_cell_that_misses_a_target_is_no_offer(late):
    assert "trade-off" not in doubts(LATENCY, late(64, 0.2, 0.05), late(128, 0.6, 0.03))
