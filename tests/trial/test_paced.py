"""Runs at any rate: the same requests every time, and a capacity that no run may pass for long."""

import numpy as np
import pytest

from maitre.calibration import shipped_calibrations
from maitre.records import Cell, ServerConfig
from maitre.trial.paced import PacedSurface
from maitre.workload import load_workload

STEP_TIME = shipped_calibrations()[0].step_time
THETA = STEP_TIME.coefficients
SERVER = ServerConfig(model="m", max_model_len=8192, max_num_seqs=8, max_num_batched_tokens=512)
WORKLOAD = load_workload("lognormal:100:0.5:40:0.5", num_requests=120)
SMALL = Cell(max_num_seqs=8, max_num_batched_tokens=512)
LARGE = Cell(max_num_seqs=64, max_num_batched_tokens=512)


def paced(workload=WORKLOAD, blocks=4000, **options):
    return PacedSurface(workload, SERVER, STEP_TIME, lambda _: blocks, **options)


def test_requests_come_at_the_rate_that_was_asked_for():
    run = paced().run(SMALL, THETA, 5.0)
    assert np.diff(run.arrival_s).mean() == pytest.approx(1 / 5)
    assert not run.is_burst
    assert run.output_tokens.tolist() == WORKLOAD.output_tokens.tolist()


def test_two_cells_and_two_rates_see_the_same_pattern():
    surface = paced()
    slow, fast, other = surface.run(SMALL, THETA, 2.0), surface.run(SMALL, THETA, 4.0), surface.run(LARGE, THETA, 4.0)
    assert fast.arrival_s == pytest.approx(slow.arrival_s / 2)
    assert other.arrival_s.tolist() == fast.arrival_s.tolist()


def test_latencies_grow_with_the_rate_and_are_least_alone():
    surface = paced()
    alone = surface.run_alone(SMALL, THETA)
    stays = [
        np.mean(run.last_token_s - run.arrival_s)
        for run in (alone, *(surface.run(SMALL, THETA, r) for r in (5.0, 20.0)))
    ]
    assert stays == sorted(stays)
    assert alone.num_running.max() == 1


def test_a_request_alone_is_not_waiting_for_the_one_before():
    alone = paced().run_alone(SMALL, THETA)
    assert (alone.first_scheduled_s == alone.arrival_s).all()
    assert (alone.first_token_s - alone.arrival_s).max() < 0.1


def test_more_slots_have_more_capacity_up_to_the_pool():
    surface = paced()
    few, many = surface.capacity_rps(SMALL, THETA), surface.capacity_rps(LARGE, THETA)
    assert many > 2 * few
    assert paced(blocks=60).capacity_rps(LARGE, THETA) < many / 2


def test_a_queue_grows_above_the_capacity_and_not_below():
    surface = paced(load_workload("lognormal:100:0.5:40:0.5", num_requests=600))
    capacity = surface.capacity_rps(SMALL, THETA)

    def late_wait_s(share):
        run = surface.run(SMALL, THETA, share * capacity)
        return float(np.mean((run.first_scheduled_s - run.arrival_s)[-60:]))

    assert late_wait_s(0.8) < 1
    assert late_wait_s(1.2) > 3


def test_capacity_is_inverse_to_the_length_of_steps():
    surface = paced()
    assert surface.capacity_rps(SMALL, 2 * THETA) == pytest.approx(surface.capacity_rps(SMALL, THETA) / 2)


def test_shares_of_time_add_up_to_one():
    shares = paced().time_shares(SMALL, THETA, 5.0)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > 0.5  # few requests at a time: reading the weights is most of it
