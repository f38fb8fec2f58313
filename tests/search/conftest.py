"""A made-up server whose truth is known, and the simulator that a search believes in."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from maitre.calibration import Calibration
from maitre.recording import StepRecord
from maitre.records import Cell, FailedTrial, ServerConfig, Workload
from maitre.search.challenge import Challenge
from maitre.search.strategy import Told
from maitre.simulator import StepTime
from maitre.simulator.surface import ReplayedSurface

TRUTH = StepTime(a0=0.02, b0=1e-4, c0=4e-6, a1=0.015, b1=2e-4, c1=6e-6, d1=1e-8, knee=32)
NUM_BLOCKS = 2000
MANY_RUNS = 40
"""A search that needs more on a dozen cells does not end."""


def make_cells(slots=(2, 4, 8, 16), budgets=(64, 128, 256)):
    return [Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens) for seqs in slots for tokens in budgets]


def make_workload(num_requests=96, seed=0):
    generator = np.random.default_rng(seed)
    return Workload(
        name="w",
        source="made up",
        prompt_tokens=generator.integers(10, 200, num_requests).tolist(),
        output_tokens=generator.integers(10, 100, num_requests).tolist(),
    )


def make_surface(workload, cells, num_blocks=NUM_BLOCKS):
    largest = {
        "max_num_seqs": max(cell.max_num_seqs for cell in cells),
        "max_num_batched_tokens": max(cell.max_num_batched_tokens for cell in cells),
    }
    server = ServerConfig(model="m", max_model_len=512, enable_prefix_caching=False, **largest)
    return ReplayedSurface(workload, server, TRUTH, lambda _: num_blocks, started_at=Cell(**largest))


def make_prior(factors=1.0, spread=0.15):
    """What is believed of the step time; `factors` says how far it is off."""
    return Calibration(
        kind="scaled",
        model="m",
        gpu="g",
        source="made up",
        step_time=TRUTH.with_coefficients(TRUTH.coefficients * np.broadcast_to(factors, 7)),
        covariance=np.diag(np.full(7, spread**2)).tolist(),
        cell_sd=0.04,
        time_sd=0.1,
    )


@dataclass
class World:
    """A server: its schedules, its step time, and what each cell has of its own."""

    server: ReplayedSurface
    """What the server really does."""
    cells: list
    own: dict = field(default_factory=dict)
    """Logarithms by which a cell takes longer than its steps should."""
    run_sd: float = 0.0
    window_sd: float = 0.0
    drift: float = 0.0
    """By how much a run is slower at one time and faster at another, in a slow wave."""

    def true_s(self, cell):
        return float(self.server.features([cell])[0] @ TRUTH.coefficients * np.exp(self.own.get(cell, 0.0)))

    def run(self, cell, generator=None, share=1.0):
        """The steps of a run, or of its first part."""
        columns = self.server.replay(cell).columns
        steps_s = self.server.step_features(cell) @ TRUTH.coefficients * np.exp(self.own.get(cell, 0.0))
        if generator is not None:
            windows = generator.normal(0, self.window_sd, len(steps_s) // 32 + 1)
            steps_s = steps_s * np.exp(generator.normal(0, self.run_sd) + np.repeat(windows, 32)[: len(steps_s)])
            wave = np.sin(2 * np.pi * (np.arange(len(steps_s)) / len(steps_s) + generator.random()))
            steps_s = steps_s * np.exp(self.drift * wave)
        steps = StepRecord({**columns, "output_end_s": np.cumsum(steps_s)})
        return steps if share == 1 else steps.first(round(share * steps.num_steps))

    def whole(self, cell, generator=None):
        steps = self.run(cell, generator)
        return Told(cell, float(steps.step_end_s[-1]), steps)

    def measure(self, search, cell, generator=None, failing=(), every=60):
        """One run, watched every few steps."""
        if cell in failing:
            failed = FailedTrial(**cell.model_dump(), engine="e", code="crash", message="it died", remedy="none")
            return Told(cell, None, failed=failed)
        steps = self.run(cell, generator)
        for num_steps in range(every, steps.num_steps, every):
            if search.watch(steps.first(num_steps)):
                return Told(cell, None, steps.first(num_steps))
        return Told(cell, float(steps.step_end_s[-1]), steps)

    def play(self, search, **options):
        """Let a search ask to the end; returns what was asked and told."""
        story = []
        while (ask := search.ask()) is not None:
            assert len(story) < MANY_RUNS
            told = self.measure(search, ask.cell, **options)
            story.append((ask, told))
            search.tell(told)
        return story

    def regret(self, cell, failing=()):
        return 1 - min(self.true_s(c) for c in self.cells if c not in failing) / self.true_s(cell)


@pytest.fixture(scope="session")
def cells():
    return make_cells()


@pytest.fixture(scope="session")
def surface(cells):
    """The simulator, with the schedules that the server has."""
    return make_surface(make_workload(), cells)


@pytest.fixture(scope="session")
def make_world(surface, cells):
    """Makes a server that does what the simulator says, unless it is told otherwise."""

    def make(server=surface, **changes):
        return World(server, cells, **changes)

    return make


@pytest.fixture(scope="session")
def world(make_world):
    """A server that does what the simulator says."""
    return make_world()


@pytest.fixture(scope="session")
def small_pool(cells):
    """The same server with a KV pool that overflows from eight slots on."""
    return make_surface(make_workload(), cells, num_blocks=60)


@pytest.fixture(scope="session")
def believe():
    """Makes a prior."""
    return make_prior


@pytest.fixture(scope="session")
def truth():
    """The server's step time, shape (7,)."""
    return TRUTH.coefficients


@pytest.fixture
def make_search(world, believe):
    """Makes our search; the step time is believed 20 % too long."""

    def make(baseline=Cell(max_num_seqs=4, max_num_batched_tokens=128), cells=None, surface=None, **options):  # noqa: B008 - frozen
        return Challenge(cells or world.cells, baseline, surface or world.server, believe(1.2), **options)

    return make


@pytest.fixture
def noisy(make_world):
    """As servers are: 1 % of noise from run to run and from window to window, and 1 % that each cell has of its own."""

    def make(seed, run_sd=0.01):
        world = make_world(run_sd=run_sd, window_sd=0.01)
        own = np.random.default_rng(seed).normal(0, 0.01, len(world.cells))
        world.own = dict(zip(world.cells, own.tolist(), strict=True))
        return world

    return make
