"""Logs of gateways: LiteLLM's rows, OpenAI-style access logs and batch results."""

import json
from pathlib import Path

import pytest

from maitre.cli import main
from maitre.workload import NoRequestsError, load_workload
from maitre.workload.row_rules import UNCOUNTED_STREAM

SPEND_ROW = {
    "request_id": "r1",
    "call_type": "acompletion",
    "model": "qwen",
    "prompt_tokens": 412,
    "completion_tokens": 87,
    "total_tokens": 499,
    "startTime": "2026-05-01T12:00:00.000000+00:00",
    "endTime": "2026-05-01T12:00:02.500000+00:00",
    "completionStartTime": "2026-05-01T12:00:00.300000+00:00",
    "cache_hit": "False",
    "status": "success",
    "metadata": {"user_api_key": "x", "usage_object": {"prompt_tokens": 412}},
}


def rows(*changes):
    return [SPEND_ROW | {"request_id": f"r{number}"} | change for number, change in enumerate(changes)]


def load(tmp_path: Path, content: str, name: str = "log.json"):
    path = tmp_path / name
    path.write_text(content)
    return load_workload(str(path))


def as_csv(records):
    lines = [",".join(records[0])]
    for record in records:
        values = (json.dumps(v) if isinstance(v, dict) else "" if v is None else str(v) for v in record.values())
        lines.append(",".join('"' + value.replace('"', '""') + '"' for value in values))
    return "\n".join(lines)


@pytest.mark.parametrize(
    "write",
    [
        json.dumps,
        lambda records: json.dumps({"data": records, "total": len(records), "page": 1, "total_pages": 1}),
        lambda records: json.dumps({"data": records, "total": len(records)}, indent=1),
        lambda records: "\n".join(map(json.dumps, records)),
        as_csv,
    ],
    ids=["array", "page", "indented", "lines", "csv"],
)
def test_spend_logs_are_read_and_what_never_reached_the_engine_is_dropped(tmp_path: Path, write):
    records = rows(
        {},
        {"cache_hit": "True"},
        {"status": "failure", "completion_tokens": 0},
        {"call_type": "aembedding", "completion_tokens": 0},
        {"startTime": "2026-05-01T12:00:01+00:00", "prompt_tokens": 20},
        {"request_id": "r0"},
        {"completion_tokens": None},
    )
    workload = load(tmp_path, write(records))
    assert workload.prompt_tokens.tolist() == [412, 20]
    assert workload.arrival_s.tolist() == [0, 1]
    assert workload.latency_s.tolist() == [2.5, 1.5]
    assert "LiteLLM log" in workload.source
    assert workload.num_dropped == {
        "answered from the gateway's cache": 1,
        "failed call": 1,
        "no text generation": 1,
        "copy of a row with the same request_id": 1,
        "output_tokens missing": 1,
    }


def test_logged_payloads_have_epoch_times_and_a_response_time(tmp_path: Path):
    payload = {
        "id": "chatcmpl-1",
        "call_type": "acompletion",
        "stream": True,
        "status": "success",
        "cache_hit": None,
        "startTime": 1777000000.25,
        "endTime": 1777000002.75,
        "completionStartTime": 1777000000.5,
        "response_time": 2.5,
        "prompt_tokens": 412,
        "completion_tokens": 87,
        "hidden_params": {"response_cost": 0.1},
        "messages": [{"role": "user", "content": "secret"}],
        "response": {"usage": {"prompt_tokens": 412, "completion_tokens": 87}},
    }
    later = payload | {"startTime": 1777000001.25, "cache_hit": True}
    workload = load(tmp_path, "\n".join(map(json.dumps, (payload, later))))
    assert workload.prompt_tokens.tolist() == [412]
    assert workload.latency_s.tolist() == [2.5]
    assert workload.num_dropped == {"answered from the gateway's cache": 1}
    assert "secret" not in workload.model_dump_json()


def test_streamed_answers_that_nobody_counted_are_no_short_ones(tmp_path: Path):
    uncounted = {"completion_tokens": 0, "stream": True}
    workload = load(tmp_path, json.dumps(rows({"stream": True}, uncounted, uncounted)))
    assert workload.num_dropped == {UNCOUNTED_STREAM: 2}
    with pytest.raises(NoRequestsError) as caught:
        load(tmp_path, json.dumps(rows(uncounted)))
    assert "include_usage" in caught.value.hint


