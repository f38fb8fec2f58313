"""A run is looked at once a second: enough ends it, and so does a server that stands still."""

import numpy as np
import pytest

from maitre.recording import StepRecord
from maitre.trial.load import LoadProgress
from maitre.trial.run_watch import RunWatch


class Run:
    """A reader and a clock for a run that goes as it is told."""

    def __init__(self):
        self.now_s, self.num_steps, self.num_reads = 0.0, 0, 0

    def read(self):
        self.num_reads += 1
        ends = np.arange(1.0, self.num_steps + 1)
        return StepRecord({"output_end_s": ends}) if self.num_steps else None

    def goes_on(self, watching, seconds, *, steps=0, sent=8, done=0):
        """Progress four times a second; whether the run was ended."""
        for _ in range(int(4 * seconds)):
            self.now_s += 0.25
            self.num_steps += steps
            if watching(LoadProgress(10, sent, done, 0, self.now_s)):
                return True
        return False


@pytest.fixture
def run():
    return Run()


@pytest.fixture
def watched(run):
    def watched(watch=None, stall_timeout_s=30.0):
        return RunWatch(run, watch, stall_timeout_s, clock=lambda: run.now_s)

    return watched


def test_steps_are_shown_once_a_second_if_there_are_new_ones(run, watched):
    seen = []
    watching = watched(lambda steps: bool(seen.append(steps.num_steps)))
    assert not run.goes_on(watching, 3, steps=1)
    assert not run.goes_on(watching, 5)
    assert not run.goes_on(watching, 1, steps=2)
    assert seen == [4, 8, 12, 20]
    assert run.num_reads == 9


def test_enough_ends_the_run_and_the_steps_are_those_of_that_look(run, watched):
    watching = watched(lambda steps: steps.num_steps >= 8)
    assert run.goes_on(watching, 10, steps=1)
    assert run.goes_on(watching, 10, steps=1)  # until the load has ended
    assert (watching.is_enough, watching.is_stalled) == (True, False)
    assert watching.steps.num_steps == 8


def test_after_the_last_answer_nobody_is_asked(run, watched):
    watching = watched(lambda steps: True)
    assert not run.goes_on(watching, 2, steps=1, sent=10, done=10)


def test_no_step_while_requests_are_under_way_is_a_stall(run, watched):
    watching = watched(stall_timeout_s=5)
    assert not run.goes_on(watching, 20, steps=1)
    assert run.goes_on(watching, 6)
    assert (watching.is_enough, watching.is_stalled) == (False, True)


def test_a_server_that_never_began_stands_still_too(run, watched):
    assert run.goes_on(watched(stall_timeout_s=5), 6)


def test_nobody_under_way_is_no_stall(run, watched):
    watching = watched(stall_timeout_s=5)
    assert not run.goes_on(watching, 20, sent=4, done=4)
    assert not run.goes_on(watching, 4, sent=5, done=4)
    assert run.goes_on(watching, 2, sent=5, done=4)


def test_answers_without_steps_are_a_sign_of_life(run, watched):
    watching = watched(stall_timeout_s=5)
    for done in range(8):
        assert not run.goes_on(watching, 3, done=done)
