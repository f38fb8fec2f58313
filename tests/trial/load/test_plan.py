"""What a plan sends, when, and how it is dealt to processes."""

import json

import pytest

from maitre.errors import UsageError
from maitre.records import Workload
from maitre.trial.load import count_processes, plan_load

WORKLOAD = Workload(
    name="w", source="test", prompt_tokens=[3, 1, 2], output_tokens=[5, 6, 7], arrival_s=[0, 1.5, 3]
)  # fmt: skip


def test_a_request_asks_for_exactly_its_output_length():
    plan = plan_load(WORKLOAD, 32_000, seed=1, run=2)
    body = json.loads(plan.body(plan.requests[1], "tiny"))
    assert body == {
        "model": "tiny",
        "prompt": plan.requests[1].prompt,
        "max_tokens": 6,
        "min_tokens": 6,
        "ignore_eos": True,
        "temperature": 0,
    }
    assert plan.request_id(plan.requests[1]) == "maitre-2-1"


def test_streaming_asks_for_the_servers_token_count():
    plan = plan_load(WORKLOAD, 32_000, seed=1, run=2, is_streaming=True)
    body = json.loads(plan.body(plan.requests[0], "tiny"))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_an_open_loop_keeps_the_arrivals_and_scales_their_rate():
    plan = plan_load(WORKLOAD, 32_000, seed=1, run=0, open_loop=True, rate_scale=2)
    assert [plan.intended_s(position) for position in range(3)] == [0, 0.75, 1.5]


def test_a_closed_loop_has_all_requests_at_hand():
    assert [plan_load(WORKLOAD, 32_000, seed=1, run=0).intended_s(position) for position in range(3)] == [0, 0, 0]


def test_dealing_keeps_every_request_its_time_and_the_total_concurrency(make_load):
    plan = make_load(7, arrival_s=tuple(map(float, range(7))))
    shares = plan.deal(3)
    pairs = [(r.index, at) for share in shares for r, at in zip(share.requests, share.arrival_s, strict=True)]
    assert sorted(pairs) == [(index, float(index)) for index in range(7)]
    assert [share.max_concurrency for share in make_load(7, max_concurrency=5).deal(3)] == [1, 2, 2]


@pytest.mark.parametrize(
    ("tokens_per_s", "options", "expected"),
    [
        (15_000, {"is_streaming": True}, 1),
        (15_001, {"is_streaming": True}, 2),
        (60_000, {"is_streaming": True, "max_concurrency": 1}, 1),
        (60_000, {}, 1),
        (0, {"is_streaming": True}, 1),
    ],
)
def test_more_processes_take_over_above_15000_streamed_tokens_a_second(
    make_load, monkeypatch, tokens_per_s, options, expected
):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert count_processes(make_load(100, **options), tokens_per_s) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"open_loop": True, "max_concurrency": 4}, "no limit"),
        ({"rate_scale": 0}, "rate of 0"),
        ({"max_concurrency": 0}, "0 requests at a time"),
    ],
)
def test_contradicting_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        plan_load(WORKLOAD, 32_000, seed=1, run=0, **options)


def test_an_open_loop_needs_arrival_times():
    with pytest.raises(UsageError, match="no arrival times"):
        plan_load(WORKLOAD.model_copy(update={"arrival_s": None}), 32_000, seed=1, run=0, open_loop=True)
