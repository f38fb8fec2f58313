"""The recommended setting and the present one in turn, after the search."""

import numpy as np
import pytest

from maitre.confirming import confirm
from maitre.records import Cell, FailedTrial, ServerConfig, Study
from maitre.search import recommend
from maitre.search.confirm import paired_gain
from maitre.trial import Measurement, TrialFailure

NEW, OLD = Cell(max_num_seqs=64, max_num_batched_tokens=8192), Cell(max_num_seqs=256, max_num_batched_tokens=8192)


class Server:
    """Takes prepared seconds for each run of a cell."""

    name = "restart"
    cells = None

    def __init__(self, make_trial, new_s, old_s, failing=None):
        self.measured = []
        self._make_trial = make_trial
        self._left = {NEW: list(new_s), OLD: list(old_s)}
        self._failing = failing

    def measure(self, cell, watch=None):
        self.measured.append(cell)
        if cell == self._failing:
            raise TrialFailure(FailedTrial(**cell.model_dump(), engine="restart", code="oom", message="no", remedy="x"))
        return Measurement(self.trial(cell, self._left[cell].pop(0)), None)

    def trial(self, cell, duration_s):
        return self._make_trial(*cell.model_dump().values(), 1e6 / duration_s, engine="restart", duration_s=duration_s)


@pytest.fixture
def study(make_trial):
    trials = [make_trial(*cell.model_dump().values(), speed, engine="live") for cell, speed in ((NEW, 112), (OLD, 100))]
    answer = recommend(trials, OLD, np.zeros((10, 2)), epsilon=0.02, delta=0.05)
    return Study(
        maitre_version="0", engine="live", server=ServerConfig(model="m", max_model_len=2048, **OLD.model_dump()),
        gpu="a GPU", workload_name="x", workload_source="x", num_requests=1, total_tokens=1, calibration="x",
        cells=trials, recommended=answer.recommended, recommendation=answer,
    )  # fmt: skip


@pytest.fixture
def server(make_trial):
    def server(new_s, old_s, **changes):
        return Server(make_trial, new_s, old_s, **changes)

    return server


def no_one(*_):
    """Listens to no run."""


def test_both_settings_run_in_turn_and_the_gain_is_theirs(study, server):
    engine = server([10.0, 10.05], [11.0, 11.1])
    confirmed = confirm(engine, study, [], no_one)
    assert engine.measured == [NEW, OLD, OLD, NEW]
    assert confirmed.recommended == NEW
    assert confirmed.recommendation.worth_changing
    assert confirmed.recommendation.gain == pytest.approx(0.102, abs=0.002)
    assert 0.085 < confirmed.recommendation.gain_low < confirmed.recommendation.gain_high < 0.12
    assert confirmed.confirmation.recommended_s == (10.0, 10.05)


def test_a_gain_that_vanishes_is_not_recommended(study, server):
    confirmed = confirm(server([10.0, 10.1], [10.0, 10.0]), study, [], no_one)
    assert confirmed.recommended == confirmed.recommendation.recommended == OLD
    assert not confirmed.recommendation.worth_changing
    assert "no significant gain" in confirmed.recommendation.reason


def test_while_it_is_open_whether_there_is_a_gain_more_pairs_run(study, server):
    engine = server([10.0, 10.0, 10.0, 10.0], [10.05, 10.05, 10.02, 10.03])
    confirmed = confirm(engine, study, [], no_one)
    assert len(engine.measured) == 8
    assert confirmed.recommended == OLD


def test_a_setting_that_fails_again_is_not_recommended(study, server):
    told = []
    confirmed = confirm(server([10.0], [11.0], failing=NEW), study, [], lambda *what: told.append(what))
    assert confirmed.recommended == OLD
    assert not confirmed.recommendation.worth_changing
    assert confirmed.findings[0].code == "unconfirmed-oom"
    assert len(told) == 1


def test_an_interrupted_confirmation_goes_on(study, server):
    engine = server([10.05], [11.1])
    finished = [engine.trial(NEW, 10.0), engine.trial(OLD, 11.0)]
    confirmed = confirm(engine, study, finished, no_one)
    assert engine.measured == [OLD, NEW]
    assert confirmed.confirmation.baseline_s == (11.0, 11.1)


def test_few_pairs_borrow_their_spread():
    gain, low, high = paired_gain([10.0], [11.0])
    assert gain == pytest.approx(0.1)
    assert high - low == pytest.approx(2 * 2.776 * 0.007 * 1.1, rel=0.02)  # t with 4 degrees of freedom
    wild_low, wild_high = paired_gain([10.0, 10.0], [10.0, 12.0])[1:]
    assert wild_low < 0 < wild_high