@pytest.mark.parametrize(("num_uncounted", "is_told"), [(1, False), (3, True)])
def test_people_are_told_when_too_many_answers_were_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, num_uncounted: int, is_told: bool
):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(rows(*[{"stream": True, "completion_tokens": 0}] * num_uncounted, *[{}] * 30)))
    with pytest.raises(SystemExit):
        main(["profile", str(path)])
    assert ("include_usage" in capsys.readouterr().out) == is_told


ACCESS = {
    "time": "2026-05-01T12:00:00Z",
    "method": "POST",
    "path": "/v1/chat/completions",
    "status": 200,
    "latency_ms": 1500,
    "request": {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]},
    "response": {"id": "c1", "object": "chat.completion", "usage": {"prompt_tokens": 30, "completion_tokens": 9}},
}


def test_access_logs_drop_failures_and_ignore_what_is_no_model_call(tmp_path: Path):
    records = [
        ACCESS,
        ACCESS | {"status": 429, "response": {"error": {"message": "slow down"}}},
        ACCESS | {"path": "/v1/embeddings", "response": {"usage": {"prompt_tokens": 8}}},
        ACCESS | {"path": "/health", "response": {}},
        ACCESS | {"path": "/v1/models?limit=1", "response": {}},
        ACCESS | {"response": {"usage": None}},
    ]
    workload = load(tmp_path, "\n".join(map(json.dumps, records)))
    assert workload.prompt_tokens.tolist() == [30]
    assert workload.latency_s.tolist() == [1.5]
    assert workload.num_dropped == {"failed call": 1, "no text generation": 1, "prompt_tokens missing": 1}


def test_a_retry_under_the_same_id_counts_where_the_first_try_failed(tmp_path: Path):
    records = rows({"status": "failure"}, {"request_id": "r0"}, {"request_id": "r0"})
    workload = load(tmp_path, json.dumps(records))
    assert workload.num_requests == 1
    assert workload.num_dropped == {"failed call": 1, "copy of a row with the same request_id": 1}


@pytest.mark.parametrize(
    "path",
    ["https://scores.example/v1/chat/completions", "/v1beta/models/gemini:generateContent", "/models/qwen/chat", None],
)
def test_routes_that_only_look_like_others_are_model_calls(tmp_path: Path, path: str | None):
    assert load(tmp_path, json.dumps(ACCESS | {"path": path})).num_requests == 1


def test_results_of_the_batch_api_are_read(tmp_path: Path):
    good = {
        "id": "b1",
        "custom_id": "1",
        "response": {
            "status_code": 200,
            "body": {"created": 1777000000, "usage": {"prompt_tokens": 30, "completion_tokens": 9}},
        },
        "error": None,
    }
    bad = {"id": "b2", "custom_id": "2", "response": {"status_code": 400, "body": {}}, "error": None}
    expired = {"id": "b3", "custom_id": "3", "response": None, "error": {"code": "expired", "message": "too late"}}
    workload = load(tmp_path, "\n".join(map(json.dumps, (good, bad, expired))))
    assert workload.prompt_tokens.tolist() == [30]
    assert workload.num_dropped == {"failed call": 2}


def test_the_responses_api_may_end_incomplete_and_is_still_a_request(tmp_path: Path):
    row = {"created_at": 1777000000, "status": "incomplete", "usage": {"input_tokens": 30, "output_tokens": 9}}
    workload = load(tmp_path, json.dumps(row))
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([30], [9])


def test_a_gateway_that_writes_null_for_unknown_counts(tmp_path: Path):
    row = {"start_time": "2026-05-01T12:00:00Z", "duration": 2500, "response_code": 200}
    counts = {"gen_ai.usage.input_tokens": 30, "gen_ai.usage.output_tokens": 9}
    unknown = dict.fromkeys(counts)
    workload = load(tmp_path, "\n".join(json.dumps(row | count) for count in (counts, unknown)))
    assert workload.num_requests == 1
    assert workload.num_dropped == {"prompt_tokens missing": 1}
