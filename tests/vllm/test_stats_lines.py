"""The periodic statistics line of every version: what it says, and nothing that it does not say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.vllm.stats_lines import (
    StatsLine,
    parse_stats,
    parse_v0_hit_rate,
    parse_v0_preemptions,
    split_stats,
)

RATES = "Avg prompt throughput: 12.5 tokens/s, Avg generation throughput: 240.8 tokens/s, "
WORDINGS = {
    "0.4 to 0.10, V0": (
        RATES + "Running: 8 reqs, Swapped: 1 reqs, Pending: 3 reqs, GPU KV cache usage: 93.9%, "
        "CPU KV cache usage: 0.4%.",
        {"num_running": 8, "num_waiting": 3, "num_swapped": 1, "kv_usage": 0.939},
    ),
    "0.7.3, V1": (
        RATES + "Running: 8 reqs, Waiting: 3 reqs, GPU KV cache usage: 93.9%, Prefix cache hit rate: 41.2%",
        {"num_running": 8, "num_waiting": 3, "kv_usage": 0.939, "prefix_hit_rate": 0.412},
    ),
    "0.8.5": (
        "Engine 007: " + RATES + "Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 100.0%, "
        "Prefix cache hit rate: 0.0%",
        {"engine": "7", "num_running": 8, "num_waiting": 0, "kv_usage": 1, "prefix_hit_rate": 0},
    ),
    "0.11.1, preempting": (
        "Engine 000: " + RATES + "Running: 8 reqs, Waiting: 3 reqs, Preemptions: 17, GPU KV cache usage: 93.9%, "
        "Prefix cache hit rate: 41.2%, External prefix cache hit rate: 3.0%, MM cache hit rate: 5.5%",
        {"engine": "0", "num_running": 8, "num_waiting": 3, "num_preemptions": 17, "kv_usage": 0.939,
         "prefix_hit_rate": 0.412, "external_hit_rate": 0.03, "mm_hit_rate": 0.055},
    ),
    "0.11.1, several engines": (
        "4 Engines Aggregated: " + RATES + "Running: 32 reqs, Waiting: 3 reqs, GPU KV cache usage: 50.0%, "
        "Prefix cache hit rate: 41.2%",
        {"num_engines": 4, "num_running": 32, "num_waiting": 3, "kv_usage": 0.5, "prefix_hit_rate": 0.412},
    ),
    "0.20, deferred": (
        "Engine 000: " + RATES + "Running: 8 reqs, Waiting: 5 reqs, Deferred: 2 reqs, GPU KV cache usage: 93.9%, "
        "Prefix cache hit rate: 41.2%",
        {"engine": "0", "num_running": 8, "num_waiting": 5, "num_deferred": 2, "kv_usage": 0.939,
         "prefix_hit_rate": 0.412},
    ),
    "0.32, a CPU, no query of the prefix cache yet": (
        "Engine 000: " + RATES + "Running: 8 reqs, Waiting: 3 reqs, CPU KV cache usage: 93.9%",
        {"engine": "0", "num_running": 8, "num_waiting": 3, "kv_usage": 0.939},
    ),
    "0.32, KV fetched from elsewhere, NaNs counted": (
        "Engine 000: " + RATES + "Running: 8 reqs, Waiting: 3 reqs, Deferred: 1 reqs, KV fetch: 1 waiting to start, "
        "2 in progress, 3 completed waiting, Preemptions: 1, XPU KV cache usage: 93.9%, Prefix cache hit rate: 41.2%, "
        "Corrupted: 0 reqs",
        {"engine": "0", "num_running": 8, "num_waiting": 3, "num_deferred": 1, "num_kv_fetch": 6, "num_preemptions": 1,
         "kv_usage": 0.939, "prefix_hit_rate": 0.412},
    ),
}  # fmt: skip
UNSAID = dict.fromkeys(StatsLine.__dataclass_fields__) | {"engine": ""}


@pytest.mark.parametrize(("message", "said"), WORDINGS.values(), ids=WORDINGS)
def test_every_wording_is_read_and_what_is_not_said_stays_unknown(message, said):
    both = {"prompt_tokens_per_s": 12.5, "generation_tokens_per_s": 240.8}
    assert parse_stats(message) == StatsLine(**UNSAID | both | said)


def test_another_loggers_head_may_stand_before_the_words():
    message, said = WORDINGS["0.8.5"]
    found = parse_stats(f"vllm.v1.metrics.loggers - INFO - {message}")
    assert (found.engine, found.num_running) == (said["engine"], said["num_running"])


@pytest.mark.parametrize("number", ["nan", "-1.0", "1.2.3", "-", "9" * 400, "9" * 300])
def test_what_is_no_number_is_unknown_and_the_rest_is_read(number):
    found = parse_stats(f"{RATES}Running: 8 reqs, Waiting: {number} reqs, GPU KV cache usage: {number}%")
    assert (found.num_running, found.num_waiting, found.kv_usage) == (8, None, None)


@given(st.permutations(WORDINGS["0.11.1, preempting"][0].removeprefix("Engine 000: " + RATES).split(", ")))
def test_the_order_of_the_pairs_is_no_matter(parts):
    straight = parse_stats(WORDINGS["0.11.1, preempting"][0])
    assert parse_stats("Engine 000: " + RATES + ", ".join(parts)) == straight


@given(st.text(max_size=200), st.integers(0, 200))
def test_no_garbage_breaks_it(text, cut):
    line = WORDINGS["0.11.1, preempting"][0]
    for message in (text, line[:cut], line[:cut] + text, text[:100] + line):
        assert parse_stats(message) is None or isinstance(parse_stats(message), StatsLine)


def test_a_message_that_mentions_the_words_far_inside_is_no_such_line():
    assert parse_stats("x" * 400 + WORDINGS["0.8.5"][0]) is None
    assert parse_stats("GPU KV cache usage: 93.9%") is None


HEADS = {
    "0.8": "INFO 07-28 06:41:19 [loggers.py:118] ",
    "0.4": "INFO 07-28 06:41:19 metrics.py:345] ",
    "0.31": "(APIServer pid=12) INFO 07-28 06:41:19 [v1/metrics/loggers.py:335] ",
    "another logger": "2024-12-23 18:28:10 - vllm.engine.metrics - INFO - ",
    "none": "",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_lines_that_run_together_are_taken_apart(head):
    whole = head + WORDINGS["0.8.5"][0]
    assert [*split_stats(whole * 3)] == [whole] * 3
    assert parse_stats(WORDINGS["0.8.5"][0] + whole) == parse_stats(WORDINGS["0.8.5"][0])


def test_what_is_taken_apart_is_all_there_was():
    text = "some words " + WORDINGS["0.8.5"][0] + " and more"
    assert [*split_stats(text)] == [text]
    assert [*split_stats("")] == [""]


def test_v0_writes_its_hit_rate_in_a_line_of_its_own():
    assert parse_v0_hit_rate("Prefix cache hit rate: GPU: 41.25%, CPU: 0.00%") == 0.4125
    assert parse_v0_hit_rate("Prefix cache hit rate: GPU: -1.00%, CPU: 0.00%") is None
    assert parse_v0_hit_rate("Prefix cache hit rate: 41.2%") is None


def test_v0_warnings_say_how_often_so_far():
    warning = (
        "Sequence group 221 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. "
        "This can affect the end-to-end performance. total_num_cumulative_preemption=101"
    )
    assert parse_v0_preemptions(warning) == 101
    assert parse_v0_preemptions("total_num_cumulative_preemption=101") is None
    assert parse_v0_preemptions(warning + "9" * 30) is None


def test_more_kv_fetches_than_anybody_counts_are_unknown():
    assert (
        parse_stats(f"{RATES}KV fetch: {'9' * 5000} waiting to start, 2 in progress, 3 completed").num_kv_fetch is None
    )
