from datetime import UTC, datetime

import pytest

from maitre.errors import UsageError
from maitre.workload import Selection
from maitre.workload.prometheus.families import own_names
from maitre.workload.prometheus.question import read_question, selector

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def test_without_a_window_the_last_day_counts():
    asked = read_question(Selection(), NOW)
    assert (asked.end_s - asked.start_s, asked.end_s) == (86_400, NOW.timestamp())


def test_a_window_is_written_as_for_langfuse():
    asked = read_question(Selection(since="2026-11-29T08:00Z", until="1h"), NOW)
    assert (asked.window_s, str(asked)) == (3 * 3600, "2026-11-29 08:00 to 2026-11-29 11:00 UTC")


def test_an_end_in_the_future_is_now():
    assert read_question(Selection(since="1h", until="2027-01-01"), NOW).window_s == 3600


@pytest.mark.parametrize("since", ["1min", "2027-01-01"])
def test_a_window_in_which_nothing_can_be_counted_is_refused(since):
    with pytest.raises(UsageError, match="shorter than two minutes"):
        read_question(Selection(since=since), NOW)


def test_filters_are_labels_and_model_stands_for_vllm_s_own():
    asked = read_question(Selection(where=("model=a", "namespace=prod", "model=b")), NOW)
    assert asked.matchers == (("model_name", ("a", "b")), ("namespace", ("prod",)))
    assert asked.of_model("b").matchers == (("namespace", ("prod",)), ("model_name", ("b",)))


@pytest.mark.parametrize("where", ["model", "model=", "a-b=c", "=x"])
def test_what_is_no_filter_is_refused(where):
    with pytest.raises(UsageError, match="no filter"):
        read_question(Selection(where=(where,)), NOW)


def test_values_are_quoted_and_taken_literally():
    matchers = (("model_name", ('a"b\\c',)), ("pod", ("x.y", "z|{1}")))
    assert selector("vllm:x", matchers) == (
        '{__name__="vllm:x",model_name="a\\"b\\\\c",pod=~"x\\\\.y|z\\\\|\\\\{1\\\\}"}'
    )


def test_of_two_spellings_vllm_s_own_counts():
    names = ["ray_vllm_num_requests_running", "vllm_num_requests_running", "vllm:num_requests_running", "up"]
    assert own_names(names) == {"vllm:num_requests_running": "vllm:num_requests_running"}
    assert own_names(names[:2]) == {"vllm:num_requests_running": "vllm_num_requests_running"}
