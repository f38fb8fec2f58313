"""The schedules of all cells, replayed once, and the sums that a step time's coefficients are multiplied by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maitre.simulator.surface
from maitre.errors import DoesNotFitError
from maitre.recording import StepRecord
from maitre.records import Cell, ServerConfig, Workload
from maitre.simulator import StepTime, replay_at_once
from maitre.simulator.surface import ReplayedSurface
from maitre.vllm.defaults import capture_sizes

STEP_TIME = StepTime(a0=0.01, b0=1e-4, c0=1e-6, a1=0.012, b1=1e-4, c1=1e-6, d1=1e-8, knee=100)
WORKLOAD = Workload(
    name="w", source="made up", prompt_tokens=[40, 10, 170, 25] * 10, output_tokens=[12, 30, 6, 21] * 10
)
LARGEST = Cell(max_num_seqs=16, max_num_batched_tokens=256)
CELLS = [Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens) for seqs in (4, 8, 16) for tokens in (64, 256)]
SERVER = ServerConfig(model="m", max_model_len=512, enable_prefix_caching=False, **LARGEST.model_dump())

any_cell = st.sampled_from(CELLS)


def make_surface(num_blocks=500, **options):
    return ReplayedSurface(WORKLOAD, SERVER, STEP_TIME, lambda _: num_blocks, **options)


SURFACE = make_surface(started_at=LARGEST)


def steps_of(surface, cell):
    columns = surface.replay(cell).columns
    return StepRecord({**columns, "output_end_s": np.cumsum(surface.step_time(cell).steps_s(columns))})


@given(any_cell, st.lists(st.floats(1e-9, 1.0), min_size=7, max_size=7))
def test_one_product_gives_the_time_of_a_cell_for_any_step_time(cell, coefficients):
    theta = np.array(coefficients)
    step_time = SURFACE.step_time(cell, theta)
    alone = replay_at_once(WORKLOAD, SURFACE.rules(cell))
    assert SURFACE.features([cell])[0] @ theta == pytest.approx(alone.steps_s(step_time).sum())


def test_each_cell_has_a_row_in_the_order_that_was_asked_for():
    rows = SURFACE.features(CELLS[::-1])
    assert rows.shape == (len(CELLS), 7)
    for row, cell in zip(rows, CELLS[::-1], strict=True):
        assert row == pytest.approx(SURFACE.step_features(cell).sum(axis=0))


def test_a_cell_is_replayed_once(monkeypatch):
    replayed = []

    def counting(workload, rules):
        replayed.append(rules)
        return replay_at_once(workload, rules)

    monkeypatch.setattr(maitre.simulator.surface, "replay_at_once", counting)
    surface = make_surface()
    for _ in range(3):
        surface.features(CELLS)
        surface.features_until(CELLS[0], 50)
        surface.rules(CELLS[0])
    assert len(replayed) == len(CELLS)


@given(any_cell)
def test_the_steps_of_a_run_that_goes_as_foretold_are_worth_what_the_replay_is(cell):
    steps = steps_of(SURFACE, cell)
    assert SURFACE.features_of(cell, steps) == pytest.approx(SURFACE.step_features(cell))


@given(any_cell, st.floats(0.01, 1.0))
def test_until_as_many_output_tokens_the_work_is_that_of_the_first_steps(cell, share):
    steps = steps_of(SURFACE, cell)
    first = steps.first(max(1, round(share * steps.num_steps)))
    num_output_tokens = first.columns["num_decodes"].sum()
    until = SURFACE.features_until(cell, float(num_output_tokens))
    whole = SURFACE.features([cell])[0]
    assert np.all(until <= whole + 1e-9)
    if first.columns["num_decodes"][-1]:  # else the last steps made none, and do not count
        assert until == pytest.approx(SURFACE.features_of(cell, first).sum(axis=0))


@given(any_cell, st.floats(1.0, 10.0))
def test_more_output_tokens_than_there_are_mean_the_whole(cell, factor):
    total = float(SURFACE.replay(cell).columns["num_decodes"].sum())
    assert SURFACE.features_until(cell, factor * total + 1) == pytest.approx(SURFACE.features([cell])[0])


def test_graphs_are_captured_for_the_dials_at_the_start_of_the_server():
    small = CELLS[0]
    live, restarted = make_surface(started_at=LARGEST), make_surface()
    assert live.step_time(small).graph_sizes == capture_sizes(SERVER.vllm_version, LARGEST)
    assert restarted.step_time(small).graph_sizes == capture_sizes(SERVER.vllm_version, small)
    assert live.step_time(small).graph_sizes != restarted.step_time(small).graph_sizes


def test_flags_multiply_the_step_time():
    plain, slower = make_surface(), make_surface(factors=lambda _: np.array([2.0, 1, 1, 1, 1, 1, 1]))
    cell = CELLS[0]
    assert slower.step_time(cell).a0 == 2 * plain.step_time(cell).a0
    assert slower.step_time(cell).b1 == plain.step_time(cell).b1
    seconds = [surface.features([cell])[0] @ STEP_TIME.coefficients for surface in (plain, slower)]
    num_decode_only = np.sum(plain.replay(cell).columns["num_prefills"] == 0)
    assert seconds[1] - seconds[0] == pytest.approx(STEP_TIME.a0 * num_decode_only)
    assert slower.features_of(cell, steps_of(slower, cell)) == pytest.approx(slower.step_features(cell))


def test_a_request_that_is_larger_than_the_pool_does_not_fit():
    with pytest.raises(DoesNotFitError):
        make_surface(num_blocks=8).replay(CELLS[0])


def test_a_run_tells_how_large_the_pool_is():
    """Believed are 40 blocks too many, and with them a schedule without preemptions."""
    cell, truth = LARGEST, make_surface(num_blocks=60)
    believed = make_surface(num_blocks=100)
    assert believed.replay(cell).num_preemptions.sum() < truth.replay(cell).num_preemptions.sum()
    assert believed.learn_pool(cell, steps_of(truth, cell))
    assert np.array_equal(believed.features(CELLS), truth.features(CELLS))
    assert not believed.learn_pool(cell, steps_of(truth, cell))


def test_a_run_that_began_otherwise_says_nothing_of_the_pool():
    """Over HTTP the first step may have a part of the burst only."""
    cell, believed, truth = LARGEST, make_surface(), make_surface(num_blocks=60)
    steps = steps_of(truth, cell)
    fewer = StepRecord({**steps.columns, "num_prefills": steps.columns["num_prefills"] - 1})
    unknown = StepRecord({name: values for name, values in steps.columns.items() if name != "num_free_blocks"})
    for record in (fewer, unknown, steps.first(0)):
        assert not believed.learn_pool(cell, record)
    assert np.array_equal(believed.features(CELLS), make_surface().features(CELLS))
