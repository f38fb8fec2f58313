"""Highest rates of cells in the simulator."""

from dataclasses import replace

import pytest

from maitre.calibration import shipped_calibrations
from maitre.records import Cell, ServerConfig
from maitre.slo import parse_latency_targets
from maitre.trial.paced import PacedSurface
from maitre.trial.rate_surface import RateSurface, in_reach, nearest
from maitre.workload import load_workload

STEP_TIME = shipped_calibrations()[0].step_time
THETA = STEP_TIME.coefficients
SERVER = ServerConfig(model="m", max_model_len=8192, max_num_seqs=8, max_num_batched_tokens=512)


def cell(seqs, tokens):
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def surface(*targets, spec="lognormal:400:0.6:60:0.6", num_requests=200):
    paced = PacedSurface(load_workload(spec, num_requests=num_requests), SERVER, STEP_TIME, lambda _: 40_000)
    return RateSurface(paced, parse_latency_targets(targets))


def test_the_rate_meets_the_targets_and_a_little_more_does_not():
    rates = surface("ttft_p95=200ms", "itl_p99=30ms")
    found = rates.find(cell(32, 1024), THETA)
    trial = rates.trial(found)
    assert trial.attainment.met
    assert trial.highest_rate.rate_rps == found.rate_rps > 0
    assert trial.highest_rate.bound_by in {"ttft_p95=200ms", "itl_p99=30ms"}
    assert trial.attainment.share_low < trial.attainment.share
    above = rates.paced.run(cell(32, 1024), THETA, found.rate_rps * 1.011)
    assert not rates.trial(replace(found, run=above)).attainment.met


def test_smaller_prompt_chunks_keep_the_stream_smooth_at_higher_rates():
    rates = surface("itl_p99=30ms")
    small, large = (rates.find(cell(64, tokens), THETA).rate_rps for tokens in (256, 4096))
    assert small > 1.2 * large


def test_faster_steps_allow_higher_rates():
    rates = surface("ttft_p95=200ms", "itl_p99=30ms")
    normal, faster = (rates.find(cell(32, 1024), theta).crossing_rps for theta in (THETA, 0.9 * THETA))
    assert faster > 1.1 * normal


def test_the_guess_hardly_changes_the_answer():
    rates = surface("ttft_p95=200ms")
    plain = rates.find(cell(8, 1024), THETA)
    guessed = rates.find(cell(8, 1024), THETA, 0.5 * plain.rate_rps)
    assert guessed.crossing_rps == pytest.approx(plain.crossing_rps, rel=0.03)  # p95 of 200 is no smooth curve


def test_a_target_that_no_rate_meets():
    rates = surface("ttft_p95=1ms")
    found = rates.find(cell(8, 1024), THETA)
    trial = rates.trial(found)
    assert trial.highest_rate.rate_rps == 0
    assert trial.highest_rate.bound_by == "ttft_p95=1ms"
    assert trial.attainment.by_target[0].value_s > 0.001


def test_without_a_tight_target_the_capacity_ends_it():
    rates = surface("ttft_p95=10min", num_requests=60)
    found = rates.find(cell(8, 1024), THETA)
    assert found.bound_by is None
    assert found.rate_rps == pytest.approx(rates.paced.capacity_rps(cell(8, 1024), THETA))
    assert rates.trial(found).highest_rate.bound_by == "capacity"


def test_near_is_counted_in_doublings():
    assert nearest(cell(64, 2048), [cell(128, 2048), cell(72, 8192)]) == cell(128, 2048)
    assert nearest(cell(64, 2048), []) is None


def test_each_cell_of_the_order_is_near_to_one_before_it():
    order = list(in_reach(cell(s, t) for s in (256, 64, 128) for t in (8192, 2048)))
    assert order[:3] == [cell(64, 2048), cell(128, 2048), cell(256, 2048)]
    assert nearest(order[3], order[:3]) == cell(64, 2048)
