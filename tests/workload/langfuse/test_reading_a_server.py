import json

import pytest

from maitre.errors import InputError, UnsupportedError

V2, V1 = "/api/public/v2/observations", "/api/public/observations"


def queries(langfuse, name):
    return [dict(query).get(name) for _, query in langfuse.asked]


def test_generations_become_requests_in_order_of_arrival(langfuse, read, make_call):
    langfuse.rows = [make_call(5, {"input": 30, "output": 7}), make_call(1.5, {"input": 10, "output": 5})]
    workload = read()
    assert workload.prompt_tokens.tolist() == [10, 30]
    assert workload.output_tokens.tolist() == [5, 7]
    assert workload.arrival_s.tolist() == [0, 3.5]
    assert workload.latency_s.tolist() == [2, 2]
    assert workload.num_dropped == {}
    assert workload.name == "127.0.0.1"
    assert "2026-11-01T00:00:00.000Z to 2026-11-08T00:00:00.000Z" in workload.source
    assert "model qwen" in workload.source


@pytest.mark.parametrize(("version", "page"), [("v2", 1000), ("v1", 100)])
def test_pages_are_followed_to_the_end_in_both_apis(langfuse, read, make_call, version, page):
    langfuse.versions = (version,)
    langfuse.rows = [make_call(n, {"input": n + 1, "output": 1}) for n in range(2 * page + 1)]
    assert read().prompt_tokens.tolist() == list(range(1, 2 * page + 2))
    assert f"observations {version}" in read().source


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_cached_tokens_are_part_of_the_prompt_and_are_told(langfuse, read, make_call, version):
    langfuse.versions = (version,)
    langfuse.rows = [make_call(1, {"input": 70, "input_cached_tokens": 30, "output": 50, "total": 150})]
    workload = read()
    assert workload.prompt_tokens.tolist() == [100]
    assert "30.0% of the prompt tokens from a cache" in workload.source


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_missing_usage_is_reported_and_is_not_zero(langfuse, read, make_call, version):
    langfuse.versions = (version,)
    langfuse.rows = [
        make_call(1, {"input": 10, "output": 5}),
        make_call(2, {}),
        make_call(3, {"input": 10}, completionStartTime="2026-11-01T00:00:03.500Z"),
        make_call(4, {"input": 10, "output": 5}, endTime=None),
        make_call(5, {"input": 10, "output": 5}, level="ERROR"),
        make_call(6, {"output": 5}),
    ]
    workload = read()
    assert workload.num_requests == 1
    assert workload.num_dropped == {
        "usage missing": 1,
        "output usage missing": 1,
        "unfinished (end time missing)": 1,
        "failed (level ERROR)": 1,
        "prompt usage missing": 1,
    }
    assert "50.0% of them with usage; lengths may be biased" in workload.source


def test_spans_and_agents_that_repeat_the_usage_of_their_calls_do_not_count(langfuse, read, make_call):
    langfuse.rows = [make_call(n, {"input": 9, "output": 9}, type=kind) for n, kind in enumerate(["AGENT", "SPAN"])]
    langfuse.rows.append(make_call(7, {"input": 10, "output": 5}))
    workload = read()
    assert (workload.num_requests, workload.num_dropped) == (1, {})


def test_time_to_first_token_is_known_where_the_client_told_it(langfuse, read, make_call):
    def streamed(at_s, after_ms):
        return make_call(at_s, {"input": 1, "output": 9}, completionStartTime=f"2026-11-01T00:00:0{at_s}.{after_ms}Z")

    langfuse.rows = [streamed(1, 250), streamed(2, 750)]
    workload = read()
    assert workload.ttft_s.tolist() == [0.25, 0.75]
    assert "first token after 500 ms (p50)" in workload.source
    langfuse.rows.append(make_call(3, {"input": 1, "output": 9}))
    assert read().ttft_s is None
    assert "where told (67%)" in read().source


