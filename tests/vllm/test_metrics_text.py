"""Scrapes of /metrics: every public case about the KV cache, every form of cache_config_info, several engines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from maitre.vllm.metrics_text import parse_metrics_text, read_cache_metrics

KEYS = ("num_gpu_blocks", "block_size", "kv_tokens", "engines", "num_cpu_blocks")


def read(text):
    return read_cache_metrics(parse_metrics_text(text))


def test_every_public_scrape_is_read_as_it_must_be(shared_path):
    wrong, num_checked = [], 0
    for case in json.loads((shared_path / "cases" / "cases.json").read_text("utf-8")):
        if case["kind"] != "metrics" or not case["files"][0].endswith(".prom"):
            continue
        found = read((shared_path / "cases" / case["files"][0]).read_text("utf-8"))
        expected = {key: value for key, value in (case["expect"] | case.get("also", {})).items() if key in KEYS}
        num_checked += len(expected)
        wrong += [(case["id"], key, getattr(found, key)) for key in expected if getattr(found, key) != expected[key]]
    assert not wrong
    assert num_checked >= 11


def info(**labels):
    text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"vllm:cache_config_info{{{text}}} 1.0\n"


FORMS = {
    "V0": (info(block_size=16, num_gpu_blocks=100, num_cpu_blocks=7), (100, 16, 1600)),
    "0.9": (info(engine=0, block_size=16, num_gpu_blocks=100), (100, 16, 1600)),
    "0.24": (info(engine=0, block_size=16, num_gpu_blocks=100, kv_cache_size_tokens=900), (100, 16, 900)),
    "0.8 with several processes": (info(block_size=16, num_gpu_blocks="None"), (None, 16, None)),
    "no block size": (info(num_gpu_blocks=100, block_size="None"), (100, None, None)),
    "relabelled": (info(block_size=16, num_gpu_blocks=100).replace("vllm:", "vllm_"), (100, 16, 1600)),
    "a time stamp": (info(block_size=16, num_gpu_blocks=100).replace(" 1.0", " 1.0 1759200000000"), (100, 16, 1600)),
    "an exemplar": (info(block_size=16, num_gpu_blocks=100).rstrip() + ' # {trace="a"} 1 1', (100, 16, 1600)),
    "no number": (info(block_size="x", num_gpu_blocks=-5), (None, None, None)),
    "not there": ('vllm:num_requests_running{engine="0"} 0.0\n', (None, None, None)),
}


@pytest.mark.parametrize(("text", "expected"), FORMS.values(), ids=FORMS)
def test_every_form_of_the_cache_configuration(text, expected):
    found = read(text)
    assert (found.num_gpu_blocks, found.block_size, found.kv_tokens) == expected
    assert found.engines == 1


def test_engines_add_up_and_each_is_listed():
    found = read("".join(info(engine=i, block_size=16, num_gpu_blocks=100 + i) for i in range(4)))
    assert (found.engines, found.num_gpu_blocks, found.kv_tokens) == (4, 406, 6496)
    assert [config.num_gpu_blocks for config in found.by_engine] == [100, 101, 102, 103]


def test_one_engine_that_is_not_known_makes_the_sum_unknown():
    known, unknown = ({"block_size": 16, "num_gpu_blocks": blocks} for blocks in (100, "None"))
    found = read(info(engine=0, **known) + info(engine=1, **unknown))
    assert (found.engines, found.num_gpu_blocks, found.kv_tokens) == (2, None, None)


def test_several_front_ends_repeat_an_engine():
    found = read("".join(info(engine=0, pid=pid, block_size=16, num_gpu_blocks=100) for pid in (7, 8)))
    assert (found.engines, found.num_gpu_blocks) == (1, 100)


def test_several_servers_in_one_scrape_are_told_apart():
    found = read("".join(info(engine=0, instance=f"h{i}:8000", block_size=16, num_gpu_blocks=100) for i in (1, 2)))
    assert (found.engines, found.num_gpu_blocks) == (2, 200)


def test_engines_of_different_block_sizes_have_none_in_common():
    found = read(info(engine=0, block_size=16, num_gpu_blocks=100) + info(engine=1, block_size=32, num_gpu_blocks=100))
    assert (found.block_size, found.kv_tokens) == (None, 4800)


def test_what_prometheus_itself_answers():
    series = {"__name__": "vllm:cache_config_info", "engine": "0", "block_size": "16", "num_gpu_blocks": "100"}
    answers = ({"metric": series, "value": [1.5, "1"]}, {"metric": series, "values": [[1, "1"], [2, "1"]]})
    for row in answers:
        found = read(json.dumps({"status": "success", "data": {"resultType": "vector", "result": [row]}}))
        assert (found.kv_tokens, found.engines) == (1600, 1)


def test_the_real_writers_of_both_formats():
    registry = CollectorRegistry()
    labels = {"engine": "0", "block_size": "16", "num_gpu_blocks": "100", "note": 'a "b" \\ {c} #\n'}
    Gauge("vllm:cache_config_info", "The cache", list(labels), registry=registry).labels(**labels).set(1)
    for text in (generate_latest(registry), generate_openmetrics(registry)):
        (sample,) = parse_metrics_text(text.decode())
        assert (sample.name, dict(sample.labels), sample.value) == ("vllm:cache_config_info", labels, 1.0)


NOTHING = [
    "", "\n", "# EOF\n", "process_cpu 5\n", "vllm:broken{a=\n", "{", '{"data": {"result": [5, {}]}}', "<p>",
]  # fmt: skip


@pytest.mark.parametrize("text", NOTHING)
def test_what_is_no_scrape_of_vllm_has_no_samples(text):
    assert parse_metrics_text(text) == []


@given(st.text(max_size=200))
def test_any_text_is_read(text):
    read("vllm:" + text)
    read(info(engine=0, block_size=16).replace("16", text))


def test_ray_shows_each_counter_twice_and_it_counts_once():
    rays = """ray_vllm_num_preemptions{ReplicaId="a",engine="0"} 3
ray_vllm_num_preemptions_total{ReplicaId="a",engine="0"} 3
ray_vllm_num_preemptions{ReplicaId="b",engine="0"} 4
ray_vllm_num_preemptions_total{ReplicaId="b",engine="0"} 4
ray_vllm_num_requests_running{ReplicaId="a",engine="0"} 7
"""
    found = [(sample.name, sample.labels["ReplicaId"], sample.value) for sample in parse_metrics_text(rays)]
    assert found == [
        ("vllm:num_preemptions_total", "a", 3), ("vllm:num_preemptions_total", "b", 4),
        ("vllm:num_requests_running", "a", 7),
    ]  # fmt: skip


def test_two_servers_may_be_spelled_in_two_ways():
    text = 'vllm:num_preemptions_total{instance="a"} 3\nvllm_num_preemptions{instance="b"} 4\n'
    assert [sample.value for sample in parse_metrics_text(text)] == [3, 4]


def test_a_family_of_a_newer_version_keeps_its_name_and_another_engines_is_passed_over():
    text = "vllm_of_tomorrow 5\nsglang:num_running_reqs 3\njob:vllm:num_requests_running:sum 3\nvllm:x-y 5\n"
    assert [sample.name for sample in parse_metrics_text(text)] == ["vllm:of_tomorrow"]


def test_the_time_of_a_sample_is_kept():
    (sample,) = parse_metrics_text("vllm:num_requests_running 5 1759200000500")
    assert sample.time_s == 1759200000.5
    (sample,) = parse_metrics_text("vllm:num_requests_running 5")
    assert sample.time_s is None
