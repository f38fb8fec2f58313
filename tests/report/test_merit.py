"""What the matrix of a rate or latency study shows."""

from io import StringIO

import pytest
from rich.console import Console

from maitre.records import HighestRate, Objective, Recommendation, ServerConfig, Study
from maitre.report import print_study
from maitre.report.merit import figure, gain_words, heading

RATE = Objective(kind="rate", targets=("ttft_p95=500ms",), own_rate_rps=2.5)


@pytest.fixture
def study(make_trial):
    def make(objective=RATE, rates=(8.0, 5.0), gain=0.6):
        trials = [
            make_trial(
                seqs, 2048, 1000, highest_rate=HighestRate(rate_rps=rate, bound_by="itl_p99=50ms", capacity_rps=9.0)
            )
            for seqs, rate in zip((64, 128), rates, strict=True)
        ]
        answer = Recommendation(
            recommended=trials[0].cell, baseline=trials[1].cell, worth_changing=True, gain=gain,
            gain_low=None if gain is None else gain / 2, gain_high=None if gain is None else 2 * gain, num_measured=0,
            measured_s=0, epsilon=0.02, delta=0.05, probability_within_epsilon=0.9, plateau=(trials[0].cell,),
            reason="because",
        )  # fmt: skip
        return Study(
            maitre_version="1", engine="simulated", gpu="G", workload_name="w", workload_source="s", num_requests=10,
            server=ServerConfig(model="m", max_model_len=8192, max_num_seqs=128, max_num_batched_tokens=2048),
            total_tokens=100, open_loop=True, objective=objective, calibration="c", cells=trials,
            recommended=answer.recommended, recommendation=answer,
        )  # fmt: skip

    return make


def printed(study):
    console = Console(width=150, record=True, file=StringIO())
    print_study(study, console)
    return console.export_text()


def test_a_rate_study_shows_rates_and_what_ends_them(study):
    text = printed(study())
    assert "highest rate in requests/s that holds ttft_p95=500ms" in text
    assert "★≈ 8i" in text
    assert "● 5i" in text
    assert "i inter-token" in text
    assert "the workload's own times, 2.5 requests/s, made faster or slower" in text
    assert "against 128x2048: highest rate +60.0 % (+30.0 to +120.0 %)" in text


def test_without_own_times_they_are_poisson(study):
    assert "a Poisson process at each rate" in printed(study(Objective(kind="rate", targets=("ttft_p95=500ms",))))


def test_a_cell_without_a_rate_shows_zero(study):
    text = printed(study(rates=(8.0, 0.0), gain=None))
    assert "● 0i" in text
    assert "no gain to count, since it holds the targets at no rate" in text


def test_a_latency_study_shows_seconds_and_a_lower_latency_as_less(study):
    latency = study(Objective(kind="latency", own_rate_rps=2.5), gain=0.25)
    assert heading(latency.objective) == "e2e_p95 in seconds"
    assert figure(latency.objective, latency.cells[0]) == "0.05s"
    assert gain_words(latency).startswith("against 128x2048: e2e_p95 -20.0 % (-33.3 to -11.1 %)")
    assert "requests come at the workload's own times, 2.5 a second" in printed(latency)
