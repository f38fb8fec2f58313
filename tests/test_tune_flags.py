"""Flags beside the two dials join the grid; a change of them costs a start of the server."""

import numpy as np
import pytest

from maitre.calibration import roofline_prior, step_time_factors
from maitre.calibration.flags import flag_covariance
from maitre.cli.flag_options import parse_flags, unfold_lists
from maitre.errors import UsageError
from maitre.gpus import find_gpu
from maitre.kv_budget import kv_bytes_per_token
from maitre.models import load_model
from maitre.recording import StepRecord
from maitre.records import Cell, ServerConfig, Trial, Workload
from maitre.search import product_grid
from maitre.setup import Setup
from maitre.simulator.surface import ReplayedSurface
from maitre.trial import Measurement
from maitre.trial.simulated import simulated_trial
from maitre.tune import tune_measured, tune_simulated

MODEL, GPU = load_model("qwen2.5-7b"), find_gpu("RTX 4090")
SERVER = ServerConfig(
    model="qwen2.5-7b", max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=1024, gpu_memory_utilization=0.9
)
WORKLOAD = Workload(name="x", source="x", prompt_tokens=[600] * 200, output_tokens=[200] * 200)
PRIOR = roofline_prior(MODEL, GPU, SERVER, kv_bytes_per_token(MODEL, "auto", 1, "auto"))
FP8 = (("kv_cache_dtype", "fp8"),)


def with_flags(cells, *settings):
    return [cell.model_copy(update={"flags": flags}) for flags in settings for cell in cells]


def test_a_list_after_a_flag_is_its_present_value_and_others_to_vary():
    words = ["tune", "w", "--kv-cache-dtype", "auto,fp8", "--gpu-memory-utilization=0.9,0.95", "--model", "m"]
    assert unfold_lists(words) == [
        "tune", "w", "--kv-cache-dtype", "auto", "--vary", "kv-cache-dtype=fp8",
        "--gpu-memory-utilization", "0.9", "--vary", "gpu-memory-utilization=0.95", "--model", "m",
    ]  # fmt: skip
    assert unfold_lists(["--kv-cache-dtype", "fp8"]) == ["--kv-cache-dtype", "fp8"]


def test_all_combinations_are_tried_the_present_one_first():
    assert parse_flags([]) == [()]
    found = parse_flags(["gpu-memory-utilization=0.95", "kv-cache-dtype=fp8"])
    assert found == [
        (),
        (("gpu_memory_utilization", "0.95"),),
        (("kv_cache_dtype", "fp8"),),
        (("kv_cache_dtype", "fp8"), ("gpu_memory_utilization", "0.95")),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [("block-size=32", "nothing to vary"), ("kv-cache-dtype", "nothing to vary"), ("gpu-memory-utilization=2", "less")],
)
def test_what_cannot_be_varied_is_refused_by_name(text, message):
    with pytest.raises(UsageError, match=message):
        parse_flags([text])


def test_a_cell_says_its_flags_and_hides_that_it_has_none():
    plain, fp8 = (
        Cell(max_num_seqs=8, max_num_batched_tokens=64),
        Cell(max_num_seqs=8, max_num_batched_tokens=64, flags=FP8),
    )
    assert plain.model_dump() == {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    assert str(fp8) == "8x64 kv_cache_dtype=fp8"
    assert Cell.model_validate_json(fp8.model_dump_json()) == fp8 != plain
    assert SERVER.at(fp8).kv_cache_dtype == "fp8"


def test_an_fp8_cache_halves_the_context_and_doubles_the_pool():
    fp8 = SERVER.cell.model_copy(update={"flags": FP8})
    factors = step_time_factors(MODEL, GPU, SERVER)(fp8)
    assert factors[[2, 5]] == pytest.approx(0.5)
    assert factors[[0, 1, 3, 4, 6]] == pytest.approx(1)
    for blocks in (None, 5000):
        setup = Setup(SERVER, MODEL, GPU, blocks)
        ratio = setup.kv_budget(fp8).num_gpu_blocks / setup.kv_budget(SERVER.cell).num_gpu_blocks
        assert ratio == pytest.approx(2, rel=0.01)


def test_what_is_not_known_of_a_flag_is_shared_by_the_cells_that_have_it():
    cells = with_flags(product_grid([8], [64, 128]), (), FP8, (("gpu_memory_utilization", "0.95"),))
    assert flag_covariance(cells) == pytest.approx(np.kron(np.diag([0, 0.01, 0]), np.ones((2, 2))))


def test_the_simulator_recommends_the_flag_that_ends_the_preemptions():
    cells = with_flags(product_grid([32, 64], [1024]), (), FP8)
    study = tune_simulated(WORKLOAD, Setup(SERVER, MODEL, GPU), cells)
    by_cell = {trial.cell: trial for trial in study.cells}
    assert set(by_cell) == set(cells)
    for cell in product_grid([32, 64], [1024]):
        fp8 = by_cell[cell.model_copy(update={"flags": FP8})]
        assert fp8.total_tokens_per_s > by_cell[cell].total_tokens_per_s
        assert fp8.num_preemptions <= by_cell[cell].num_preemptions


class TwoServers:
    """A server with either flag; an fp8 cache is a little slower than the roofline says."""

    name = "live"
    cells = None

    def __init__(self, slower):
        self.measured = []
        self._slower = slower
        setup = Setup(SERVER, MODEL, GPU)
        self.surface = ReplayedSurface(
            WORKLOAD, SERVER, PRIOR.step_time, lambda cell: setup.kv_budget(cell).num_gpu_blocks,
            factors=step_time_factors(MODEL, GPU, SERVER),
        )  # fmt: skip

    def true_s(self, cell):
        seconds = float(self.surface.replay(cell).steps_s(self.surface.step_time(cell)).sum())
        return seconds * (self._slower if cell.flags else 1.0)

    def measure(self, cell, watch=None):
        self.measured.append(cell)
        replay, scale = self.surface.replay(cell), self._slower if cell.flags else 1.0
        ends = np.cumsum(replay.steps_s(self.surface.step_time(cell))) * scale
        trial: Trial = simulated_trial(self.surface, cell, self.surface.step_time(cell), duration_s=float(ends[-1]))
        return Measurement(
            trial.model_copy(update={"engine": "live"}), StepRecord(replay.columns | {"output_end_s": ends})
        )


@pytest.mark.parametrize("slower", [0.95, 1.3])
def test_the_search_learns_what_a_flag_really_does_and_changes_it_seldom(slower):
    cells = with_flags(product_grid([16, 32, 64], [512, 1024]), (), FP8)
    server = TwoServers(slower)
    study = tune_measured(server, server.surface, PRIOR, SERVER, cells, switch_s=60.0)
    best_s = min(server.true_s(cell) for cell in cells)
    assert server.true_s(study.recommended) <= best_s / 0.98
    assert bool(study.recommended.flags) == (slower < 1)
    switches = sum(a.flags != b.flags for a, b in zip(server.measured, server.measured[1:], strict=False))
    assert switches <= 3
    assert len(server.measured) <= 8
