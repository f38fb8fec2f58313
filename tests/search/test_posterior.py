"""What is known of all cells after a few runs, against servers whose truth is known."""

from pathlib import Path

import numpy as np
import pytest

from maitre.calibration.served import unknown_prior
from maitre.recording import load_recording, recorded_workload
from maitre.records import ServerConfig
from maitre.search.dial_process import dial_covariance
from maitre.search.evidence import foresee, read_duration, read_steps
from maitre.search.posterior import Posterior
from maitre.simulator import StepTime
from maitre.simulator.surface import ReplayedSurface
from maitre.trial.recorded import recorded_server

RECORDING = Path(__file__).parents[1] / "data/recordings/qwen2.5-14b-lognormal-kv4521.json"
FAR_APART = (0, 5, 10)
"""Cells that differ in both dials: 2x64, 4x256, 16x128."""
H200_STEP_TIME = StepTime(a0=0.009, b0=2e-5, c0=5e-8, a1=1e-3, b1=4e-5, c1=1e-7, d1=4e-9, knee=206)


def runs_of(world, positions, generator=None, surface=None, **changes):
    return [
        read_steps(surface or world.server, world.cells[i], world.run(world.cells[i], generator, **changes),
                   is_complete="share" not in changes)
        for i in positions
    ]  # fmt: skip


def log_truth(world):
    return np.log([world.true_s(cell) for cell in world.cells])


def flat_world(make_world):
    """Every cell takes about as long as every other, where the simulator sees a factor of four."""
    world = make_world()
    noise = np.random.default_rng(7).normal(0, 0.05, len(world.cells))
    world.own = dict(zip(world.cells, (3.3 - log_truth(world) + noise).tolist(), strict=True))
    return world


def spread(posterior, num_draws=2000):
    return posterior.draws(num_draws, np.random.default_rng(0)).std(axis=0)


def anything(factor):
    """What is known of a model and a machine that nobody has heard of, off by a factor."""
    prior = unknown_prior(
        ServerConfig(model="m", max_model_len=512, max_num_seqs=16, max_num_batched_tokens=256), "a toaster"
    )
    step_time = prior.step_time
    return prior.model_copy(update={"step_time": step_time.with_coefficients(step_time.coefficients * factor)})


# the step time


def test_before_any_run_the_surface_is_the_simulators_and_hardly_known(surface, cells, believe):
    posterior = Posterior(surface, believe(), cells, [])
    assert posterior.mean == pytest.approx(posterior.simulated_log_times, abs=0.01)
    assert spread(posterior).min() > 0.2
    assert posterior.trust == pytest.approx(0.99)


def test_runs_without_noise_reveal_the_step_time_behind_a_wrong_belief(world, believe, truth):
    posterior = Posterior(
        world.server, believe([1.3, 0.7, 1.3, 0.7, 1.3, 0.7, 1.3]), world.cells, runs_of(world, FAR_APART)
    )
    assert posterior.mean == pytest.approx(log_truth(world), abs=0.01)
    weighty = [0, 3, 4]  # a0, a1, b1: the others have a tenth of the time or less
    assert posterior.coefficients[weighty] == pytest.approx(truth[weighty], rel=0.05)


@pytest.mark.parametrize("factor", [1 / 20, 1, 20])
def test_a_step_time_that_nothing_is_known_of_is_found_too(world, factor):
    """The right size differs by a factor of 3 to 400, and so does each coefficient."""
    posterior = Posterior(world.server, anything(factor), world.cells, runs_of(world, FAR_APART))
    assert posterior.mean == pytest.approx(log_truth(world), abs=0.02)
    assert posterior.trust > 0.9


@pytest.mark.parametrize("window_sd", [0.0, 0.02, 0.15])
@pytest.mark.parametrize("factor", [1 / 20, 20])
def test_the_model_is_linear_around_what_it_finds(make_world, factor, window_sd):
    world = make_world(window_sd=window_sd)
    posterior = Posterior(
        world.server, anything(factor), world.cells, runs_of(world, FAR_APART, np.random.default_rng(1))
    )
    assert posterior.parameters.mean[:7] == pytest.approx(np.zeros(7), abs=0.01)


@pytest.mark.parametrize("pair", [(5, 6), (4, 6), (6, 7)])
@pytest.mark.parametrize("factor", [1 / 20, 1, 20])
def test_on_an_h200_the_search_for_the_step_time_does_not_go_to_and_fro(factor, pair):
    """Two runs, whose windows fit to 2 %, would rather have one coefficient negative."""
    recording, runs = load_recording(RECORDING)
    server = recorded_server(recording)
    surface = ReplayedSurface(
        recorded_workload(recording), server, H200_STEP_TIME, lambda _: recording.num_gpu_blocks, started_at=server.cell
    )
    cells = [run.recorded.cell for run in runs]
    seen = [read_steps(surface, cells[i], runs[i], is_complete=True) for i in pair]
    posterior = Posterior(surface, anything(factor), cells, seen)
    assert posterior.parameters.mean[:7] == pytest.approx(np.zeros(7), abs=0.01)


