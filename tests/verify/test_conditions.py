"""The simulated servers that `maitre verify` is tried on: metrics say what their steps did, and labels are true."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from maitre.metric_series import histogram, total_increase
from maitre.records import Cell, Workload
from maitre.vllm.metrics_text import parse_metrics_text
from maitre.workload.synthetic import LengthSpec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STEADY = ("under-used", "client-limited", "seq-capped", "budget-bound", "kv-bound", "bimodal")
DRAWN = (*STEADY, "restart", "two-scrapes", "idle")


@pytest.fixture(scope="module")
def bed():
    """The modules of benchmarks/conditions, imported as the benchmark does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        from conditions import catalogue, exporter, exposition, hosts, metrics, served, truth  # noqa: PLC0415

        return SimpleNamespace(
            catalogue=catalogue, exporter=exporter, exposition=exposition, hosts=hosts, metrics=metrics, served=served,
            truth=truth,
        )  # fmt: skip


@pytest.fixture(scope="module")
def drawn(bed):
    """One condition of each of `DRAWN`."""
    return {family: bed.catalogue.draw_condition(family, 0, seed=2) for family in DRAWN}


def values(condition, name, **labels):
    """The samples of the one series with this name and these labels."""
    (found,) = [
        one for one in condition.series
        if one.name == f"vllm:{name}" and labels.items() <= dict(one.labels).items()
    ]  # fmt: skip
    return found.values


def growth(condition, name):
    return total_increase([one for one in condition.series if one.name == f"vllm:{name}"])


# one request, counted by hand


@pytest.fixture(scope="module")
def lone_request(bed):
    """A prompt of 100 tokens and an answer of 3, scraped each second for ten seconds."""
    host = bed.hosts.find_host("qwen2.5-14b", "h200", Cell(max_num_seqs=8, max_num_batched_tokens=64), 0.9, 2048)
    request = Workload(
        name="one", source="test", prompt_tokens=np.array([100]), output_tokens=np.array([3]),
        arrival_s=np.array([0.5]),
    )  # fmt: skip
    served = bed.served.serve_arrivals(host, request, np.random.default_rng(0))
    series = bed.metrics.series_of(served, np.arange(10.0), "one", 1000.0, np.random.default_rng(0))
    return SimpleNamespace(served=served, series=series, host=host)


def test_tokens_of_one_request(lone_request):
    assert [growth(lone_request, f"{kind}_tokens_total") for kind in ("prompt", "generation")] == [100, 3]
    assert growth(lone_request, "request_success_total") == 1
    assert growth(lone_request, "prefix_cache_queries_total") == 100
    assert growth(lone_request, "prefix_cache_hits_total") == 0
    assert histogram(lone_request.series, "vllm:inter_token_latency_seconds").count == 2


def test_a_step_that_only_computes_a_chunk_is_not_counted(lone_request):
    """The prompt takes two steps of 64 tokens; with its end come all 100 of them and the first output token."""
    tokens = histogram(lone_request.series, "vllm:iteration_tokens_total")
    assert dict(zip(tokens.upper.tolist(), tokens.counts.tolist(), strict=True)) == {
        bound: {1.0: 2.0, 128.0: 1.0}.get(bound, 0.0) for bound in tokens.upper.tolist()
    }
    assert tokens.total == 103
    assert lone_request.served.replay.num_steps == 4


def test_latencies_of_one_request(lone_request):
    served = lone_request.served
    ttft = histogram(lone_request.series, "vllm:time_to_first_token_seconds")
    assert ttft.mean == pytest.approx(served.step_end_s[1] - 0.5)
    whole = histogram(lone_request.series, "vllm:e2e_request_latency_seconds")
    assert whole.mean == pytest.approx(served.step_end_s[3] - 0.5)


def test_a_server_is_empty_before_and_after(lone_request):
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert not values(lone_request, name).any()


def test_labels_of_the_cache(lone_request):
    (info,) = [one for one in lone_request.series if one.name == "vllm:cache_config_info"]
    assert int(info.labels["num_gpu_blocks"]) == lone_request.host.num_gpu_blocks
    assert int(info.labels["kv_cache_size_tokens"]) == (lone_request.host.num_gpu_blocks - 1) * 16


# the series agree with each other


@pytest.mark.parametrize("family", DRAWN)
def test_counters_fall_at_restarts_only(drawn, family):
    cumulative = [one for one in drawn[family].series if one.name.endswith(("_total", "_bucket", "_count", "_sum"))]
    falls = {int((np.diff(one.values) < 0).sum()) for one in cumulative}
    assert falls == ({0, 1} if family == "restart" else {0})


@pytest.mark.parametrize("family", DRAWN)
def test_buckets_add_up_to_counts(bed, drawn, family):
    for short in bed.exposition.HISTOGRAMS:
        name = f"vllm:{short}"
        buckets = [one for one in drawn[family].series if one.name == f"{name}_bucket"]
        by_bound = np.stack([one.values for one in sorted(buckets, key=lambda one: float(one.labels["le"]))])
        assert (np.diff(by_bound, axis=0) >= 0).all()
        assert (by_bound[-1] == values(drawn[family], f"{short}_count")).all()


@pytest.mark.parametrize("family", STEADY)
def test_every_token_but_the_first_ends_a_gap(drawn, family):
    tokens = growth(drawn[family], "generation_tokens_total")
    gaps = growth(drawn[family], "inter_token_latency_seconds_count")
    assert gaps == tokens - growth(drawn[family], "time_to_first_token_seconds_count")


