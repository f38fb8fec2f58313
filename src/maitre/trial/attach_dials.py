"""Measures a server that is already up and runs maitre's scheduler: its dials are turned, and back at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from maitre.errors import SystemFailure, UsageError
from maitre.recording import RunRecord
from maitre.records import Cell, FailedTrial, Workload
from maitre.trial.attach import WARM_UP_REQUESTS, WARM_UP_TOKENS, AttachOptions
from maitre.trial.dials import DialDirectory, DialState
from maitre.trial.engine import Measurement, TrialFailure, Watch
from maitre.trial.live_options import LiveOptions
from maitre.trial.load import drive, plan_load
from maitre.trial.loaded_server import EMPTY_POLL_S, EMPTY_WAIT_S, ONE_TOKEN, WELL_SERVER_CODES, LoadedServer
from maitre.trial.measured import measured_run
from maitre.trial.metrics import summarize
from maitre.trial.probe import Probe
from maitre.trial.run_files import AppliedDials
from maitre.trial.server import ServerError
from maitre.vllm.failures import ServerFailure


@dataclass(frozen=True, slots=True)
class AttachedServer:
    """A server that this process did not start: it can be asked, but not stopped, and its log is elsewhere."""

    probe: Probe
    api_key: str | None
    log_path: Path | None = None

    @property
    def base_url(self) -> str:
        """Where it answers, without `/v1`."""
        return self.probe.base_url

    @property
    def model(self) -> str:
        """The name that requests use."""
        return self.probe.model_names[0]

    def is_alive(self) -> bool:
        """Nothing is known against it."""
        return True

    def last_lines(self, n: int) -> list[str]:  # noqa: ARG002
        """Nothing: its log is elsewhere."""
        return []

    def stop(self, grace_s: float) -> None:
        """Nothing: it is not ours."""

    def failure(self) -> ServerFailure:
        """Why it does not go on."""
        return ServerFailure(
            code="unknown",
            message=f"{self.base_url} does not answer any more",
            remedy="see the server's log, and start it again",
            last_lines=(),
        )


class AttachDialsEngine:
    """A server that somebody else runs with maitre's scheduler. Use it as a context: it is left as it was found."""

    name: str = "attach"
    cells: Sequence[Cell] | None = None

    def __init__(
        self, probe: Probe, dials: DialDirectory, state: DialState, workload: Workload, options: AttachOptions
    ) -> None:
        """Prepare.

        Args:
            probe: what the server said of itself.
            dials: the directory that its scheduler uses.
            state: what the scheduler last said.
            workload: the traffic.
            options: how to measure.
        """
        self._probe = probe
        self._dials = dials
        self._before = state
        self._workload = workload
        self._options = options
        limits = cell_of(state.start)
        live = LiveOptions(open_loop=options.open_loop, seed=options.seed, request_timeout_s=options.request_timeout_s)
        server = AttachedServer(probe, options.api_key)
        self._loaded = LoadedServer(server, dials, limits, options.vocab_size, live)
        self._loaded.num_runs = options.first_run
        self._is_warm = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Turn the dials back, and have the scheduler record nothing more.

        A refused control ends the recording; one above the server's start is always refused.

        Raises:
            SystemFailure: the server keeps other dials than it was found with.
        """
        if self._loaded.num_runs == self._options.first_run:
            return  # nothing was turned
        found = cell_of(self._before.applied)
        above = found.model_copy(update={"max_num_seqs": self._before.start.max_num_seqs + 1})
        try:
            is_back = self._turn(found) and self._turn(above)
        except SystemFailure:
            is_back = False
        if not is_back and error is None:
            raise SystemFailure(
                f"the dials could not be turned back to {found}",
                "they turn with the first request that finds the server empty: is other traffic on it?",
            )

    def measure(self, cell: Cell, watch: Watch | None = None) -> Measurement:
        """Measure one cell.

        Raises:
            TrialFailure: requests failed, or others were served in the run.
            UsageError: the server was started below the cell.
            SystemFailure: the server does not answer any more, or is not the one whose dials these are.
        """
        try:
            if not self._is_warm:
                self._warm_up()
            run = self._loaded.run(cell, self._workload, watch)
        except ServerError as error:
            if error.failure.code == "hang":
                raise SystemFailure("the server does not compute any more", error.failure.remedy) from error
            if error.failure.code not in WELL_SERVER_CODES:
                raise SystemFailure(error.failure.message, error.failure.remedy) from error
            failed = FailedTrial(**cell.model_dump(), engine=self.name, **error.failure.model_dump())
            raise TrialFailure(failed) from error
        if not isinstance(run.steps, RunRecord):
            if not self._loaded.empty():
                raise SystemFailure("the server does not get rid of dropped requests", "restart it")
            return Measurement(None, run.steps)
        is_burst = not self._options.open_loop
        measured = measured_run(run.steps, self._workload, cell, run.num_gpu_blocks, is_burst=is_burst)
        health = run.load.health
        client = {
            "client_cpu_share": health.cpu_share,
            "client_lag_p99_s": health.lag_p99_s,
            "spoiled_by": health.spoiled_by,
        }
        trial = summarize(measured, self._workload, engine=self.name)
        return Measurement(trial.model_copy(update=client), run.steps)

    def _warm_up(self) -> None:
        """A few requests at the server's own start, which also show whether these are its dials."""
        few = min(WARM_UP_REQUESTS, self._workload.num_requests)
        workload = Workload(
            name="warm-up",
            source="the first requests",
            prompt_tokens=self._workload.prompt_tokens[:few],
            output_tokens=np.minimum(self._workload.output_tokens[:few], WARM_UP_TOKENS),
        )
        try:
            self._loaded.run(self._loaded.limits, workload)
        except ServerError:
            raise
        except SystemFailure as error:
            hint = "is this directory the server's MAITRE_DIALS_DIR, and is no other traffic on it?"
            raise SystemFailure(str(error.args[0]), hint) from error
        self._is_warm = True

    def _turn(self, cell: Cell) -> bool:
        """Turn the dials with requests of one token, for as long as it may take until one finds the server empty."""
        options, loaded = self._options, self._loaded
        loaded.num_runs += 1
        self._dials.turn(loaded.num_runs, cell, self._before.applied.num_gpu_blocks)
        deadline = time.monotonic() + EMPTY_WAIT_S
        while time.monotonic() < deadline:
            plan = plan_load(ONE_TOKEN, options.vocab_size, seed=options.seed, run=loaded.num_runs)
            url, model = self._probe.base_url, self._probe.model_names[0]
            drive(plan, url, model, api_key=options.api_key, timeout_s=options.request_timeout_s)
            state = self._dials.state()
            if state is not None and state.run == loaded.num_runs:
                return True
            time.sleep(EMPTY_POLL_S)
        return False


