import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from maitre.records import Workload
from maitre.workload import describe, reference_workload
from maitre.workload.joint_lengths import spearman


def traffic(
    arrival_s: list[float] | None = None, latency_s: list[float] | None = None, n: int | None = None
) -> Workload:
    n = n or len(arrival_s or [0])
    lengths = list(range(1, n + 1))
    return Workload(
        name="t", source="t", prompt_tokens=lengths, output_tokens=lengths, arrival_s=arrival_s, latency_s=latency_s
    )


def test_percentiles_and_the_mean() -> None:
    lengths = describe(traffic(n=101)).prompt_tokens
    assert (lengths.mean, lengths.p50, lengths.p90, lengths.p95, lengths.p99, lengths.max) == (51, 51, 91, 96, 100, 101)


def test_without_times_rate_and_concurrency_are_unknown() -> None:
    profile = describe(traffic(n=5), mean_latency_s=8)
    assert profile.rate_rps is None
    assert profile.concurrency_p95 is None
    assert profile.concurrency_source is None


def test_even_arrivals_have_a_rate_and_no_burstiness() -> None:
    profile = describe(traffic([0, 0.5, 1, 1.5, 2]))
    assert (profile.rate_rps, profile.duration_s, profile.arrival_gap_cv) == (2, 2, 0)


def test_arrivals_at_one_moment_have_no_rate_but_a_concurrency() -> None:
    profile = describe(traffic([0, 0, 0], [1, 2, 3]))
    assert profile.rate_rps is None
    assert profile.concurrency_p95 == 3


def test_a_mean_latency_gives_little_s_mean_and_the_arrivals_within_it() -> None:
    # one arrival a second that stays 10 s: ten in flight once the ramp is over, and the tenth leaves as the next comes
    profile = describe(traffic([float(second) for second in range(1001)]), mean_latency_s=10)
    assert profile.concurrency_source == "little"
    assert profile.concurrency_mean == 10
    assert profile.concurrency_p95 == 10


def test_measured_latencies_win_over_a_mean_latency() -> None:
    profile = describe(traffic([0, 1, 2, 4], [1.5, 0.5, 2, 1]), mean_latency_s=100)
    # in flight: 1 in [0, 1), 2 in [1, 1.5), 0 in [1.5, 2), 1 in [2, 4)
    assert profile.concurrency_source == "timings"
    assert profile.concurrency_mean == pytest.approx((1 + 2 * 0.5 + 2) / 4)
    assert profile.concurrency_p95 == 2


def test_the_p95_is_exceeded_for_five_per_cent_of_the_time() -> None:
    # 1 in flight, and 3 for the last 4 s or 6 s of 100 s
    for busy_s, p95 in ((4.0, 1), (6.0, 3)):
        arrivals = [0.0, 100 - busy_s, 100 - busy_s, 100.0]
        assert describe(traffic(arrivals, [100.0] * 4)).concurrency_p95 == p95


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), min_size=2, max_size=30))
def test_the_concurrency_never_exceeds_the_requests(rows: list[tuple[float, float]]) -> None:
    arrival_s = np.sort([row[0] for row in rows])
    profile = describe(traffic((arrival_s - arrival_s[0]).tolist(), [row[1] for row in rows]))
    assert profile.concurrency_p95 is not None
    assert profile.concurrency_mean is not None
    assert 0 <= profile.concurrency_p95 <= len(rows)
    assert 0 <= profile.concurrency_mean <= len(rows)


@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 10**7)), min_size=1, max_size=50))
def test_the_joint_lengths_count_every_request_in_its_bin(pairs: list[tuple[int, int]]) -> None:
    prompt, output = zip(*pairs, strict=True)
    joint = describe(Workload(name="t", source="t", prompt_tokens=prompt, output_tokens=output)).joint_lengths
    expected, *_ = np.histogram2d(prompt, output, bins=(joint.prompt_edges, joint.output_edges))
    assert joint.counts == tuple(map(tuple, expected.astype(int).tolist()))
    assert sum(map(sum, joint.counts)) == len(pairs)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=3, max_size=50))
def test_the_rank_correlation_is_scipy_s(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs).T
    mine = spearman(x, y)
    if mine is None:
        assert len(set(x.tolist())) == 1 or len(set(y.tolist())) == 1
    else:
        assert mine == pytest.approx(stats.spearmanr(x, y).statistic)


def test_dropped_rows_are_told_by_reason_most_frequent_first() -> None:
    workload = traffic(n=3).model_copy(update={"num_dropped": {"a": 1, "b": 5}})
    profile = describe(workload)
    assert profile.num_dropped == 6
    assert [(drop.reason, drop.count) for drop in profile.drop_reasons] == [("b", 5), ("a", 1)]


@pytest.mark.parametrize("name", ["chat", "rag", "coding", "summarisation", "batch"])
def test_a_reference_workload_is_nearest_to_itself(name: str) -> None:
    assert describe(reference_workload(name, 5000, 1)).nearest_reference == name
