"""The highest rate within targets, found by bisection on servers whose answer is known."""

import numpy as np
import pytest

from maitre.records import Cell
from maitre.slo import parse_latency_targets
from maitre.trial.highest_rate import highest_rate
from maitre.trial.run import Run

TARGETS = parse_latency_targets(["ttft_p95=500ms"])


class Server:
    """Every request waits `ttft_s(rate)` for its first token, and then `itl_s(rate)` for the second."""

    def __init__(self, ttft_s, itl_s=lambda rate: 0.01):
        self.ttft_s, self.itl_s = ttft_s, itl_s
        self.rates = []

    def run_at(self, rate):
        self.rates.append(rate)
        return self.run(self.ttft_s(rate), self.itl_s(rate))

    def run_alone(self):
        self.rates.append(0.0)
        return self.run(self.ttft_s(0.0), self.itl_s(0.0))

    @staticmethod
    def run(ttft_s, itl_s):
        ones = np.ones(4, dtype=np.int64)
        return Run(
            cell=Cell(max_num_seqs=4, max_num_batched_tokens=4), num_gpu_blocks=9,
            step_end_s=np.array([ttft_s, ttft_s + itl_s]), bound_by=np.array([3, 3]), num_running=np.array([4, 4]),
            num_waiting=np.zeros(2), num_free_blocks=np.array([8, 8]), num_useful_tokens=np.array([8, 4]),
            num_steady_decodes=np.array([0, 4]), other_gaps=np.zeros((0, 2), dtype=np.int64),
            output_tokens=2 * ones, arrival_s=np.zeros(4), first_scheduled_s=np.zeros(4),
            first_token_s=ttft_s * ones, last_token_s=(ttft_s + itl_s) * ones, num_preemptions=0,
            num_recomputed_tokens=0, num_cached_tokens=0, is_burst=False,
        )  # fmt: skip

    def find(self, targets=TARGETS, capacity=100.0, **options):
        return highest_rate(self.run_at, self.run_alone, targets, capacity, **options)


def queue(rate, service_s=0.1):
    """Like a queue with one server: waiting grows without bounds as its capacity, 10 a second, comes near."""
    load = min(rate * service_s, 0.999)
    return service_s / (1 - load)


@pytest.mark.parametrize("guess_rps", [None, 1.0, 7.9, 8.0, 8.1, 99.0, 0.0])
def test_the_rate_is_found_wherever_the_search_begins(guess_rps):
    found = Server(queue).find(guess_rps=guess_rps)  # 0.1 / (1 − λ/10) = 0.5 at λ = 8
    assert 8 / 1.01 <= found.rate_rps <= 8
    assert found.crossing_rps == pytest.approx(8, rel=0.003)
    assert str(found.bound_by) == "ttft_p95=500ms"
    assert found.run.first_token_s.max() <= 0.5


def test_a_good_guess_costs_two_runs():
    server = Server(queue)
    found = server.find(guess_rps=7.99)
    assert found.num_runs == len(server.rates) == 2


def test_the_target_that_is_missed_first_ends_the_rate():
    server = Server(queue, itl_s=lambda rate: 0.01 * rate)
    found = server.find(parse_latency_targets(["ttft_p95=500ms", "itl_p99=50ms"]))
    assert str(found.bound_by) == "itl_p99=50ms"
    assert found.crossing_rps == pytest.approx(5, rel=0.003)


def test_above_the_capacity_no_rate_counts():
    server = Server(lambda rate: 0.1)
    found = server.find(capacity=6.5)
    assert (found.rate_rps, found.bound_by) == (6.5, None)
    assert max(server.rates) == 6.5


def test_a_target_below_the_time_of_a_lone_request_is_out_of_reach():
    server = Server(lambda rate: 0.6 + queue(rate))
    found = server.find()
    assert (found.rate_rps, found.crossing_rps) == (0, 0)
    assert str(found.bound_by) == "ttft_p95=500ms"
    assert server.rates[-1] == 0
    assert len(server.rates) <= 5


def test_after_a_neighbour_without_a_rate_the_lone_request_is_asked_first():
    server = Server(lambda rate: 0.6)
    assert server.find(guess_rps=0.0).rate_rps == 0
    assert server.rates == [0.0]


def test_a_rate_far_below_the_capacity_is_found_too():
    found = Server(lambda rate: 0.1 if rate < 0.37 else 3.0).find()
    assert 0.37 / 1.01 <= found.rate_rps < 0.37


def test_a_target_that_only_a_lone_request_meets_is_out_of_reach():
    found = Server(lambda rate: 3.0 if rate else 0.1).find()
    assert found.rate_rps == 0


def test_a_jump_is_bracketed_as_narrowly_as_a_slope():
    server = Server(lambda rate: 0.1 if rate <= 5.123 else 60.0)
    found = server.find()
    assert 5.123 / 1.01 <= found.rate_rps <= 5.123
    assert len(server.rates) < 20


def test_a_wide_tolerance_needs_fewer_runs_and_still_interpolates():
    fine, coarse = Server(queue), Server(queue)
    fine.find(tolerance=0.001)
    found = coarse.find(tolerance=0.1)
    assert len(coarse.rates) < len(fine.rates)
    assert found.crossing_rps == pytest.approx(8, rel=0.02)


def test_requests_without_the_latency_meet_its_target():
    run = Server.run(0.1, 0.01)
    single = Server(queue)
    single.run_at = lambda rate: run
    assert single.find(parse_latency_targets(["itl_p99=50ms"]), capacity=3.0).rate_rps == 3.0