def test_a_coefficient_that_is_zero_stays_out_of_the_way(world, believe):
    posterior = Posterior(world.server, believe([1, 1, 1, 1, 1, 1, 0]), world.cells, runs_of(world, FAR_APART))
    assert np.isfinite(posterior.mean).all()
    assert posterior.mean == pytest.approx(log_truth(world), abs=0.005)


# how sure


def test_every_run_makes_the_surface_surer(make_world, believe):
    world = make_world(run_sd=0.005, window_sd=0.01)
    runs = runs_of(world, (4, 0, 11, 5), np.random.default_rng(0))
    spreads = [spread(Posterior(world.server, believe(), world.cells, runs[:n])).mean() for n in range(5)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[4] < 0.05 * spreads[0]


def test_a_run_that_is_still_to_come_never_adds_variance_and_takes_most_from_its_own_cell(world, believe):
    posterior = Posterior(world.server, believe(), world.cells, runs_of(world, (4,)))
    before = posterior.covariance_after(None)
    for position in FAR_APART:
        expected = foresee(world.server, world.cells[position], posterior.coefficients)
        after = posterior.covariance_after(expected)
        assert np.linalg.eigvalsh(before - after).min() > -1e-9
        assert after[position, position] < 0.5 * before[position, position]


@pytest.mark.parametrize("num_runs", [2, 3])
def test_intervals_cover_the_truth_of_cells_that_were_not_measured(make_world, believe, num_runs):
    """In 40 worlds, with what a real server has of its own: 1 % of each cell, 0.7 % of each run, 1 % of each window."""
    covered = []
    for seed in range(40):
        generator = np.random.default_rng(seed)
        world = make_world(run_sd=0.007, window_sd=0.01)
        own = generator.multivariate_normal(np.zeros(12), dial_covariance(world.cells, 0.01, 2.0))
        world.own = dict(zip(world.cells, own.tolist(), strict=True))
        prior = believe(np.exp(generator.normal(0, 0.2, 7)))
        measured = generator.choice(12, num_runs, replace=False)
        posterior = Posterior(world.server, prior, world.cells, runs_of(world, measured, generator))
        low, high = np.quantile(posterior.draws(1000, generator), [0.025, 0.975], axis=0)
        inside = (low <= log_truth(world)) & (log_truth(world) <= high)
        covered += np.delete(inside, measured).tolist()
    assert np.mean(covered) >= 0.9


def test_a_drift_within_runs_is_not_taken_for_the_step_time(make_world, believe):
    """Each run is up to 15 % slower at one time and faster at another, in a slow wave."""
    covered = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        world = make_world(drift=0.15)
        posterior = Posterior(world.server, believe(), world.cells, runs_of(world, FAR_APART, generator))
        low, high = np.quantile(posterior.draws(1000, generator), [0.025, 0.975], axis=0)
        inside = (low <= log_truth(world)) & (log_truth(world) <= high)
        covered += np.delete(inside, FAR_APART).tolist()
    assert np.mean(covered) >= 0.9


def test_runs_of_the_same_cell_average_out_what_differs_from_run_to_run(make_world, believe):
    world = make_world(run_sd=0.02, window_sd=0.01)
    often = runs_of(world, [0, 10, *[5] * 8], np.random.default_rng(3))
    once, eight_times = (spread(Posterior(world.server, believe(), world.cells, often[:n]))[5] for n in (3, 10))
    assert eight_times < 0.75 * once


def test_a_machine_that_is_uneven_within_runs_is_thought_uneven_between_runs(make_world, believe):
    spreads = []
    for window_sd in (0.01, 0.15):
        world = make_world(window_sd=window_sd)
        runs = runs_of(world, FAR_APART, np.random.default_rng(5))
        spreads.append(spread(Posterior(world.server, believe(), world.cells, runs)))
    assert np.all(spreads[1][list(FAR_APART)] > 4 * spreads[0][list(FAR_APART)])


# whom to believe


def test_how_far_the_belief_was_off_at_the_first_run_is_held_against_nobody(world, believe):
    before = Posterior(world.server, believe(), world.cells, [])
    after = Posterior(world.server, believe(4.0), world.cells, runs_of(world, (4,)))
    assert after.weights == pytest.approx(before.weights)


def test_a_simulator_that_is_right_keeps_its_weight(make_world, believe):
    world = make_world(run_sd=0.005, window_sd=0.01)
    posterior = Posterior(world.server, believe(), world.cells, runs_of(world, range(6), np.random.default_rng(0)))
    assert posterior.trust > 0.99


def test_a_simulator_that_is_wrong_loses_its_weight_run_by_run(make_world, believe):
    world = flat_world(make_world)
    order = [4, 0, 11, 2]
    runs = runs_of(world, order)
    trust = [Posterior(world.server, believe(), world.cells, runs[:n]).trust for n in (0, 2, 3, 4)]
    assert trust == sorted(trust, reverse=True)
    assert trust[0] > 0.9
    assert trust[-1] < 0.01
    posterior = Posterior(world.server, believe(), world.cells, runs)
    assert posterior.mean[order] == pytest.approx(log_truth(world)[order], abs=0.02)
    assert np.abs(posterior.mean - log_truth(world)).max() < 0.2  # where the simulator is off by up to 1.0


def test_one_cell_that_is_its_own_does_not_bend_the_step_time(make_world, believe, truth):
    odd = 4
    world = make_world()
    world.own = {world.cells[odd]: 0.2}
    posterior = Posterior(world.server, believe(), world.cells, runs_of(world, (0, 11, 2, 9, odd)))
    assert posterior.mean[odd] == pytest.approx(log_truth(world)[odd], abs=0.05)
    far = [0, 2, 9, 11]
    assert posterior.mean[far] == pytest.approx(log_truth(world)[far], abs=0.03)


# schedules


def test_a_schedule_that_differs_is_the_cells_own_and_says_nothing_of_the_step_time(
    make_world, surface, small_pool, believe
):
    world = make_world(small_pool)
    overflowing = 11
    own = Posterior(surface, believe(), world.cells, runs_of(world, [overflowing], surface=surface))
    right = Posterior(small_pool, believe(), world.cells, runs_of(world, [overflowing]))
    assert own.coefficients == pytest.approx(right.coefficients, rel=0.01)
    assert own.mean[overflowing] == pytest.approx(log_truth(world)[overflowing], abs=0.01)
    same_schedule = [0, 1, 2]
    assert own.mean[same_schedule] == pytest.approx(log_truth(world)[same_schedule], abs=0.05)


def test_schedules_that_differed_once_may_differ_elsewhere(make_world, surface, small_pool, believe):
    world = make_world(small_pool)
    measured = (0, 11)
    wrong = Posterior(surface, believe(), world.cells, runs_of(world, measured, surface=surface))
    right = Posterior(small_pool, believe(), world.cells, runs_of(world, measured))
    neighbour = 9  # overflows as well, and was not measured
    assert spread(wrong)[neighbour] > 2 * spread(right)[neighbour]
    off = log_truth(world)[neighbour] - wrong.simulated_log_times[neighbour]
    assert wrong.mean[neighbour] - wrong.simulated_log_times[neighbour] > 0.5 * off > 0.05


def test_a_run_that_was_cut_short_says_the_same_as_the_whole(world, believe):
    whole = Posterior(world.server, believe(1.2), world.cells, runs_of(world, FAR_APART))
    cut = runs_of(world, FAR_APART[:2]) + runs_of(world, FAR_APART[2:], share=0.4)
    short = Posterior(world.server, believe(1.2), world.cells, cut)
    assert short.mean == pytest.approx(whole.mean, abs=0.005)
    assert spread(short)[10] < 3 * spread(whole)[10]


def test_whoever_does_not_believe_in_the_simulator_extrapolates_a_cut_run_with_care(make_world, believe):
    world = flat_world(make_world)
    runs = runs_of(world, (4, 0, 11, 2))
    short = Posterior(world.server, believe(), world.cells, [*runs, *runs_of(world, (6,), share=0.4)])
    assert short.trust < 0.1
    assert short.mean[6] == pytest.approx(log_truth(world)[6], abs=0.1)
    whole = Posterior(world.server, believe(), world.cells, [*runs, *runs_of(world, (6,))])
    assert spread(short)[6] > 1.5 * spread(whole)[6]


def test_runs_without_steps_are_believed_as_well(world, believe):
    runs = [read_duration(world.server, world.cells[i], world.true_s(world.cells[i])) for i in FAR_APART]
    posterior = Posterior(world.server, believe(1.3), world.cells, runs)
    assert posterior.mean[list(FAR_APART)] == pytest.approx(log_truth(world)[list(FAR_APART)], abs=0.01)
    assert posterior.mean == pytest.approx(log_truth(world), abs=0.05)


# draws


def test_draws_have_the_mean_of_the_mixture_and_a_row_each(make_world, believe):
    world = make_world(run_sd=0.01, window_sd=0.01)
    posterior = Posterior(world.server, believe(), world.cells, runs_of(world, (4, 0), np.random.default_rng(0)))
    draws = posterior.draws(4000, np.random.default_rng(0))
    assert draws.shape == (4000, 12)
    assert draws.mean(axis=0) == pytest.approx(posterior.mean, abs=4 * draws.std(axis=0).max() / np.sqrt(4000))
    assert posterior.weights.sum() == pytest.approx(1)
    assert np.array_equal(draws, posterior.draws(4000, np.random.default_rng(0)))


def test_a_surface_of_one_cell_is_a_surface(world, believe):
    cell = world.cells[3]
    run = read_steps(world.server, cell, world.run(cell), is_complete=True)
    posterior = Posterior(world.server, believe(), [cell], [run, run])
    assert posterior.mean == pytest.approx([np.log(world.true_s(cell))], abs=0.01)
    assert posterior.draws(10, np.random.default_rng(0)).shape == (10, 1)
