"""Measures a real vLLM server: one start for all cells with the dials turned live, or a fresh start for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from maitre.errors import SystemFailure
from maitre.records import Cell, FailedTrial, Trial, Workload
from maitre.trial.command import ServeCommand
from maitre.trial.dials import PLUGIN_FOLDER, DialDirectory, DialState, RecordedSteps, dial_directory
from maitre.trial.engine import TrialFailure
from maitre.trial.load import LoadResult, drive, plan_load
from maitre.trial.measured import measured_run
from maitre.trial.metrics import summarize
from maitre.trial.probe import get
from maitre.trial.recorded import RUN_SD
from maitre.trial.registry import ServerRegistry
from maitre.trial.server import Server, ServerError, start_server

WARM_UP_REQUESTS = 32
"""Requests before the first run after a start: the first ones meet cold caches and late compilation."""

SETTLE_S = 5.0
"""How long a server may take to end after its engine has died."""

RECORD_WAIT_S = 10.0
"""How long the last rows of a run may take to reach the disk after the last answer."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How to measure."""

    restart: bool = False
    """A fresh server for each cell, instead of turning the dials of one."""
    open_loop: bool = False
    """Requests come at the workload's own times."""
    seed: int = 0
    """Decides the content of the prompts."""
    vocab_size: int = 32_000
    """Token ids stay below; every common model has as many."""
    num_gpu_blocks: int | None = None
    """Hold the KV pool to this size."""
    ready_timeout_s: float = 1800.0
    request_timeout_s: float = 3600.0