@pytest.mark.parametrize("model_key", ["model", "providedModelName"])
def test_filters_are_said_to_the_server_and_checked_again(langfuse, read, make_call, model_key):
    langfuse.model_key = model_key
    usage = {"input": 10, "output": 5}
    langfuse.rows = [
        make_call(1, usage),
        make_call(2, usage, model="llama", tags=["b", "c"]),
        make_call(3, usage, model="other", environment="staging", tags=["a"]),
        make_call(4, usage, name="title"),
    ]
    assert read("model=llama").num_requests == 1
    sent = {condition["column"]: condition["value"] for condition in json.loads(queries(langfuse, "filter")[-1])}
    assert sent["model"] == "llama"
    assert sent["type"] == "GENERATION"
    assert read("model=llama", "model=other").num_requests == 2
    assert read("environment=staging").num_requests == 1
    assert read("environment=staging", "environment=production").num_requests == 4
    assert read("name=title").num_requests == 1
    assert read("name=title", "name=answer", "model=qwen").num_requests == 2
    assert read("tag=a", "tag=b").num_requests == 2
    assert read("tag=a", "model=other").source.count("model=other, tag=a")


def test_a_server_that_ignores_filters_does_not_spoil_the_answer(langfuse, read, make_call):
    langfuse.rows = [
        make_call(1, {"input": 10, "output": 5}),
        make_call(2, {"input": 1, "output": 1}, model="llama"),
        make_call(3, {"input": 2, "output": 1}, model="llama", type="AGENT"),
    ]
    langfuse.moods = [
        (200, {}, json.dumps({"data": langfuse.rows, "meta": {}}))
        for _ in range(5)  # whatever is asked
    ]
    assert read("model=llama").prompt_tokens.tolist() == [1]


def test_no_text_is_asked_for(langfuse, read, make_call):
    langfuse.rows = [make_call(1, {"input": 10, "output": 5})]
    read()
    asked = {group for fields in queries(langfuse, "fields") for group in fields.split(",")}
    assert asked.isdisjoint({"io", "metadata", "prompt"})


def test_every_question_has_a_time_window(langfuse, read, make_call):
    langfuse.rows = [make_call(1, {"input": 10, "output": 5})]
    read(since="2026-11-01", until="2026-11-02T00:00+01:00")
    assert None not in queries(langfuse, "fromStartTime")
    assert max(queries(langfuse, "toStartTime")) == "2026-11-01T23:00:00.000Z"
    assert min(queries(langfuse, "fromStartTime")) == "2026-11-01T00:00:00.000Z"


def test_a_window_may_be_a_time_ago(langfuse, read, make_call):
    langfuse.rows = [make_call(1, {"input": 10, "output": 5}), make_call(6 * 86400 + 10, {"input": 20, "output": 5})]
    assert read(since="48h").prompt_tokens.tolist() == [20]
    assert min(queries(langfuse, "fromStartTime")) == "2026-11-06T00:15:00.000Z"


def test_v2_is_preferred_and_v1_is_the_way_out(langfuse, read, make_call):
    langfuse.rows = [make_call(1, {"input": 10, "output": 5})]
    read()
    assert {path for path, _ in langfuse.asked} == {V2}
    langfuse.asked.clear()
    langfuse.versions = ("v1",)
    read()
    assert [path for path, _ in langfuse.asked[:2]] == [V2, V1]


def test_tags_need_v2(langfuse, read, make_call):
    langfuse.versions = ("v1",)
    langfuse.rows = [make_call(1, {"input": 10, "output": 5}, tags=["a"])]
    with pytest.raises(UnsupportedError, match="knows no tags"):
        read("tag=a")


def test_a_server_with_neither_api_is_named_with_its_version(langfuse, read):
    langfuse.versions = ()
    with pytest.raises(UnsupportedError, match=r"Langfuse 4\.16\.0 .* serves no observations"):
        read()


def test_an_empty_window_is_an_error_that_names_it(langfuse, read):
    with pytest.raises(InputError, match="no generation") as caught:
        read("model=qwen")
    assert "2026-11-01T00:00:00.000Z" in str(caught.value)
    assert "model=qwen" in str(caught.value)


def test_calls_of_several_models_are_told_apart(langfuse, read, make_call):
    usage = {"input": 10, "output": 5}
    langfuse.rows = [make_call(n, usage, model="llama" if n else "gpt") for n in range(3)]
    assert "models llama 2, gpt 1" in read().source
