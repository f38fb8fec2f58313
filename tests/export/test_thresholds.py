"""Latency targets by a study: what it was asked for, or what its recommended cell shows."""

import pytest

from maitre.export import study_targets
from maitre.records import Cell, Objective, Percentiles, Recommendation, ServerConfig, Study

PICK = Cell(max_num_seqs=64, max_num_batched_tokens=8192)


@pytest.fixture
def make_study(make_trial):
    """A study of two cells that recommends the first."""

    def make(**changes):
        ttft = Percentiles(p50=0.1, p95=0.4, p99=0.6, max=1.0)
        answer = Recommendation(
            recommended=PICK, baseline=PICK, worth_changing=False, gain=None, gain_low=None, gain_high=None,
            num_measured=0, measured_s=0.0, epsilon=0.02, delta=0.1, probability_within_epsilon=None, plateau=(PICK,),
            reason="",
        )  # fmt: skip
        facts = {
            "maitre_version": "0", "engine": "simulated", "gpu": "x", "workload_name": "x", "workload_source": "x",
            "num_requests": 1, "total_tokens": 1, "calibration": "x", "recommended": PICK, "recommendation": answer,
            "server": ServerConfig(model="m", max_model_len=4096, max_num_seqs=64, max_num_batched_tokens=8192),
            "cells": (make_trial(64, 8192, 1000.0, 0.04, ttft_s=ttft), make_trial(256, 8192, 900.0, 0.2)),
        }  # fmt: skip
        return Study(**facts | changes)

    return make


def test_the_targets_that_the_study_was_asked_for(make_study):
    study = make_study(objective=Objective(kind="rate", targets=("ttft_p95=500ms", "itl_p99=50ms", "e2e_max=20s")))
    assert [str(target) for target in study_targets(study)] == ["ttft_p95=500ms", "itl_p99=50ms"]


def test_without_targets_what_the_recommended_cell_shows_and_half_as_much_again(make_study):
    assert [str(target) for target in study_targets(make_study(open_loop=True))] == ["itl_p99=60ms", "ttft_p95=600ms"]


def test_the_time_to_first_token_of_a_burst_is_no_target(make_study):
    assert [str(target) for target in study_targets(make_study(open_loop=False))] == ["itl_p99=60ms"]


def test_a_study_without_latencies_has_no_targets(make_study, make_trial):
    assert study_targets(make_study(cells=(make_trial(64, 8192, 1000.0, itl_s=None, ttft_s=None),))) == ()
