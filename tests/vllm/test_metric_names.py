"""Names of metrics: every spelling of every family leads back to vLLM's own, and nobody else's name does."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.vllm.metric_families import BY_NAME, FAMILIES, NEVER_EXPOSED
from maitre.vllm.metric_names import canonical_name, resolve_name, spellings

SAMPLES = [(own, written, family) for family in FAMILIES for written, own in spellings(family)]
DRESSES = {
    "colon": "vllm:{}",
    "underscore": "vllm_{}",
    "dot, as in OpenTelemetry and Datadog": "vllm.{}",
    "Ray": "ray_vllm_{}",
    "Ray and a colon": "ray_vllm:{}",
    "a team's prefix": "acme_prod_vllm_{}",
}


def test_no_spelling_means_two_things():
    meanings = {}
    for own, written, _ in SAMPLES:
        meanings.setdefault(written, set()).add(own)
    assert [written for written, owns in meanings.items() if len(owns) > 1] == []


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
def test_every_spelling_of_every_family_comes_back(dress):
    for own, written, family in SAMPLES:
        for name in (dress.format(written), dress.format(written).upper()):
            assert resolve_name(name) == (own, family, False), name


@given(st.sampled_from(SAMPLES), st.sampled_from(["llm_", "inference:", "Serving."]))
def test_a_prefix_of_ones_own_can_be_given(sample, prefix):
    own, written, _ = sample
    assert canonical_name(prefix + written) is None
    assert canonical_name(prefix + written, [prefix]) == own


@given(st.sampled_from(SAMPLES), st.sampled_from(["sum", "rate5m", "p99", "avg"]))
def test_what_a_recording_rule_made_is_no_sample(sample, operation):
    _, written, _ = sample
    assert canonical_name(f"job:vllm:{written}:{operation}") is None
    assert canonical_name(f"vllm:{written}:{operation}") is None


@pytest.mark.parametrize(
    "name",
    [
        "sglang:num_running_reqs",
        "sglang_num_requests_running",
        "tgi_request_count",
        "tgi_queue_size",
        "node_cpu_seconds_total",
        "process_start_time_seconds",
        "http_requests_total",
        "num_requests_running",
        "vllm",
        "vllm:",
        "",
        "vllm:no_such_family",
        "notvllm_num_requests_running",
        "vllm:num_requests_running_sum",
        "vllm:kv_cache_usage_perc_bucket",
        "vllm:num_requests_waiting_total",
        "x" * 100_000 + "_vllm_num_requests_running",
    ],
)
def test_foreign_names_are_none(name):
    assert canonical_name(name) is None


@given(st.text(max_size=40))
def test_whatever_is_asked_there_is_an_answer(name):
    found = resolve_name(name)
    assert found is None or found.name.startswith(found.family.name.removesuffix("_total"))


def test_the_histogram_that_is_called_a_total():
    found = resolve_name("vllm_iteration_tokens_bucket")
    assert (found.name, found.family.kind) == ("vllm:iteration_tokens_total_bucket", "histogram")
    assert canonical_name("ray_vllm_iteration_tokens_total_sum") == "vllm:iteration_tokens_total_sum"


def test_a_counters_time_of_birth_is_not_its_count():
    assert canonical_name("vllm:num_preemptions_created") == "vllm:num_preemptions_created"
    assert canonical_name("vllm_num_preemptions") == "vllm:num_preemptions_total"


@pytest.mark.parametrize(("quoted", "own"), NEVER_EXPOSED.items())
def test_names_that_never_were_are_understood_and_told_apart(quoted, own):
    for name in (quoted, quoted.replace(":", "_"), quoted.upper()):
        found = resolve_name(name)
        assert (found.name, found.is_alias) == (own, True)


def test_a_successor_is_a_family_that_outlives_the_old_one():
    for family in FAMILIES:
        if family.successor:
            assert family.last is not None
            assert BY_NAME[family.successor].last is None
        if family.hidden_since:
            assert family.last is not None


def version(text):
    return tuple(int(part) for part in text.split("."))


def test_versions_are_in_order_and_names_are_unique():
    assert len(BY_NAME) == len(FAMILIES)
    for family in FAMILIES:
        assert family.name.startswith("vllm:")
        assert version("0.4.2") <= version(family.first) <= version("0.33")
        assert family.last is None or version(family.first) < version(family.last)
        assert (family.kind == "counter") <= family.name.endswith("_total")


def test_every_name_of_a_real_scrape_is_known_with_its_kind():
    """Of vLLM 0.32.0."""
    lines = (Path(__file__).parents[1] / "verify" / "data" / "vllm-0.32.0-busy.prom").read_text().splitlines()
    names = {re.split(r"[{ ]", line)[0] for line in lines if line.startswith("vllm:")}
    assert [name for name in names if canonical_name(name) != name] == []
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    for name, kind in kinds.items():
        if not name.endswith("_created"):
            assert BY_NAME[name].kind in {kind, "info" if kind == "gauge" else kind}, name
    assert len(names) > 60
