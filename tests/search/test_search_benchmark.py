"""The benchmark of the searches is fair: its surfaces tell everybody the same truth, and its table counts right."""

from pathlib import Path

import numpy as np
import pytest

from maitre.records import Cell

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDING = "qwen2.5-14b-lognormal-kv4521"


@pytest.fixture
def benchmark(monkeypatch):
    """Imports the modules of benchmarks/ as its scripts do."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import scenarios  # noqa: PLC0415
    import search_table  # noqa: PLC0415
    import surfaces  # noqa: PLC0415

    return {"scenarios": scenarios, "search_table": search_table, "surfaces": surfaces}


@pytest.fixture
def surface(benchmark):
    return benchmark["surfaces"].recorded_surface(RECORDING)


def never(_):
    return False


def test_steps_and_durations_tell_the_same_truth(benchmark, surface):
    noise = benchmark["surfaces"].Noise(0.02, benchmark["surfaces"].window_jitter())
    cell = surface.cells[0]
    runs = [surface.run(cell, noise, never, np.random.default_rng(seed)) for seed in range(300)]
    assert all(told.duration_s == told.steps.step_end_s[-1] for told in runs)
    logs = np.log([told.duration_s / surface.duration_s(cell) for told in runs])
    assert abs(logs.mean()) < 4 * 0.02 / 300**0.5
    assert logs.std() == pytest.approx(0.02, rel=0.15)


def test_a_run_that_is_cut_short_costs_what_it_ran(benchmark, surface):
    quiet = benchmark["surfaces"].Noise(0.0, np.zeros(1))
    cell = surface.cells[0]
    told = surface.run(cell, quiet, lambda steps: steps.num_steps >= 300, np.random.default_rng(0))
    assert told.duration_s is None
    assert told.measured_s == pytest.approx(surface.steps_s[cell][:300].sum())


def test_a_cell_that_crashes_is_no_answer(benchmark, surface):
    broken = benchmark["scenarios"].crash_fastest(surface, np.random.default_rng(0))
    (dead,) = broken.crashing
    assert dead != surface.baseline
    assert broken.run(dead, None, never, None).failed.cell == dead
    assert broken.regret(dead) == 1
    assert min(broken.regret(cell) for cell in broken.cells) == 0


@pytest.mark.parametrize("change", ["slow_fastest", "slow_neighbour"])
def test_one_cell_becomes_slow(benchmark, surface, change):
    slowed = getattr(benchmark["scenarios"], change)(surface, np.random.default_rng(1))
    ratios = [slowed.duration_s(cell) / surface.duration_s(cell) for cell in surface.cells]
    assert sorted(ratios)[:-1] == [1.0] * (len(ratios) - 1)
    assert 1.15 <= max(ratios) <= 1.25


def test_a_flat_surface_is_flat(benchmark, surface):
    flat = benchmark["scenarios"].flatten(surface, np.random.default_rng(0))
    assert surface.baseline in flat.cells
    assert max(flat.regret(cell) for cell in flat.cells) <= 0.01


def test_a_wrong_belief_leaves_the_truth_alone(benchmark, surface):
    generator = np.random.default_rng(0)
    distorted = benchmark["scenarios"].distort_prior(surface, generator)
    crowded = benchmark["scenarios"].believe_blocks(surface, generator, factor=0.8)
    assert distorted.steps_s is crowded.steps_s is surface.steps_s
    assert crowded.context.num_gpu_blocks == round(0.8 * surface.context.num_gpu_blocks)
    ratio = distorted.context.prior.step_time.coefficients / surface.context.prior.step_time.coefficients
    assert np.all(np.abs(np.log(ratio)) > 0.001)


def test_every_scenario_has_a_name_of_its_own(benchmark):
    names = [str(scenario) for scenario in benchmark["scenarios"].all_scenarios()]
    assert len(names) == len(set(names))


def test_searches_without_a_stop_are_compared_at_equal_time_and_at_equal_safety(benchmark):
    table = benchmark["search_table"]

    def episode(seconds, regrets):
        return table.Episode(
            seconds=np.array(seconds, dtype=float), regrets=np.array(regrets, dtype=float), num_cells=len(seconds),
            grid_s=100.0, has_stopped=True, decisions_s=np.zeros(len(seconds)), longest_watch_s=0.0,
        )  # fmt: skip

    ours = table.Row("maitre", [episode([10, 25], [np.nan, 0.0])] * 4, np.array([2] * 4))
    random = [episode([20, 40, 60], [0.3, 0.1, 0.0])] * 3 + [episode([25, 50, 75], [0.0, 0.0, 0.0])]
    long = table.as_long_as(ours, "random", random)
    assert long.runs.tolist() == [2, 2, 2, 1]  # a run that is under way is finished
    assert long.share_missed == 0.75
    assert table.as_sure_as(ours, "random", random).runs.tolist() == [3] * 4
    never_sure = table.as_sure_as(ours, "random", [episode([20, 40], [0.3, 0.1])])
    assert never_sure.name == "random, never as sure"


def test_a_seed_is_the_same_in_every_process(benchmark):
    seed_of = benchmark["surfaces"].seed_of
    assert seed_of(3, "recorded", 5) == seed_of(3, "recorded", 5) != seed_of(3, "simulated", 5)
    assert seed_of("recorded") == [459704038]


def test_the_present_setting_is_the_cell_nearest_to_the_default(benchmark):
    simulated = benchmark["surfaces"].simulated_surface("llama-3.1-8b", "h100", "fixed:64:8", 20)
    assert simulated.baseline == Cell(max_num_seqs=512, max_num_batched_tokens=8192)  # the default is 1024 x 8192
