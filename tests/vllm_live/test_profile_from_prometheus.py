"""A real vLLM on a CPU, scraped by a real Prometheus: the profile is that of the requests that were sent.

The server has the buckets that the profile proposes, so vLLM takes them.
"""

import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from maitre.prometheus.client import PrometheusClient
from maitre.workload import Selection
from maitre.workload.prometheus import describe_served, draw_served, read_prometheus

pytestmark = [pytest.mark.vllm, pytest.mark.prometheus]


def test_the_profile_is_that_of_the_requests_that_were_sent(watched, loads):
    until = datetime.fromtimestamp(watched.single_s[1], UTC)
    since = until - timedelta(minutes=10)
    served = read_prometheus(watched.prometheus.url, Selection(since=since.isoformat(), until=until.isoformat()))
    names = PrometheusClient(watched.prometheus.url).label_values("__name__")
    prompts, outputs = np.array(loads.SINGLE).T
    described = describe_served(served)
    assert described.name == "tiny"
    assert described.num_requests == pytest.approx(len(loads.SINGLE), abs=1)
    for lengths, truth in ((described.prompt_tokens, prompts), (described.output_tokens, outputs)):
        assert lengths.mean == pytest.approx(truth.mean(), rel=0.02)
        assert lengths.p50.low < np.percentile(truth, 50, method="inverted_cdf") <= lengths.p50.high
        assert lengths.max.low < truth.max() <= lengths.max.high
    assert described.output_share_of_max_tokens == pytest.approx(1, rel=0.02)
    assert set(described.finished_reasons) == {"length"}
    assert described.mean_latency_s > 0
    assert described.concurrency_mean is not None
    assert described.ttft_s is not None
    assert described.prefix_cache_hit_rate > 0
    drawn = draw_served(served, 100, 0, loads.MAX_MODEL_LEN)
    assert drawn.prompt_tokens.mean() == pytest.approx(prompts.mean(), rel=0.02)
    assert not [name for name in names if re.fullmatch(r"vllm:request_prompt_tokens", name)]
