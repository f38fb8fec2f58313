"""Trace exports: the same model calls whatever the encoding, each call once."""

import json
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from maitre.errors import InputError
from maitre.workload import NoRequestsError, load_workload

START_NS = 1_777_000_000_000_000_000


def attribute(key, value):
    kind = {int: "intValue", float: "doubleValue", str: "stringValue"}[type(value)]
    return {"key": key, "value": {kind: str(value) if isinstance(value, int) else value}}


def span(number, attributes, parent=0, name="call", seconds=2.0, **fields):
    start_ns = START_NS + number * 10**9
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": f"{number:016x}",
        **({"parentSpanId": f"{parent:016x}"} if parent else {}),
        "name": name,
        "kind": 2,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + int(seconds * 1e9)),
        "attributes": [attribute(key, value) for key, value in attributes.items()],
        **fields,
    }


def usage(prompt, output, **more):
    return {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": output} | more


def export(*spans):
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def protobuf(document):
    """The same export as a protobuf message; its JSON form has base64 ids."""
    message = TracesData()
    for one in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        target = message.resource_spans.add().scope_spans.add().spans.add()
        target.trace_id, target.span_id = bytes.fromhex(one["traceId"]), bytes.fromhex(one["spanId"])
        target.parent_span_id = bytes.fromhex(one.get("parentSpanId", ""))
        target.name, target.kind = one["name"], one["kind"]
        target.start_time_unix_nano, target.end_time_unix_nano = (
            int(one["startTimeUnixNano"]),
            int(one["endTimeUnixNano"]),
        )
        for pair in one["attributes"]:
            added = target.attributes.add(key=pair["key"])
            if "intValue" in pair["value"]:
                added.value.int_value = int(pair["value"]["intValue"])
            else:
                added.value.string_value = pair["value"]["stringValue"]
    return message


def with_length(message):
    content = message.SerializeToString()
    return len(content).to_bytes(4, "big") + content


CALLS = export(
    span(1, usage(412, 87)),
    span(2, {"gen_ai.usage.prompt_tokens": 1000, "gen_ai.usage.completion_tokens": 30}, name="llm_request"),
    span(3, usage(20, 5, **{"gen_ai.operation.name": "chat"})),
)


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(CALLS),
        json.dumps(CALLS, indent=2),
        json.dumps([CALLS]),
        "\n".join(json.dumps(export(one)) for one in CALLS["resourceSpans"][0]["scopeSpans"][0]["spans"]) + "\n",
        json.dumps(CALLS).replace('"412"', "412").replace(f'"{START_NS + 10**9}"', str(START_NS + 10**9)),
        json.dumps(CALLS).replace("scopeSpans", "instrumentationLibrarySpans"),
        json.dumps(MessageToDict(protobuf(CALLS))),
        json.dumps(MessageToDict(protobuf(CALLS), preserving_proto_field_name=True)),
        protobuf(CALLS).SerializeToString(),
        with_length(protobuf(CALLS)),
        with_length(protobuf(export(span(1, usage(412, 87)))))
        + with_length(protobuf(export(*CALLS["resourceSpans"][0]["scopeSpans"][0]["spans"][1:]))),
    ],
    ids=["one", "indented", "list", "lines", "numbers", "older", "base64", "snake", "protobuf", "proto-1", "proto-2"],
)
def test_every_encoding_gives_the_same_calls(tmp_path: Path, content: str | bytes):
    path = tmp_path / "traces"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    workload = load_workload(str(path))
    assert workload.prompt_tokens.tolist() == [412, 1000, 20]
    assert workload.output_tokens.tolist() == [87, 30, 5]
    assert workload.arrival_s.tolist() == pytest.approx([0, 1, 2], abs=1e-5)
    assert workload.latency_s.tolist() == pytest.approx([2, 2, 2], abs=1e-5)
    assert workload.num_dropped == {}


def load(tmp_path, *spans):
    path = tmp_path / "traces.json"
    path.write_text(json.dumps(export(*spans)))
    return load_workload(str(path))


@pytest.mark.parametrize(
    ("prompt", "output"),
    [
        ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
        ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"),
        ("llm.usage.prompt_tokens", "llm.usage.completion_tokens"),
        ("llm.token_count.prompt", "llm.token_count.completion"),
        ("ai.usage.promptTokens", "ai.usage.completionTokens"),
    ],
)
def test_old_and_new_names_are_read(tmp_path: Path, prompt: str, output: str):
    workload = load(tmp_path, span(1, {prompt: 7, output: 3}))
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([7], [3])


