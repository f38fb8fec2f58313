import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError, UsageError
from maitre.metric_series import Histogram
from maitre.workload.from_histograms import draw_lengths, workload_from_histograms

BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""vLLM's request_prompt_tokens with --max-model-len 16384."""


def counted(lengths, bounds=BOUNDS):
    """What a server's histogram holds after these requests."""
    upper = np.array([*bounds, np.inf])
    counts = np.bincount(np.searchsorted(upper, lengths), minlength=len(upper)).astype(float)
    return Histogram(upper, counts, float(np.sum(lengths)))


lengths = st.lists(st.integers(1, 12_000), min_size=1, max_size=60)


@given(lengths, st.integers(1, 5), st.integers(0, 3))
def test_every_bucket_keeps_its_count_and_the_sum_is_exact(original, copies, seed):
    num_requests = len(original) * copies
    drawn = draw_lengths(counted(original), num_requests, np.random.default_rng(seed))
    again = counted(drawn)
    assert again.counts.tolist() == (copies * counted(original).counts).tolist()
    assert again.total == copies * sum(original)


@given(lengths, st.integers(1, 200))
def test_a_smaller_or_larger_sample_keeps_the_shares_within_one_request(original, num_requests):
    shares = counted(original).counts / len(original)
    again = counted(draw_lengths(counted(original), num_requests, np.random.default_rng(0)))
    off = np.cumsum(again.counts) - np.cumsum(num_requests * shares)
    assert np.all(np.abs(off) <= 1 + 1e-9)


def test_a_sum_that_no_lengths_in_the_buckets_have_leads_to_their_ends():
    upper, counts = np.array([10.0, 20.0, np.inf]), np.array([0.0, 4.0, 0.0])
    for total, length in ((400.0, 20), (4.0, 11)):
        drawn = draw_lengths(Histogram(upper, counts, total), 4, np.random.default_rng(0))
        assert drawn.tolist() == [length] * 4


def test_without_a_sum_lengths_are_even_on_a_logarithmic_axis():
    upper, counts = np.array([100.0, 10_000.0, np.inf]), np.array([0.0, 1.0, 0.0])
    drawn = draw_lengths(Histogram(upper, counts, np.nan), 1000, np.random.default_rng(0))
    assert np.median(drawn) == pytest.approx(1000, rel=0.02)


def test_the_open_bucket_ends_at_the_model_s_length():
    tail = counted([12_000, 16_000, 16_383])
    assert draw_lengths(tail, 300, np.random.default_rng(0), longest=16_383).max() <= 16_383


def test_without_a_model_length_the_open_bucket_ends_where_the_series_would_go_on_or_the_mean_demands():
    assert draw_lengths(counted([10_001] * 9 + [24_000]), 100, np.random.default_rng(0)).max() <= 25_000
    short_buckets = counted([40_000, 60_000], bounds=(1, 2, 5))
    assert draw_lengths(short_buckets, 2, np.random.default_rng(0)).sum() == 100_000


def test_bounds_of_a_native_histogram_that_are_no_whole_numbers():
    upper = np.array([0.5, 1.0, 1.0905, 1.1892, 90.51, 98.70, np.inf])
    drawn = draw_lengths(Histogram(upper, np.array([1.0, 1, 0, 0, 0, 8, 0]), 2 + 8 * 95), 10, np.random.default_rng(0))
    assert drawn.tolist()[:2] == [1, 1]
    assert set(drawn[2:].tolist()) <= set(range(91, 99))
    assert drawn.sum() == 762


def test_requests_longer_than_the_model_allows_are_refused():
    with pytest.raises(InputError, match="3 requests are longer than 4,095 tokens"):
        workload_from_histograms(counted([6000] * 3), counted([10] * 3), 10, 0, max_model_len=4096)


def test_an_empty_histogram_is_no_traffic():
    with pytest.raises(InputError, match="no requests were counted"):
        workload_from_histograms(counted([]), counted([5]), 10, 0)
    with pytest.raises(UsageError, match="0 requests"):
        workload_from_histograms(counted([5]), counted([5]), 0, 0)


def test_no_request_is_longer_than_the_model_allows_and_both_marginals_are_kept():
    prompts, outputs = counted([100] * 500 + [4500] * 500), counted([50] * 800 + [1900] * 200)
    unbounded = workload_from_histograms(prompts, outputs, 1000, 0)
    assert (unbounded.prompt_tokens + unbounded.output_tokens).max() > 6000
    workload = workload_from_histograms(prompts, outputs, 1000, 0, max_model_len=6000)
    assert (workload.prompt_tokens + workload.output_tokens).max() <= 6000
    assert counted(workload.prompt_tokens).counts.tolist() == prompts.counts.tolist()
    assert counted(workload.output_tokens).counts.tolist() == outputs.counts.tolist()
    assert (workload.prompt_tokens.sum(), workload.output_tokens.sum()) == (prompts.total, outputs.total)


def test_lengths_that_fit_in_no_order_are_cut():
    workload = workload_from_histograms(counted([900] * 10), counted([300] * 10), 10, 0, max_model_len=1000)
    assert (workload.prompt_tokens + workload.output_tokens).max() == 1000
    assert workload.prompt_tokens.sum() == 9000
    assert workload.output_tokens.sum() < 3000


def test_prompt_and_output_do_not_depend_on_each_other():
    rng = np.random.default_rng(3)
    sample = counted(np.minimum(rng.lognormal(5, 1, 4000), 9000).astype(int) + 1)
    workload = workload_from_histograms(sample, sample, 4000, 0)
    assert abs(np.corrcoef(np.log(workload.prompt_tokens), np.log(workload.output_tokens))[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(4000), workload.prompt_tokens)[0, 1]) < 0.05


def test_a_seed_repeats_the_draw_and_another_one_does_not():
    sample = counted(range(1, 500))
    first, again, other = (workload_from_histograms(sample, sample, 400, seed) for seed in (1, 1, 2))
    assert first.prompt_tokens.tolist() == again.prompt_tokens.tolist()
    assert first.prompt_tokens.tolist() != other.prompt_tokens.tolist()
    assert first.prompt_tokens.sum() == other.prompt_tokens.sum()
    assert "independent" in first.source