class LiveEngine:
    """A vLLM server that this process starts, loads and stops. Use it as a context."""

    cells: Sequence[Cell] | None = None

    def __init__(
        self, command: ServeCommand, workload: Workload, largest: Cell, folder: Path, options: LiveOptions
    ) -> None:
        """Prepare; the server starts with the first run.

        Args:
            command: the user's own.
            workload: the traffic.
            largest: the largest value of each dial: what a live server starts at.
            folder: the study's directory, for logs and records.
            options: how to measure.
        """
        self.name = "restart" if options.restart else "live"
        self.num_starts = 0
        self._command = command
        self._workload = workload
        self._largest = largest
        self._folder = folder
        self._options = options
        self._registry = ServerRegistry(folder)
        self._dials: DialDirectory = dial_directory(folder / "dials")
        self._server: Server | None = None
        self._num_runs = 0

    def __enter__(self) -> Self:
        self._registry.stop_orphans()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, cell: Cell) -> Trial:
        """Measure one cell.

        Raises:
            TrialFailure: the server did not start or died, or requests failed.
        """
        try:
            server = self._server_for(cell)
            recorded, result = self._measure(server, cell, self._workload)
        except ServerError as error:
            failure = error.failure
            raise self._failed(cell, failure.code, failure.message, failure.remedy, failure.last_lines) from error
        run = measured_run(recorded, self._workload, is_burst=not self._options.open_loop)
        return summarize(run, self._workload, engine=self.name).model_copy(
            update={
                "client_cpu_share": result.health.cpu_share,
                "client_lag_p99_s": result.health.lag_p99_s,
                "spoiled_by": result.health.spoiled_by,
            }
        )

    def log_time_draws(
        self, cells: Sequence[Cell], num_draws: int, generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """Independent noise of one run each, shape (num_draws, cells)."""
        return generator.normal(0.0, RUN_SD, (num_draws, len(cells)))

    def start(self, cell: Cell) -> DialState:
        """Start the server before the first run, and have it say what it is.

        Raises:
            ServerError: it did not start.
            SystemFailure: it runs without maitre's scheduler.
        """
        self._server_for(cell)
        state = self._dials.state()
        if state is None:
            raise SystemFailure("the server runs without maitre's scheduler", f"see the log in {self._folder / 'logs'}")
        return state

    # the server

    def _server_for(self, cell: Cell) -> Server:
        if self._server is not None and (self._options.restart or not self._server.is_alive()):
            self._stop()
        if self._server is None:
            self._server = self._start(cell if self._options.restart else self._largest)
        return self._server

    def _start(self, limits: Cell) -> Server:
        self._dials.clear()
        self.num_starts += 1
        words = self._dials.arguments(limits)
        command = self._command.with_flags(dict(zip(words[::2], words[1::2], strict=True)))
        command = command.with_environment(self._dials.environment(), self._mounts())
        log = self._folder / "logs" / f"server-{self.num_starts}.log"
        server = start_server(
            command, log_path=log, ready_timeout_s=self._options.ready_timeout_s, registry=self._registry
        )
        try:
            self._warm_up(server, limits)
        except BaseException:
            server.stop()
            raise
        return server

    def _mounts(self) -> dict[str, str]:
        """Folders that a container needs, at the same place inside."""
        return {str(folder): str(folder) for folder in (PLUGIN_FOLDER, self._dials.path)}

    def _warm_up(self, server: Server, limits: Cell) -> None:
        few = min(WARM_UP_REQUESTS, self._workload.num_requests)
        workload = Workload(
            name="warm-up",
            source="the first requests",
            prompt_tokens=self._workload.prompt_tokens[:few],
            output_tokens=np.minimum(self._workload.output_tokens[:few], 32),
        )
        self._measure(server, limits, workload)

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    # one run

    def _measure(self, server: Server, cell: Cell, workload: Workload) -> tuple[RecordedSteps, LoadResult]:
        options = self._options
        self._num_runs += 1
        run = self._num_runs
        self._dials.turn(run, cell, options.num_gpu_blocks)
        plan = plan_load(
            workload,
            options.vocab_size,
            seed=options.seed,
            run=run,
            open_loop=options.open_loop and workload.arrival_s is not None,
        )
        try:
            model = server.probe.model_names[0] if server.probe else self._command.served_model_name or ""
            result = drive(
                plan, server.base_url, model, api_key=self._command.api_key, timeout_s=options.request_timeout_s
            )
        except SystemFailure as error:
            raise (self._death_of(server) or error) from error
        if result.num_errors:
            raise self._requests_failed(cell, result, server)
        self._dials.wait_applied(run)
        return self._await_records(run, workload.num_requests), result

    def _await_records(self, run: int, num_requests: int) -> RecordedSteps:
        deadline = time.monotonic() + RECORD_WAIT_S
        while True:
            recorded = self._dials.read_run(run)
            num_ended = int(np.isfinite(recorded.request_columns["last_token_s"]).sum())
            if num_ended >= num_requests:
                return recorded
            if time.monotonic() > deadline:
                raise SystemFailure(
                    f"{num_requests - num_ended} of {num_requests} requests are missing in what the server recorded",
                    "is other traffic on the server, or the disk full?",
                )
            time.sleep(0.1)

    def _requests_failed(self, cell: Cell, result: LoadResult, server: Server) -> Exception:
        if death := self._death_of(server):
            return death
        counts = ", ".join(f"{count} {kind}" for kind, count in result.num_errors.most_common())
        first = next(outcome.error for outcome in result.outcomes if outcome.error_kind)
        message = f"{result.num_errors.total()} of {len(result.outcomes)} requests failed ({counts}): {first}"
        return self._failed(cell, "requests-failed", message, "see the server's log", tuple(server.last_lines(20)))

    def _is_well(self, server: Server) -> bool:
        """Whether the server goes on; one whose engine has died takes a few seconds to end."""
        for _ in range(int(SETTLE_S / 0.5)):
            if not server.is_alive():
                return False
            time.sleep(0.5)
        try:
            return get(f"{server.base_url}/health").status == HTTPStatus.OK
        except SystemFailure:
            return False

    def _death_of(self, server: Server) -> ServerError | None:
        """Why the server cannot go on, which is then stopped; None when it can."""
        if self._is_well(server):
            return None
        self._stop()
        return ServerError(server.failure(), server.log_path)

    def _failed(self, cell: Cell, code: str, message: str, remedy: str, last_lines: tuple[str, ...]) -> TrialFailure:
        return TrialFailure(
            FailedTrial(
                **cell.model_dump(),
                engine=self.name,
                code=code,
                message=message,
                remedy=remedy,
                last_lines=last_lines,
            )
        )
