"""Times to first token: measured ones only, of every request or of none."""

import json

import numpy as np
import pytest

from maitre.workload import describe, load_workload
from maitre.workload.arrivals import every_nth, resampled

START_NS = 1_777_000_000_000_000_000


def load(tmp_path, content, name="log"):
    path = tmp_path / name
    path.write_text(content)
    return load_workload(str(path))


def litellm(number, first_s, end_s=2.5):
    return {
        "request_id": f"r{number}",
        "call_type": "acompletion",
        "prompt_tokens": 400,
        "completion_tokens": 80,
        "startTime": 1_777_000_000.0 + number,
        "endTime": 1_777_000_000.0 + number + end_s,
        "completionStartTime": None if first_s is None else 1_777_000_000.0 + number + first_s,
    }


def span(number, **attributes):
    kinds = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 20}
    start_ns = START_NS + number * 10**9
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": f"{number + 1:016x}",
        "name": "call",
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + 2 * 10**9),
        "attributes": [{"key": key, "value": {"intValue": str(value)}} for key, value in kinds.items()]
        + [{"key": key, "value": {"doubleValue": value}} for key, value in attributes.items()],
    }


def traces(*spans):
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})


def test_a_gateway_s_log_tells_when_the_first_token_came(tmp_path):
    lines = "\n".join(json.dumps(litellm(number, 0.25 * (number + 1))) for number in range(4))
    workload = load(tmp_path, lines)
    assert np.allclose(workload.ttft_s, [0.25, 0.5, 0.75, 1.0])
    described = describe(workload)
    assert described.ttft_s.p50 == pytest.approx(0.625)
    assert described.ttft_s.max == pytest.approx(1.0)


@pytest.mark.parametrize("first_s", [None, 2.5, 3.0, -1.0])
def test_an_answer_that_was_not_streamed_has_no_first_token_and_then_none_counts(tmp_path, first_s):
    lines = "\n".join(json.dumps(litellm(number, 0.25)) for number in range(3))
    workload = load(tmp_path, f"{lines}\n{json.dumps(litellm(9, first_s))}")
    assert workload.num_requests == 4
    assert workload.ttft_s is None
    assert describe(workload).ttft_s is None


@pytest.mark.parametrize("name", ["gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk"])
def test_spans_of_servers_and_of_clients_tell_it(tmp_path, name):
    workload = load(tmp_path, traces(span(0, **{name: 0.3}), span(1, **{name: 0.5})))
    assert workload.ttft_s.tolist() == [0.3, 0.5]
    assert load(tmp_path, traces(span(0, **{name: 0.3}), span(1))).ttft_s is None


def test_a_column_with_a_unit_is_taken_as_written(tmp_path):
    for heading, values in (("ttft_ms", (300, 500)), ("time_to_first_token_s", (0.3, 0.5)), ("ttft (ms)", (300, 500))):
        rows = "".join(f"10,20,{value}\n" for value in values)
        assert load(tmp_path, f"prompt_tokens,output_tokens,{heading}\n{rows}").ttft_s.tolist() == [0.3, 0.5]


def test_without_a_unit_the_latency_tells_it_or_it_is_unknown(tmp_path):
    head = "prompt_tokens,output_tokens,time_to_first_token"
    assert load(tmp_path, f"{head},latency_s\n10,20,300,2\n10,20,500,2\n").ttft_s.tolist() == [0.3, 0.5]
    assert load(tmp_path, f"{head},latency_s\n10,20,0.3,2\n10,20,0.5,2\n").ttft_s.tolist() == [0.3, 0.5]
    assert load(tmp_path, f"{head}\n10,20,0.3\n10,20,0.5\n").ttft_s is None


def test_they_follow_their_requests_into_order_and_are_left_behind_by_other_samples(tmp_path):
    workload = load(tmp_path, "timestamp,prompt_tokens,output_tokens,ttft_s\n9,1,2,0.9\n1,1,2,0.1\n5,1,2,0.5\n")
    assert workload.ttft_s.tolist() == [0.1, 0.5, 0.9]
    assert resampled(workload, 0).ttft_s is None
    assert every_nth(workload, 2).ttft_s is None
