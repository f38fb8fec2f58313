import pytest

from maitre.workload.langfuse.usage import UnusableUsageError, read_usage

SPELLINGS = {
    "exclusive buckets": (
        {"usageDetails": {"input": 70, "input_cached_tokens": 30, "output": 50, "total": 150}}, 100, 30,
    ),
    "Anthropic's buckets": (
        {"usageDetails": {"input": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 10, "output": 50}},
        100, 80,
    ),
    "more cached than not": ({"usageDetails": {"input": 5, "input_cached_tokens": 95, "output": 50}}, 100, 95),
    "cached inside, told by the total": (
        {"usageDetails": {"input": 100, "input_cached_tokens": 30, "output": 50, "total": 150}}, 100, 30,
    ),
    "cached and written inside": (
        {"usageDetails": {"input": 100, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 9,
                          "output": 50, "total": 150}},
        100, 30,
    ),
    "reasoning inside, told by the total": (
        {"usageDetails": {"input": 100, "output": 50, "output_reasoning_tokens": 20, "total": 150}}, 100, 0,
    ),
    "reasoning beside": (
        {"usageDetails": {"input": 100, "output": 30, "output_reasoning_tokens": 20, "total": 150}}, 100, 0,
    ),
    "audio": ({"usageDetails": {"input": 60, "input_audio_tokens": 40, "output": 50}}, 100, 0),
    "snake case": ({"usage_details": {"input": 100, "output": 50}}, 100, 0),
    "JSON text": ({"usageDetails": '{"input": 100, "output": "50"}'}, 100, 0),
    "Parquet map": ({"usage_details": [{"key": "input", "value": 100}, {"key": "output", "value": 50}]}, 100, 0),
    "old usage with costs": (
        {"usage": {"input": 100, "output": 50, "total": 150, "unit": "TOKENS", "inputCost": 0.1, "totalCost": 1}},
        100, 0,
    ),
    "OpenAI's": (
        {"usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150,
                   "prompt_tokens_details": {"cached_tokens": 30}}},
        100, 0,
    ),
    "old clients": ({"usage": {"promptTokens": 100, "completionTokens": 50, "totalTokens": 150}}, 100, 0),
    "sums beside empty details": ({"usageDetails": "{}", "inputUsage": "100", "outputUsage": "50"}, 100, 0),
    "details before zero sums": ({"usageDetails": {"input": 100, "output": 50}, "promptTokens": 0}, 100, 0),
}  # fmt: skip

UNUSABLE = {
    "usage missing": [
        {},
        {"usageDetails": {}},
        {"usageDetails": None, "usage": {"input": 0, "output": 0, "total": 0}},
        {"usageDetails": [{"key": [], "value": 1}]},
        {"usageDetails": [{"key": 7, "value": 1}]},
    ],
    "prompt usage missing": [{"usageDetails": {"output": 5}}],
    "prompt usage zero": [{"usageDetails": {"input": 0, "output": 5}}],
    "usage not in tokens": [{"usage": {"input": 9, "output": 9, "unit": "CHARACTERS"}}, {"usage": {"unit": [[], 0]}}],
    "usage not a number": [{"usageDetails": {"input": "many"}}, {"usageDetails": {"input": True}}],
    "usage not whole": [{"usageDetails": {"input": 1.5, "output": 1}}],
    "usage negative": [{"usageDetails": {"input": -1, "output": 1}}, {"usageDetails": {"input": -(10**400)}}],
    "usage over 10 million": [
        {"usageDetails": {"input": 10**8, "output": 1}},
        {"usageDetails": {"input": 10**400, "output": 1}},
    ],
    "usage unreadable": [{"usageDetails": "{broken"}],
}


@pytest.mark.parametrize(("row", "prompt", "cached"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_gives_the_same_prompt_and_output(row, prompt, cached):
    assert read_usage(row) == (prompt, cached, 50)


@pytest.mark.parametrize(("reason", "row"), [(reason, row) for reason, rows in UNUSABLE.items() for row in rows])
def test_usage_that_is_none_says_why(reason, row):
    with pytest.raises(UnusableUsageError, match=reason):
        read_usage(row)


def test_without_an_output_the_total_proves_nothing_and_cached_counts_as_part():
    assert read_usage({"usageDetails": {"input": 17903, "input_cached_tokens": 17817, "total": 35720}}) == (
        17903, 17817, None,
    )  # fmt: skip