def test_the_newest_name_counts_where_a_span_has_several(tmp_path: Path):
    workload = load(tmp_path, span(1, usage(7, 3, **{"gen_ai.usage.prompt_tokens": 9})))
    assert workload.prompt_tokens.tolist() == [7]


def test_cached_tokens_are_part_of_the_prompt_already(tmp_path: Path):
    workload = load(tmp_path, span(1, usage(700, 3, **{"gen_ai.usage.cache_read.input_tokens": 600})))
    assert workload.prompt_tokens.tolist() == [700]


def test_agents_and_tools_count_as_nothing_and_embeddings_as_dropped(tmp_path: Path):
    workload = load(
        tmp_path,
        span(1, usage(900, 90, **{"gen_ai.operation.name": "invoke_agent"})),
        span(2, usage(400, 40, **{"gen_ai.operation.name": "chat"}), parent=1),
        span(3, {"gen_ai.operation.name": "execute_tool"}, parent=1),
        span(4, {}, name="GET /"),
        span(5, usage(50, 0, **{"gen_ai.operation.name": "embeddings"})),
    )
    assert workload.prompt_tokens.tolist() == [400]
    assert workload.num_dropped == {"no text generation": 1}


def test_a_call_seen_by_client_and_engine_counts_once(tmp_path: Path):
    workload = load(
        tmp_path,
        span(1, usage(410, 87, **{"gen_ai.operation.name": "chat"})),
        span(2, {}, parent=1, name="POST /v1/chat/completions"),
        span(
            3, {"gen_ai.usage.prompt_tokens": 412, "gen_ai.usage.completion_tokens": 87}, parent=2, name="llm_request"
        ),
    )
    assert workload.prompt_tokens.tolist() == [412]
    assert workload.num_dropped == {"wraps another call that is counted": 1}


def test_copies_failures_and_calls_without_usage_are_dropped_by_reason(tmp_path: Path):
    workload = load(
        tmp_path,
        span(1, usage(10, 5)),
        span(1, usage(10, 5)),
        span(2, usage(10, 5), status={"code": 2}),
        span(3, {"gen_ai.operation.name": "chat"}),
        span(4, {"gen_ai.usage.prompt_tokens": 10, "gen_ai.usage.completion_tokens": 0}, name="llm_request"),
    )
    assert workload.num_requests == 1
    assert workload.num_dropped == {
        "copy of a span": 1,
        "failed call": 1,
        "prompt_tokens missing": 1,
        "output_tokens zero": 1,
    }


def test_spans_that_are_their_own_parents_end(tmp_path: Path):
    with pytest.raises(NoRequestsError, match="wraps another call"):
        load(tmp_path, span(1, usage(1, 1), parent=2), span(2, usage(2, 2), parent=1))


def test_an_attribute_whose_key_is_no_text_is_passed_over(tmp_path: Path):
    call = span(1, usage(3, 4))
    call["attributes"].insert(0, {"key": ["gen_ai.usage.input_tokens"], "value": {"intValue": 9}})
    assert load(tmp_path, call).prompt_tokens.tolist() == [3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"resourceSpans": [{"scopeSpans"', "the JSON ends too early"),
        (b'{"resourceSpans": []}\n{"resourceSpans": [}\n', "line 2"),
        (b'{"resourceSpans": []}', "no spans"),
        (json.dumps(export(span(1, {}, name="GET /"))).encode(), "1 spans, but none is a model call"),
        (with_length(protobuf(CALLS))[:-7], "corrupt or truncated"),
        (protobuf(CALLS).SerializeToString()[:-7], "corrupt or truncated"),
        (b"\x0a\xff\xff\xff\xff\x0f\x00\x00", "corrupt or truncated"),
        (b"\x28\xb5\x2f\xfd\x00\x00", "zstd -d"),
    ],
)
def test_what_is_broken_or_no_trace_is_said(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "traces"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_workload(str(path))
    assert message in str(caught.value)


def test_the_spans_of_a_real_vllm_tell_what_was_asked_of_it():
    """Sent by vLLM 0.32.0 while `vllm bench serve` replayed 12 requests of these lengths, one every 0.2 s."""
    workload = load_workload(str(Path(__file__).parent / "data" / "vllm-0.32.0-spans.pb"))
    assert workload.prompt_tokens.tolist() == [142, 69, 125, 465, 672, 219, 504, 404, 627, 461, 239, 109]
    assert workload.output_tokens.tolist() == [11, 6, 9, 9, 8, 3, 2, 8, 2, 6, 11, 7]
    assert workload.arrival_s.tolist() == pytest.approx([0.2 * n for n in range(12)], abs=0.05)
    assert workload.latency_s.max() < 1
    assert workload.num_dropped == {}
