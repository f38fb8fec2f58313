"""The simulator is believed where it should be: metrics of vLLM 0.32.0 on an H200, its dials set wrongly on purpose.

The windows last a minute (`benchmarks/served_conditions.py`), the calibrations are those that ship.
"""

import gzip
from pathlib import Path

import pytest

from maitre.errors import InputError
from maitre.gpus import find_gpu
from maitre.models import load_model
from maitre.records import Cell, ServerConfig
from maitre.setup import Setup
from maitre.verify.deployment import from_series
from maitre.verify.evidence import gather
from maitre.verify.foresight.credibility import ObservedFigures
from maitre.verify.foresight.expectation import expect
from maitre.verify.foresight.observed_traffic import observed_traffic
from maitre.verify.foresight.turn import known_server
from maitre.verify.load import total_in_flight
from maitre.verify.sources.saved_scrapes import read_dumps

SERVED = Path(__file__).parents[2] / "data" / "served_conditions"


def cell(seqs, tokens):
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def expected(model, condition, present, *candidates):
    content = gzip.decompress((SERVED / model / f"{condition}.prom.gz").read_bytes())
    series = read_dumps([(condition, [content])]).series
    deployment = from_series(series)
    evidence = gather(series, deployment)
    server = ServerConfig(model=model, vllm_version="0.32.0", max_model_len=32_768, **present.model_dump())
    setup = Setup(server, load_model(model), find_gpu("H200"), deployment.num_gpu_blocks)
    traffic = observed_traffic(evidence.whole, total_in_flight(evidence))
    return traffic, expect(traffic, known_server(setup), ObservedFigures.of(evidence.whole), candidates)


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen2.5-14b"])
@pytest.mark.parametrize(
    ("condition", "present", "loop"),
    [
        ("client-limited", cell(256, 8192), "closed"),
        ("defaults-suffice", cell(256, 8192), "open"),
        ("seq-capped", cell(8, 8192), "open"),
        ("two-modes", cell(256, 8192), "open"),
    ],
)
def test_the_present_setting_comes_out_as_it_was_observed(model, condition, present, loop):
    traffic, found = expected(model, condition, present)
    assert traffic.loop == loop
    assert not found.withheld
    assert found.credibility.scale == pytest.approx(1, abs=0.08)
    assert all(check.holds for check in found.credibility.checks)
    for check in found.credibility.checks:
        if check.name in {"running", "kv_usage"}:
            assert check.expected == pytest.approx(check.observed, rel=0.2)


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen2.5-14b"])
def test_eight_slots_are_too_few_and_eight_times_as_many_are_enough(model):
    traffic, found = expected(model, "seq-capped", cell(8, 8192), cell(64, 8192))
    assert not found.figures.keeps_up
    (more,) = found.candidates
    assert more.figures.keeps_up
    assert more.figures.requests_per_s == pytest.approx(traffic.arrival_rps)
    assert more.changes["capacity_rps"].low > 1.5


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen2.5-14b"])
def test_long_prompts_between_answers_are_cut_by_a_smaller_budget(model):
    _, found = expected(model, "two-modes", cell(256, 8192), cell(256, 2048))
    assert found.candidates[0].changes["itl_p99_s"].high < 0.95


def test_steps_that_were_never_measured_are_not_believed():
    """A budget of 256 tokens: the steps of the 14B model take 1.7 times as long as its calibration says."""
    _, found = expected("qwen2.5-14b", "raise-token-budget", cell(256, 256), cell(256, 8192))
    assert "its figures are not used" in found.withheld
    assert found.candidates == ()


def test_an_idle_server_has_no_traffic():
    with pytest.raises(InputError, match="how many requests"):
        expected("qwen2.5-7b", "idle", cell(256, 8192))