@pytest.mark.parametrize("family", ["under-used", "client-limited", "bimodal"])
def test_littles_law(drawn, family):
    """L = λ W, as far as a window of some thousand requests with those in flight at its ends can show it."""
    condition = drawn[family]
    in_flight = values(condition, "num_requests_running") + values(condition, "num_requests_waiting")
    latency = histogram(condition.series, "vllm:e2e_request_latency_seconds")
    times = condition.series[0].time_s
    assert in_flight.mean() == pytest.approx(latency.total / (times[-1] - times[0]), rel=0.1)


def test_the_rate_for_a_load_brings_that_load(bed, drawn):
    facts = drawn["under-used"].facts["phase 0"]
    rate_rps = float(facts.split()[0])
    latency = histogram(drawn["under-used"].series, "vllm:e2e_request_latency_seconds")
    assert drawn["under-used"].truth[0].running == pytest.approx(rate_rps * latency.mean, rel=0.15)


# labels are true: what a person would see on a dashboard


def test_all_slots_are_taken_and_the_pool_is_nearly_empty(drawn):
    condition = drawn["seq-capped"]
    assert condition.verdict == "seq-capped"
    assert np.mean(values(condition, "num_requests_running") >= condition.cell.max_num_seqs - 1) > 0.8
    assert np.mean(values(condition, "num_requests_waiting") > 0) > 0.7
    assert values(condition, "kv_cache_usage_perc").max() < 0.5


def test_requests_wait_for_tokens_though_slots_and_blocks_are_free(drawn):
    condition = drawn["budget-bound"]
    assert np.mean(values(condition, "num_requests_waiting") > 0) > 0.6
    assert values(condition, "num_requests_running").mean() < 0.85 * condition.cell.max_num_seqs
    assert values(condition, "kv_cache_usage_perc").max() < 0.7


def test_the_pool_is_full(drawn):
    condition = drawn["kv-bound"]
    assert values(condition, "kv_cache_usage_perc").mean() > 0.7
    assert values(condition, "num_requests_running").mean() < 0.85 * condition.cell.max_num_seqs


def test_clients_keep_their_number_in_flight(drawn):
    running = values(drawn["client-limited"], "num_requests_running")
    assert running.max() - running.min() <= 2
    assert running.max() * 4 <= drawn["client-limited"].cell.max_num_seqs


def test_tokens_come_at_two_paces(drawn):
    gaps = histogram(drawn["bimodal"].series, "vllm:inter_token_latency_seconds")
    assert gaps.counts[gaps.upper <= 0.05].sum() > 0.5 * gaps.count
    assert gaps.counts[gaps.upper > 0.1].sum() > 0.03 * gaps.count


def test_two_scrapes_are_two(drawn):
    assert {len(one.values) for one in drawn["two-scrapes"].series} == {2}
    assert drawn["two-scrapes"].verdict == "cannot-tell"


def test_a_seed_gives_the_same_condition(bed, drawn):
    again, other = (bed.catalogue.draw_condition("idle", number, seed=2) for number in (0, 1))
    pairs = zip(again.series, drawn["idle"].series, strict=True)
    assert all((one.values == two.values).all() and one.labels == two.labels for one, two in pairs)
    assert again.facts != other.facts


@pytest.mark.parametrize(
    ("slow_s", "slow_share", "expected"), [(0.3, 0.1, True), (0.3, 0.01, False), (0.02, 0.5, False)]
)
def test_two_modes_are_apart_and_both_heavy(bed, slow_s, slow_share, expected):
    generator = np.random.default_rng(0)
    fast, slow = (level * generator.lognormal(0, 0.2, 5000) for level in (0.015, slow_s))
    weights = np.repeat([1 - slow_share, slow_share], 5000)
    assert bed.truth.has_two_modes(np.concatenate([fast, slow]), weights) is expected


# text


def test_a_scrape_is_read_back(bed, drawn):
    condition = drawn["seq-capped"]
    moment_s = condition.series[0].time_s[10]
    text = bed.exposition.metrics_text(condition.series, moment_s)
    assert {sample.name: sample.value for sample in parse_metrics_text(text) if "le" not in sample.labels} == {
        one.name: one.values[10] for one in condition.series if "le" not in one.labels and "finished" not in one.labels
    }
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert kinds["vllm:inter_token_latency_seconds"] == "histogram"
    assert kinds["vllm:num_preemptions"] == "counter"
    assert kinds["vllm:num_requests_waiting"] == "gauge"


def test_a_past_is_written_with_its_times(bed, drawn):
    (one, *_) = drawn["two-scrapes"].series
    lines = [*bed.exposition.history_lines([one])]
    assert [float(line.split()[-1]) for line in lines] == one.time_s.tolist()
    assert 'instance="two-scrapes-0"' in lines[0]


def test_an_exporter_goes_with_the_time(bed, drawn):
    now = [0.0]
    series = drawn["under-used"].series
    exporter = bed.exporter.Exporter({"a": series}, speed=10.0, clock=lambda: now[0])
    with exporter:
        first = exporter.answer("/metrics/a")
        now[0] += 60.0
        later = exporter.answer("/metrics/a")
    assert first == bed.exposition.metrics_text(series, series[0].time_s[0])
    assert later == bed.exposition.metrics_text(series, series[0].time_s[0] + 600.0)
    assert exporter.answer("/metrics/b") is None


def test_mean_lengths_are_those_of_the_draw(bed):
    lengths = LengthSpec(prompt_median=300, prompt_sigma=0.8, output_median=200, output_sigma=0.5)
    generator = np.random.default_rng(0)
    prompt = 300 * np.exp(0.8 * generator.standard_normal(200_000))
    output = 200 * np.exp(0.5 * generator.standard_normal(200_000))
    assert bed.hosts.mean_tokens(lengths) == pytest.approx((prompt.mean(), output.mean()), rel=0.02)
    held = np.average(prompt + output / 2, weights=output)
    assert bed.hosts.footprint_tokens(lengths) == pytest.approx(held, rel=0.02)
