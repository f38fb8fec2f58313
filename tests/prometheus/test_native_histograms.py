"""Native histograms become the classic series that they stand for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.metric_series import histogram
from maitre.prometheus.client import PrometheusClient
from maitre.prometheus.native_histograms import NativeHistogram, classic_series


def native(observations, schema):
    """As Prometheus writes one: bounds are powers of 2^(2^-schema), and the zero bucket reaches to 2^-128."""
    counts = {}
    for value in observations:
        index = math.ceil(math.log2(value) * 2**schema) if value else None
        counts[index] = counts.get(index, 0) + 1
    buckets = []
    for index in sorted(counts, key=lambda i: -math.inf if i is None else i):
        left, right = (
            (2 ** ((index - 1) / 2**schema), 2 ** (index / 2**schema)) if index is not None else (-1e-38, 1e-38)
        )
        buckets.append([0 if index is not None else 3, repr(left), repr(right), str(counts[index])])
    return {"count": str(len(observations)), "sum": str(sum(observations)), "buckets": buckets}


def answer(api, kind, row):
    api.say({"status": "success", "data": {"resultType": kind, "result": [row]}})


EXACT = st.sampled_from([0.0, 0.3, 1.5, 3.0, 3.3, 5.0, 7.0, 11.0, 100.0])


@given(st.lists(st.tuples(st.lists(EXACT, max_size=8), st.integers(-1, 2)), min_size=1, max_size=5))
def test_every_bucket_holds_what_was_observed_up_to_its_bound(samples):
    made, seen, so_far = [], [], []
    for observed, schema in samples:
        so_far = so_far + observed
        seen.append(so_far)
        row = native(so_far, schema)
        made.append(NativeHistogram(row["count"], row["sum"], [tuple(bucket) for bucket in row["buckets"]]))
    found = [*classic_series("h", {"a": "b"}, np.arange(len(samples), dtype=float), made)]
    buckets = {float(one.labels["le"]): one.values for one in found if one.name == "h_bucket"}
    for bound, counts in buckets.items():
        assert counts.tolist() == [sum(value <= bound for value in values) for values in seen]
    assert buckets[math.inf].tolist() == [len(values) for values in seen]
    others = {one.name: one.values.tolist() for one in found if one.name != "h_bucket"}
    assert others == {"h_count": buckets[math.inf].tolist(), "h_sum": pytest.approx([sum(v) for v in seen])}


def test_an_empty_stretch_between_two_buckets_stays_empty(api):
    row = {
        "metric": {"__name__": "vllm:x", "engine": "0"},
        "histograms": [[0, native([], 0)], [15, native([1.5, 1.7, 12.0], 0)]],
    }
    answer(api, "matrix", row)
    counted = histogram(PrometheusClient(api.url).query_range("x", 0, 15, 15), "vllm:x")
    assert dict(zip(counted.upper.tolist(), counted.counts.tolist(), strict=True)) == {
        1.0: 0.0, 2.0: 2.0, 8.0: 0.0, 16.0: 1.0, math.inf: 0.0,
    }  # fmt: skip
    assert counted.total == pytest.approx(15.2)


def test_custom_bounds_at_one_moment(api):
    """As recorded from a server with convert_classic_histograms_to_nhcb."""
    buckets = [[0, "-Inf", "0.01", "3"], [0, "0.05", "0.1", "2"], [0, "80", "+Inf", "1"]]
    value = {"count": "6", "sum": "99.5", "buckets": buckets}
    answer(api, "vector", {"metric": {"__name__": "vllm:itl_seconds", "model_name": "m"}, "histogram": [7, value]})
    found = PrometheusClient(api.url).query("x")
    assert [(one.name, one.labels.get("le"), one.values.tolist()) for one in found] == [
        ("vllm:itl_seconds_bucket", "0.01", [3.0]),
        ("vllm:itl_seconds_bucket", "0.05", [3.0]),
        ("vllm:itl_seconds_bucket", "0.1", [5.0]),
        ("vllm:itl_seconds_bucket", "80.0", [5.0]),
        ("vllm:itl_seconds_bucket", "+Inf", [6.0]),
        ("vllm:itl_seconds_count", None, [6.0]),
        ("vllm:itl_seconds_sum", None, [99.5]),
    ]
