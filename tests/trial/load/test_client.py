"""Sending a plan to a real server: what arrives, when, how many at a time, and what the client sees."""

import ctypes
import json
import threading
import time

import numpy as np
import pytest

from maitre.trial.load import drive


def send(plan, server, **options):
    return drive(plan, server.url, "tiny", **{"timeout_s": 20} | options)


def test_every_request_arrives_as_planned(serving, make_load):
    plan = make_load(20)
    with serving() as server:
        result = send(plan, server, api_key="secret")
    assert [outcome.error for outcome in result.outcomes] == [""] * 20
    assert server.bodies == {r.index: json.loads(plan.body(r, "tiny")) for r in plan.requests}
    assert server.headers[5]["X-Request-Id"] == "maitre-3-5"
    assert server.headers[5]["Authorization"] == "Bearer secret"
    assert [(o.index, o.status, o.num_tokens) for o in result.outcomes] == [(index, 200, 4) for index in range(20)]
    assert result.num_tokens == 80


def test_the_address_may_end_in_v1(serving, make_load):
    with serving() as server:
        assert drive(make_load(1), server.url + "/v1/", "tiny", timeout_s=5).num_tokens == 4


def test_without_streaming_there_is_a_last_token_but_no_first(serving, make_load):
    with serving(first_token_s=0.05) as server:
        result = send(make_load(3), server)
    assert [(o.first_token_s, o.ttft_s, o.gaps_s) for o in result.outcomes] == [(None, None, None)] * 3
    assert result.e2e_s.min() >= 0.05
    assert len(result.ttft_s) == len(result.gaps_s) == 0
    assert result.duration_s == max(o.last_token_s for o in result.outcomes)


def test_token_gaps_are_seen_as_the_server_makes_them(serving, make_load):
    with serving(gap_s=0.03, first_token_s=0.2) as server:
        result = send(make_load(8, output_tokens=20, is_streaming=True), server)
    assert result.gaps_s.shape == (8 * 19,)
    assert np.median(result.gaps_s) == pytest.approx(0.03, abs=0.01)
    assert 0.2 <= np.median(result.ttft_s) < 1
    assert np.all(result.e2e_s >= result.ttft_s + 19 * 0.03 - 0.02)


def test_tokens_that_share_an_event_are_counted_by_the_server(serving, make_load):
    with serving(tokens_per_event=2) as server:
        (outcome,) = send(make_load(1, output_tokens=10, is_streaming=True), server).outcomes
    assert (outcome.error_kind, outcome.num_tokens, len(outcome.gaps_s), outcome.num_merged_tokens) == (None, 10, 4, 5)


def test_a_closed_loop_keeps_its_concurrency_and_never_exceeds_it(serving, make_load):
    with serving(first_token_s=0.05) as server:
        result = send(make_load(30, max_concurrency=5), server)
    assert server.most_running == 5
    assert len(result.completed) == 30
    assert [o.intended_s for o in result.outcomes[:5]] == [0.0] * 5
    assert min(o.intended_s for o in result.outcomes[5:]) >= 0.05


def test_without_a_limit_all_requests_are_there_at_once(serving, make_load):
    with serving(first_token_s=1.0) as server:
        result = send(make_load(100), server)
    assert server.most_running == 100
    assert {o.intended_s for o in result.outcomes} == {0.0}


def test_an_open_loop_sends_on_time_however_slow_the_server_is(serving, make_load):
    arrivals = tuple(0.02 * index for index in range(25))
    with serving(first_token_s=1.0) as server:
        result = send(make_load(25, arrival_s=arrivals), server)
        received = [server.received_s[index] - result.start_s for index in range(25)]
    assert [o.intended_s for o in result.outcomes] == list(arrivals)
    assert server.most_running == 25  # nobody waited for an answer
    assert np.all(result.send_delay_s >= 0)
    assert np.median(np.array(received) - arrivals) < 0.4  # far from the 1 s that an answer takes


def test_latencies_count_from_the_intended_time_when_the_client_itself_is_late(serving, make_load):
    plan = make_load(10, arrival_s=(0.0,) * 10, rate_scale=2.0)
    with serving(first_token_s=0.05) as server:
        result = send(plan, server)
    late = np.array([o.last_token_s for o in result.outcomes])
    assert np.array_equal(result.e2e_s, late)
    assert np.all(result.send_delay_s > 0)  # ten requests cannot leave in the same instant


def test_a_faster_rate_brings_arrivals_closer(serving, make_load):
    with serving() as server:
        result = send(make_load(3, arrival_s=(0.0, 0.4, 0.8), rate_scale=4.0), server)
    assert [o.intended_s for o in result.outcomes] == [0.0, 0.1, 0.2]


def test_progress_is_told_until_all_is_done(serving, make_load):
    told = []
    with serving(first_token_s=0.3, faults={2: "rejected"}) as server:
        send(make_load(6, max_concurrency=3), server, on_progress=told.append)
    assert len(told) >= 2
    assert (told[-1].num_requests, told[-1].num_done, told[-1].num_failed) == (6, 6, 1)
    assert told[-1].elapsed_s > 0.3


def test_the_callers_exception_ends_the_run(serving, make_load):
    def stop(progress):
        raise KeyboardInterrupt

    with serving(first_token_s=30) as server, pytest.raises(KeyboardInterrupt):
        send(make_load(3), server, on_progress=stop)


def test_the_clients_own_condition_is_in_the_result(serving, make_load):
    with serving(first_token_s=0.3) as server:
        health = send(make_load(1), server).health
    assert health.num_processes == 1
    assert 0 < health.cpu_share < 1.5
    assert 0 <= health.lag_p50_s <= health.lag_p99_s <= health.lag_max_s


def test_a_client_that_is_held_up_is_spoiled(serving, make_load):
    hold_all_threads = ctypes.PyDLL(None).usleep  # keeps the interpreter's lock
    with serving(first_token_s=0.6) as server:
        result = send(make_load(1), server, on_progress=lambda progress: hold_all_threads(300_000) > 0)
    assert result.health.is_spoiled
    assert "event loop" in result.health.spoiled_by


def test_whoever_is_told_of_the_progress_does_not_hold_up_the_client(serving, make_load):
    threads = []
    with serving(first_token_s=1.0) as server:
        result = send(make_load(1), server, on_progress=lambda progress: threads.append(threading.current_thread()))
    assert threading.main_thread() not in threads[:-1]
    assert threads[-1] == threading.main_thread()  # when all is over
    assert not result.cut_short


def test_a_run_that_has_shown_enough_drops_what_is_under_way(serving, make_load):
    told = []

    def watch(progress):
        told.append(progress)
        return progress.num_done >= 4

    slow = dict.fromkeys(range(4, 30), "hang")
    with serving(faults=slow) as server:
        result = send(make_load(40, max_concurrency=20), server, on_progress=watch)
        while server.num_running:
            time.sleep(0.01)
    assert result.cut_short
    assert [outcome.index for outcome in result.outcomes] == [0, 1, 2, 3]
    assert server.num_dropped == 20
    assert (told[-1].num_requests, told[-1].num_sent, told[-1].num_done) == (40, 24, 4)


def test_enough_with_the_last_answer_is_no_cut(serving, make_load):
    with serving(first_token_s=0.4) as server:
        result = send(make_load(3), server, on_progress=lambda progress: progress.num_done == 3)
    assert not result.cut_short
    assert len(result.completed) == 3
