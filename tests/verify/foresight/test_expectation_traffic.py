"""The observed traffic as requests, and what it settles at."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from maitre.metric_series import Histogram
from maitre.verify.foresight.credibility import ObservedFigures
from maitre.verify.foresight.expectation import expect
from maitre.verify.foresight.observed_traffic import ObservedTraffic
from maitre.verify.foresight.steady_traffic import SteadyTraffic
from maitre.workload.joint_lengths import spearman

spec = importlib.util.spec_from_file_location("known_servers", Path(__file__).with_name("known_servers.py"))
known_servers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(known_servers)
bucketed, cell, known_server = known_servers.bucketed, known_servers.cell, known_servers.known_server


def traffic(prompt=(100, 300, 900), output=(20, 60, 200), rate_rps=2.0, in_flight=8.0, p95=None, hit_rate=0.0):
    lengths = (bucketed(np.repeat(values, 100)) for values in (prompt, output))
    return ObservedTraffic(*lengths, rate_rps, rate_rps, in_flight, p95, prefix_hit_rate=hit_rate)


def test_the_requests_have_the_observed_means():
    drawn = traffic().workload(600, 0, 4096)
    assert drawn.prompt_tokens.mean() == pytest.approx(1300 / 3, rel=0.01)
    assert drawn.output_tokens.mean() == pytest.approx(280 / 3, rel=0.01)


def test_lengths_go_together_as_far_as_they_are_told_to():
    wide = traffic(prompt=np.arange(50, 2000, 7), output=np.arange(10, 400, 3))
    apart, together = (wide.workload(2000, 0, 4096, length_correlation=c) for c in (0.0, 0.6))
    assert abs(spearman(apart.prompt_tokens, apart.output_tokens)) < 0.06
    assert spearman(together.prompt_tokens, together.output_tokens) == pytest.approx(0.58, abs=0.05)
    for name in ("prompt_tokens", "output_tokens"):
        assert sorted(getattr(apart, name)) == sorted(getattr(together, name))


def test_requests_that_go_together_stay_within_the_model_s_length():
    long = traffic(prompt=(900, 950), output=(100, 110), in_flight=2.0)
    drawn = long.workload(300, 0, 1024, length_correlation=0.9)
    assert (drawn.prompt_tokens + drawn.output_tokens).max() <= 1024


def test_the_cache_answers_the_share_that_was_observed():
    drawn = traffic(prompt=(400, 800, 1600), hit_rate=0.5).workload(300, 0, 4096)
    cached = sum(len(hashes) for hashes in drawn.prefix_hashes) * drawn.prefix_block_tokens
    assert cached / drawn.prompt_tokens.sum() == pytest.approx(0.5, abs=0.02)
    assert traffic(hit_rate=0.01).workload(300, 0, 4096).prefix_hashes is None


def test_bunches_let_more_requests_wait():
    known, busy = known_server(cell(8)), traffic(rate_rps=3.0)
    theta = known.calibration.step_time.coefficients
    rates = SteadyTraffic(busy, known, 0).figures(cell(8), theta).capacity_rps
    near = traffic(rate_rps=0.8 * rates)
    evenly, in_bunches = (
        np.mean(
            [SteadyTraffic(near, known, seed, arrival_shape=s).figures(cell(8), theta).waiting for seed in range(4)]
        )
        for s in (1.0, 0.3)
    )
    assert in_bunches > 1.5 * evenly


def test_answers_of_one_token_have_no_latency_between_tokens():
    found = expect(traffic(output=(1, 1, 1)), known_server(cell(8)), ObservedFigures(running=1.0), [cell(16)])
    assert found.figures.itl_mean_s is None
    assert found.figures.ttft_p50_s is not None
    assert "itl_mean_s" not in found.candidates[0].changes


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    prompt=st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    output=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    seqs=st.integers(1, 32),
    load=st.floats(0.05, 2.0),
    loop=st.sampled_from(["open", "closed", "backlog"]),
)
def test_whatever_comes_the_figures_make_sense(prompt, output, seqs, load, loop):
    known = known_server(cell(seqs, 2048), num_gpu_blocks=2000)
    theta = known.calibration.step_time.coefficients
    asked = traffic(prompt, output, in_flight=max(1.0, load * seqs))
    capacity_rps = SteadyTraffic(asked, known, 0, loop).figures(cell(seqs, 2048), theta).capacity_rps
    asked = traffic(prompt, output, rate_rps=load * capacity_rps, in_flight=max(1.0, load * seqs))
    found = SteadyTraffic(asked, known, 0, loop).figures(cell(seqs, 2048), theta)
    assert 0 < found.running < seqs + 1e-9
    assert 0 < found.kv_usage < 1 + 1e-9
    assert found.requests_per_s <= max(1.0, 1.01 * found.capacity_rps)
    assert found.preemptions_per_min >= 0
    assert loop != "open" or found.keeps_up == (load < 1)
    known_latencies = [v for name, v in found.model_dump().items() if name.endswith("_s") and v is not None]
    assert np.all(np.isfinite(known_latencies))
    assert min(known_latencies) >= 0


def test_counts_above_the_last_bound_are_requests_too():
    """The open bucket ends at the model's length."""
    lengths = Histogram(np.array([100.0, 1000.0, np.inf]), np.array([0.0, 50.0, 50.0]), 50 * 500 + 50 * 2000.0)
    outputs = bucketed(np.full(100, 20))
    drawn = ObservedTraffic(lengths, outputs, 1.0, 1.0, 2.0).workload(400, 0, 4096)
    assert drawn.prompt_tokens.max() > 1000
    assert drawn.prompt_tokens.mean() == pytest.approx(1250, rel=0.01)
