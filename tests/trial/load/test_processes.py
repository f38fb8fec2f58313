"""Several processes behave as one."""

import multiprocessing
import os
import signal
import threading

import pytest

from maitre.errors import SystemFailure
from maitre.trial.load import drive_in_processes


def test_two_processes_send_every_request_once_from_one_start(serving, make_load):
    arrivals = tuple(0.02 * index for index in range(20))
    told = []
    with serving(gap_s=0.02, faults={3: "rejected"}) as server:
        plan = make_load(20, arrival_s=arrivals, is_streaming=True)
        result = drive_in_processes(
            plan, server.url, "tiny", num_processes=2, timeout_s=20, on_progress=told.append
        )  # fmt: skip
        received = [server.received_s[index] - result.start_s for index in range(20)]
    assert [outcome.index for outcome in result.outcomes] == list(range(20))
    assert result.num_errors == {"rejected": 1}
    assert result.health.num_processes == 2
    assert sorted(received) == pytest.approx(arrivals, abs=0.5)
    assert (told[-1].num_requests, told[-1].num_done, told[-1].num_failed) == (20, 20, 1)


def test_enough_ends_all_children(serving, make_load):
    with serving(faults=dict.fromkeys(range(2, 8), "hang")) as server:
        result = drive_in_processes(
            make_load(8), server.url, "tiny", num_processes=2, timeout_s=90,
            on_progress=lambda progress: progress.num_done == 2,
        )  # fmt: skip
    assert result.cut_short
    assert [outcome.index for outcome in result.outcomes] == [0, 1]
    assert server.num_dropped == 6
    assert multiprocessing.active_children() == []


def test_an_interrupt_ends_all_children(serving, make_load):
    def interrupt(progress):
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()

    with serving(first_token_s=60) as server, pytest.raises(KeyboardInterrupt):
        drive_in_processes(
            make_load(4), server.url, "tiny", num_processes=2, timeout_s=90, on_progress=interrupt
        )  # fmt: skip
    assert multiprocessing.active_children() == []


def test_a_child_that_dies_is_a_failure(serving, make_load):
    def kill_one(progress):
        children = multiprocessing.active_children()
        os.kill(children[0].pid, signal.SIGKILL)

    with serving(first_token_s=60) as server, pytest.raises(SystemFailure, match="died"):
        drive_in_processes(
            make_load(4), server.url, "tiny", num_processes=2, timeout_s=90, on_progress=kill_one
        )  # fmt: skip
    assert multiprocessing.active_children() == []


def test_one_process_needs_no_child(serving, make_load):
    with serving() as server:
        result = drive_in_processes(make_load(2), server.url, "tiny", num_processes=1, timeout_s=5)
    assert result.health.num_processes == 1
    assert len(result.completed) == 2
