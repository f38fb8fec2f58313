"""What all tests share: the folder of public traces and cases, and trials made by hand."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from maitre.records import Percentiles, Trial

REPOSITORY = Path(__file__).resolve().parents[1]

settings.register_profile("maitre", deadline=None)  # no test depends on a clock
settings.load_profile("maitre")


@pytest.fixture(scope="session")
def shared_path() -> Path:
    """The folder of public traces: $MAITRE_SHARED, or `shared` beside the checkout; must be there when CI=true."""
    path = Path(os.environ.get("MAITRE_SHARED") or REPOSITORY.parent / "shared")
    if path.is_dir():
        return path
    if os.environ.get("CI") == "true":
        pytest.fail(f"{path} is missing: CI runs every test")
    pytest.skip(f"{path} is missing; MAITRE_SHARED names another folder")


@pytest.fixture(scope="session")
def make_trial():
    """A trial of given dials, throughput (tokens/s), p99 inter-token latency (s) and preemptions, made by hand."""

    def make(seqs, tokens, speed, itl_p99=0.05, preemptions=0, **changes):
        latency = Percentiles(p50=itl_p99 / 2, p95=itl_p99, p99=itl_p99, max=itl_p99)
        bound_share = {"seqs": 0.7, "token-budget": 0.2, "kv-blocks": 0.1, "requests": 0.0}
        facts = {
            "max_num_seqs": seqs,
            "max_num_batched_tokens": tokens,
            "engine": "simulated",
            "num_requests": 10_000,
            "num_steps": 500,
            "duration_s": 1e6 / speed,
            "total_tokens_per_s": speed,
            "output_tokens_per_s": speed / 3,
            "requests_per_s": speed / 100,
            "ttft_s": latency,
            "itl_s": latency,
            "e2e_s": latency,
            "num_preemptions": preemptions,
            "num_recomputed_tokens": 0,
            "kv_usage": 0.5,
            "kv_usage_max": 0.75,
            "num_gpu_blocks": 1000,
            "bound_by": "seqs",
            "bound_share": bound_share,
        }
        return Trial(**facts | changes)

    return make
