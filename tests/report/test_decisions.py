"""Why each run was made, and the last word on the gain, as people read them."""

import io

import pytest
from rich.console import Console

from maitre.records import Cell, Confirmation, Decision, DriftLoss
from maitre.report.decisions import confirmation_words, decisions_table
from maitre.report.drift import drift_table

NEW, OLD = Cell(max_num_seqs=64, max_num_batched_tokens=8192), Cell(max_num_seqs=256, max_num_batched_tokens=8192)


def shown(table):
    stream = io.StringIO()
    Console(file=stream, width=120).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.fixture
def decisions():
    facts = {"leader": NEW, "probability": 0.9}
    return [
        Decision(**OLD.model_dump(), reason="the present setting", expected_s=None, measured_s=12.94, **facts),
        Decision(**NEW.model_dump(), reason="leads", expected_s=11.0, measured_s=3.02, cut_short=True, **facts),
        Decision(**NEW.model_dump(), reason="leads", expected_s=11.0, measured_s=0.0, failed="oom-sampler", **facts),
    ]


def test_each_run_says_what_came_what_was_expected_and_who_leads(decisions):
    lines = shown(decisions_table(decisions))
    assert lines[1].split() == ["1", "256x8192", "12.9", "s", "64x8192", "90%", "the", "present", "setting"]
    assert lines[2].split()[2:8] == ["3.0", "s,", "cut", "short", "11.0", "s"]
    assert "failed: oom-sampler" in lines[3]


@pytest.mark.parametrize(("engine", "where"), [("restart", "on fresh starts"), ("live", "on one server")])
def test_the_confirmation_says_where_it_ran_and_how_sure_it_is(engine, where):
    words = confirmation_words(
        Confirmation(
            engine=engine, recommended=NEW, baseline=OLD, recommended_s=(10, 10), baseline_s=(11, 11),
            gain=0.1, gain_low=0.085, gain_high=0.115,
        )
    )  # fmt: skip
    assert words == f"confirmed {where}, 2 runs of each in turn: 64x8192 against 256x8192 +10.0 % (+8.5 to +11.5 %)"


def test_the_most_robust_cell_comes_first():
    losses = [
        DriftLoss(**OLD.model_dump(), by_change={"longer prompts": 0.2, "smaller pool": 0.01}, worst=0.2),
        DriftLoss(**NEW.model_dump(), by_change={"longer prompts": 0.0, "smaller pool": 0.02}, worst=0.02),
    ]
    lines = shown(drift_table(losses))
    assert lines[1].split() == ["64x8192", "0.0", "%", "2.0", "%"]
    assert lines[2].split() == ["256x8192", "20.0", "%", "1.0", "%"]
