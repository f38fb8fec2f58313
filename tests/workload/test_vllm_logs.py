"""vLLM's own log: lengths where the version logs token ids, the server's load where it does not."""

from pathlib import Path

import pytest

from maitre.errors import InputError
from maitre.workload import NoRequestsError, describe, load_workload

PARAMS = "SamplingParams(n=1, temperature=0.7, max_tokens=100, stop=[])"
STATS = (
    "INFO 05-01 12:00:{second:02d} [loggers.py:118] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
    "Avg generation throughput: {output:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
    "GPU KV cache usage: 12.0%, Prefix cache hit rate: 0.0%"
)


def ids(count):
    return "[" + ", ".join(map(str, range(count))) + "]"


def received(name, count, clock="12:00:00", prompt="hello", day="05-01"):
    tokens = "None" if count is None else ids(count)
    return (
        f"INFO {day} {clock} [logger.py:43] Received request {name}: prompt: {prompt!r}, params: {PARAMS}, "
        f"prompt_token_ids: {tokens}, prompt_embeds shape: None, lora_request: None."
    )


def response(name, count, clock="12:00:05", text="hi", stream="", day="05-01"):
    tokens = "None" if count is None else ids(count)
    return (
        f"INFO {day} {clock} [logger.py:72] Generated response {name}{stream}: output: {text!r}, "
        f"output_token_ids: {tokens}, finish_reason: stop"
    )


def load(tmp_path, *lines):
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines) + "\n")
    return load_workload(str(path))


def test_request_and_response_lines_are_joined(tmp_path: Path):
    workload = load(
        tmp_path,
        "INFO 05-01 11:59:00 [api_server.py:1] vLLM API server version 0.10.2",
        received("chatcmpl-1", 412),
        received("chatcmpl-2", 20, clock="12:00:02"),
        STATS.format(second=4, prompt=43.2, output=9, running=2, waiting=0),
        response("chatcmpl-2", 5, clock="12:00:03"),
        response("chatcmpl-1", 87, clock="12:00:06"),
    )
    assert workload.prompt_tokens.tolist() == [412, 20]
    assert workload.output_tokens.tolist() == [87, 5]
    assert workload.arrival_s.tolist() == [0, 2]
    assert workload.latency_s.tolist() == [6, 1]
    assert "vLLM log" in workload.source


def test_debug_lines_of_later_versions_tell_the_lengths(tmp_path: Path):
    workload = load(
        tmp_path,
        f"DEBUG 05-01 12:00:00 [logger.py:55] Request cmpl-1-0 details: prompt: 'x', prompt_token_ids: {ids(30)}, "
        "prompt_embeds shape: None.",
        f"INFO 05-01 12:00:00 [logger.py:65] Received request cmpl-1-0: params: {PARAMS}, lora_request: None.",
        f"DEBUG 05-01 12:00:02 [logger.py:101] Generated response cmpl-1 details: output_token_ids: {ids(8)}",
        "INFO 05-01 12:00:02 [logger.py:108] Generated response cmpl-1: output: 'y', finish_reason: length",
    )
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([30], [8])


def test_the_parts_of_a_streamed_answer_add_up(tmp_path: Path):
    workload = load(
        tmp_path,
        received("a", 10),
        response("a", 3, stream=" (streaming delta)"),
        response("a", 4, stream=" (streaming delta)"),
        response("a", None, stream=" (streaming complete)"),
    )
    assert workload.output_tokens.tolist() == [7]


def test_a_prompt_that_looks_like_a_log_line_is_only_a_prompt(tmp_path: Path):
    fake = "params: x, prompt_token_ids: [1, 2], Generated response a: output: '', output_token_ids: [1], "
    workload = load(tmp_path, received("a", 10, prompt=fake), response("a", 4, text=fake))
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([10], [4])


def test_requests_without_answer_or_ids_are_dropped_by_reason(tmp_path: Path):
    workload = load(
        tmp_path,
        received("a", 10),
        response("a", 4),
        received("b", 10),
        received("c", None),
        response("c", 4),
    )
    assert workload.num_requests == 1
    assert workload.num_dropped == {"prompt_tokens missing": 1, "output_tokens missing": 1}


def test_ids_that_were_cut_are_no_lengths(tmp_path: Path):
    workload = load(
        tmp_path,
        "INFO 05-01 11:59:00 [utils.py:1] non-default args: {'enable_log_requests': True, 'max_log_len': 50}",
        received("a", 10),
        response("a", 4),
        received("b", 50),
        response("b", 4),
    )
    assert workload.prompt_tokens.tolist() == [10]
    assert workload.num_dropped == {"token ids cut by --max-log-len": 1}