def cell_of(dials: AppliedDials) -> Cell:
    """The cell that a server was started at, or is turned to."""
    return Cell(max_num_seqs=dials.max_num_seqs, max_num_batched_tokens=dials.max_num_batched_tokens)


def cells_above(cells: Sequence[Cell], state: DialState) -> list[Cell]:
    """Those of the cells that are above the server's start."""
    start = cell_of(state.start)
    return [
        cell
        for cell in dict.fromkeys(cells)
        if cell.max_num_seqs > start.max_num_seqs or cell.max_num_batched_tokens > start.max_num_batched_tokens
    ]


def attached_dials(path: Path, probe: Probe) -> tuple[DialDirectory, DialState]:
    """The dials of a server that is up.

    Args:
        path: the directory that its scheduler uses (MAITRE_DIALS_DIR of the server).
        probe: what the server said of itself.

    Raises:
        UsageError: no scheduler has written there, or that of another server.
        InputError: it is another version of the plug-in.
    """
    dials = DialDirectory(path.resolve())
    state = dials.state()
    if state is None:
        raise UsageError(
            f"{path}: no server with maitre's scheduler uses this directory",
            "name the server's MAITRE_DIALS_DIR; docs/tune.md says how to start one",
        )
    if probe.version is not None and probe.version != state.vllm_version:
        raise UsageError(
            f"{path} belongs to vLLM {state.vllm_version}, and {probe.base_url} is {probe.version}",
            "name the MAITRE_DIALS_DIR of this server",
        )
    return dials, state
