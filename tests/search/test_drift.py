"""Which of the equally good cells keeps most when the traffic or the memory changes."""

import numpy as np
import pytest

from maitre.calibration import roofline_prior
from maitre.gpus import find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import load_model
from maitre.records import Cell, DriftLoss, ServerConfig, Workload
from maitre.search import product_grid
from maitre.search.drift import drift_losses, most_robust

MODEL = load_model("qwen2.5-7b")
SERVER = ServerConfig(model="qwen2.5-7b", max_model_len=1000, max_num_seqs=16, max_num_batched_tokens=1024)
STEP_TIME = roofline_prior(MODEL, find_gpu("H200"), SERVER, kv_bytes_per_token(MODEL, "auto", 1, "auto")).step_time
CELLS = product_grid([16, 32, 64], [512, 1024])


def workload(**changes):
    facts = {"name": "x", "source": "x", "prompt_tokens": [400] * 200, "output_tokens": [100] * 200}
    return Workload(**facts | changes)


def losses(traffic, plateau, num_gpu_blocks):
    found = drift_losses(traffic, SERVER, STEP_TIME, lambda _: num_gpu_blocks, CELLS, plateau)
    return {loss.cell: loss for loss in found}


def cell(seqs, tokens):
    return Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def test_when_the_pool_is_tight_fewer_slots_lose_less():
    tight = 40 * 500 // 16  # about 40 sequences
    at_ease, pressed = (losses(workload(), [cell(32, 1024)], blocks)[cell(32, 1024)] for blocks in (8 * tight, tight))
    assert at_ease.by_change["longer prompts"] > pressed.by_change["longer prompts"] + 0.02
    assert at_ease.by_change["smaller pool"] > pressed.by_change["smaller pool"] + 0.02
    assert at_ease.worst == max(at_ease.by_change.values())


def test_the_best_cell_of_a_case_loses_nothing_in_it():
    found = losses(workload(), CELLS, 5000)
    for name in ("longer prompts", "more requests", "smaller pool"):
        assert min(loss.by_change[name] for loss in found.values()) == pytest.approx(0)
        assert all(0 <= loss.by_change[name] < 1 for loss in found.values())


def test_prompts_do_not_grow_beyond_what_the_server_takes():
    long = workload(prompt_tokens=[890] * 50, output_tokens=[100] * 50)
    losses(long, CELLS, 5000)  # 1.3 · 890 + 100 would be refused by max_model_len 1000
    tight = 990 // 16 + 2  # exactly one request: a longer one would not fit the pool
    assert losses(long, [cell(16, 1024)], tight + 8)[cell(16, 1024)].worst < 1


def test_a_pool_that_no_longer_holds_a_request_loses_everything():
    one = -(-500 // 16) + 1
    found = losses(workload(), [cell(16, 512)], one)
    assert found[cell(16, 512)].by_change["smaller pool"] == 1.0


def test_shared_prefixes_stay_shared():
    hashes = tuple((1, 100 + i) for i in range(200))
    shared = workload(prefix_hashes=hashes, prefix_block_tokens=256)
    cached = drift_losses(
        shared, SERVER.model_copy(update={"enable_prefix_caching": True}), STEP_TIME, lambda _: 5000, CELLS, CELLS
    )
    assert all(np.isfinite(loss.worst) for loss in cached)


def test_equally_robust_cells_all_count():
    made = [
        DriftLoss(max_num_seqs=s, max_num_batched_tokens=512, by_change={"x": worst}, worst=worst)
        for s, worst in ((16, 0.010), (32, 0.013), (64, 0.2))
    ]
    assert [found.max_num_seqs for found in most_robust(made)] == [16, 32]