def test_a_log_over_new_year_keeps_its_order(tmp_path: Path):
    workload = load(
        tmp_path,
        received("a", 10, clock="23:59:59", day="12-31"),
        received("b", 20, clock="00:00:01", day="01-01"),
        response("a", 4, clock="00:00:02", day="01-01"),
        response("b", 4, clock="00:00:03", day="01-01"),
    )
    assert workload.arrival_s.tolist() == [0, 2]
    assert workload.latency_s.tolist() == [3, 2]


def test_colours_and_process_prefixes_do_not_disturb(tmp_path: Path):
    lines = [f"\x1b[1;36m(APIServer pid=7)\x1b[0;0m {line}" for line in (received("a", 10), response("a", 4))]
    assert load(tmp_path, *lines).prompt_tokens.tolist() == [10]


def test_without_lengths_the_statistics_lines_tell_rate_and_concurrency(tmp_path: Path):
    with pytest.raises(NoRequestsError, match=r"2 statistics lines tell 30\.0 requests in flight") as caught:
        load(
            tmp_path,
            *(
                f"INFO 05-01 12:00:{second:02d} [logger.py:65] Received request {second}: params: {PARAMS}, x."
                for second in range(0, 11, 2)
            ),
            STATS.format(second=10, prompt=1000, output=300, running=20, waiting=0),
            STATS.format(second=20, prompt=500, output=100, running=32, waiting=8),
        )
    measured = caught.value.load
    assert measured.num_samples == 2
    assert measured.rate_rps == pytest.approx(0.5)
    assert measured.concurrency_mean == 30
    assert measured.waiting_max == 8
    assert (measured.prompt_tokens_per_s, measured.output_tokens_per_s) == (750, 200)
    assert "--otlp-traces-endpoint" in caught.value.hint
    assert caught.value.num_dropped == {"prompt_tokens missing": 6}


def test_the_first_engines_say_pending_and_swapped(tmp_path: Path):
    with pytest.raises(NoRequestsError) as caught:
        load(
            tmp_path,
            "INFO 05-01 12:00:10 metrics.py:455] Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: "
            "20.0 tokens/s, Running: 3 reqs, Swapped: 1 reqs, Pending: 2 reqs, GPU KV cache usage: 1.0%.",
        )
    assert caught.value.load.concurrency_mean == 6
    assert caught.value.load.rate_rps is None


def test_a_log_of_something_else_is_no_workload(tmp_path: Path):
    with pytest.raises(InputError, match="no column is recognised"):
        load(tmp_path, "INFO 05-01 12:00:10 [x.py:1] hello, world")


def test_the_profile_of_a_log_has_its_concurrency(tmp_path: Path):
    profile = describe(load(tmp_path, received("a", 10), received("b", 9), response("a", 4), response("b", 2)))
    assert profile.concurrency_mean == pytest.approx(2)


def test_the_lines_of_a_real_vllm_tell_what_was_asked_of_it():
    """Logged at DEBUG by vLLM 0.32.0 for three chats, the last one streamed, and one completion."""
    workload = load_workload(str(Path(__file__).parent / "data" / "vllm-0.32.0-requests.log"))
    assert workload.prompt_tokens.tolist() == [5, 40, 17]
    assert workload.output_tokens.tolist() == [6, 41, 18]
    assert workload.num_dropped == {"output_tokens missing": 1}


def test_a_start_up_log_is_known_as_such(tmp_path: Path):
    with pytest.raises(NoRequestsError, match="vLLM's log, but no request") as caught:
        load(tmp_path, "INFO 05-01 11:59:00 [api_server.py:1] vLLM API server version 0.10.2", "INFO more")
    assert caught.value.load is None


def test_a_table_of_prompts_about_logs_is_a_table(tmp_path: Path):
    line = STATS.format(second=4, prompt=43.2, output=9, running=2, waiting=0).replace(",", ";")
    workload = load(tmp_path, "prompt,prompt_tokens,output_tokens", f"what means {line}?,30,9")
    assert workload.prompt_tokens.tolist() == [30]


@pytest.mark.parametrize("number", ["9" * 400, "9" * 300])
def test_a_number_that_no_server_counts_to_is_left_out_of_its_load(tmp_path: Path, number: str):
    lines = [STATS.format(second=0, prompt=1.0, output=1.0, running=4, waiting=number)] * 2
    with pytest.raises(NoRequestsError) as caught:
        load(tmp_path, *lines)
    assert caught.value.load is not None
    assert (caught.value.load.concurrency_mean, caught.value.load.waiting_max) == (4.0, 0)
