"""A real Prometheus that keeps native histograms: they are read as the classic ones that vLLM exposes."""

import importlib.util
import math
import time
from pathlib import Path

import pytest

from maitre.prometheus.client import PrometheusClient
from maitre.verify.sources.from_prometheus import read_window

pytestmark = pytest.mark.prometheus

spec = importlib.util.spec_from_file_location("native_target", Path(__file__).with_name("native_target.py"))
native_target = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native_target)

CUMULATIVE = {0.5: 0.0, 1.0: 3.0, 2.0: 3.0, 4.0: 4.0, 8.0: 9.0, math.inf: 9.0}
"""Of 3 observations in (0.5, 1], none in (1, 2], 1 in (2, 4] and 5 in (4, 8]."""


def test_a_native_histogram_is_read_as_a_classic_one(start_server):
    target = native_target.NativeTarget("vllm:request_prompt_tokens", [3, 0, 1, 5], 40.5, model_name="m", engine="0")
    try:
        flags = ["--enable-feature=native-histograms"]
        server = start_server("prometheus", targets=[target.address], interval_s=0.2, flags=flags)
        server.wait_for("histogram_count(vllm:request_prompt_tokens)", at_least=9)
        client, now_s = PrometheusClient(server.url), time.time()
        for found in (client.query("vllm:request_prompt_tokens"), read_window(client, now_s - 60, now_s)):
            buckets = [one for one in found if one.name == "vllm:request_prompt_tokens_bucket"]
            assert {float(one.labels["le"]): one.values[-1] for one in buckets} == CUMULATIVE
            rest = {one.name: one.values[-1] for one in found if one not in buckets}
            assert rest == {"vllm:request_prompt_tokens_count": 9, "vllm:request_prompt_tokens_sum": 40.5}
            assert {one.labels["model_name"] for one in found} == {"m"}
    finally:
        target.stop()
