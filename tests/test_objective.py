"""What one cell is better in than another."""

import pytest

from maitre.records import Objective


def test_a_latency_that_is_a_fifth_lower_is_a_gain_of_a_quarter():
    assert Objective(kind="latency").change(0.25) == pytest.approx(-0.2)
    assert Objective(kind="rate").change(0.25) == 0.25


def test_more_merit_is_better_whatever_is_counted(make_trial):
    slow, fast = make_trial(64, 2048, 100), make_trial(64, 2048, 200)
    throughput, latency = Objective(), Objective(kind="latency")
    assert throughput.merit(fast) > throughput.merit(slow)
    assert latency.merit(slow) == pytest.approx(1 / slow.e2e_s.p95)


def test_the_latency_is_the_one_of_the_first_target():
    assert Objective(kind="latency").latency == "e2e_p95"
    assert Objective(kind="latency", targets=("ttft_p99=2s", "itl_p99=50ms")).latency == "ttft_p99"


def test_a_cell_without_a_highest_rate_has_none(make_trial):
    assert Objective(kind="rate", targets=("ttft_p99=2s",)).merit(make_trial(64, 2048, 100)) == 0
