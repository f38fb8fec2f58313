"""Runs made by hand."""

import numpy as np
import pytest

from maitre.records import Cell
from maitre.simulator.step import SEQS
from maitre.trial import Run


@pytest.fixture(scope="session")
def make_run():
    """A burst of `num_steps` steps of one second, ten useful tokens and four decodes each, with any fields changed."""

    def make(num_steps=100, num_requests=20, **changes):
        steps, requests = np.ones(num_steps, dtype=np.int64), np.ones(num_requests)
        facts = {
            "cell": Cell(max_num_seqs=4, max_num_batched_tokens=64),
            "num_gpu_blocks": 100,
            "step_end_s": np.cumsum(steps).astype(float),
            "bound_by": SEQS * steps,
            "num_running": 4 * steps,
            "num_waiting": np.where(np.arange(num_steps) < num_steps - 10, 5, 0),
            "num_free_blocks": 50 * steps,
            "num_useful_tokens": 10 * steps,
            "num_steady_decodes": 4 * steps,
            "other_gaps": np.zeros((0, 2), dtype=np.int64),
            "output_tokens": np.full(num_requests, 11),
            "arrival_s": 0 * requests,
            "first_scheduled_s": 0 * requests,
            "first_token_s": 1 * requests,
            "last_token_s": 11 * requests,
            "num_preemptions": 0,
            "num_recomputed_tokens": 0,
            "num_cached_tokens": 0,
            "is_burst": True,
        }
        return Run(**facts | changes)

    return make
