"""Runs on a server that is up: turn its dials, load it, watch it, and collect what it recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from http import HTTPStatus

import numpy as np

from maitre.errors import SystemFailure
from maitre.recording import REQUEST_COLUMNS, RunRecord, StepRecord
from maitre.records import Cell, Workload
from maitre.trial.dials import DialDirectory
from maitre.trial.engine import Watch
from maitre.trial.live_options import LiveOptions
from maitre.trial.load import LoadPlan, LoadResult, Progress, count_processes, drive_in_processes, plan_load
from maitre.trial.probe import get
from maitre.trial.run_files import RecordedSteps
from maitre.trial.run_watch import RunWatch
from maitre.trial.running_server import RunningServer
from maitre.trial.server import ServerError
from maitre.vllm.failures import NUM_LAST_LINES, FailureCode, ServerFailure

DEATH_WAIT_S = 5.0
"""How long a server may take to end after its engine has died."""

RECORD_WAIT_S = 10.0
"""How long the last rows of a run may take to reach the disk after the last answer."""

EMPTY_WAIT_S = 60.0
"""How long a server may take to get rid of dropped requests: vLLM aborts them between two steps."""

EMPTY_POLL_S = 0.1

ONE_TOKEN = Workload(name="one token", source="asks whether the server is empty", prompt_tokens=[1], output_tokens=[1])

WELL_SERVER_CODES: frozenset[FailureCode] = frozenset({"requests-failed", "other-traffic"})
"""Failures of a run after which the server goes on."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run. Its steps are a `RunRecord`, unless it was cut short."""

    steps: StepRecord
    num_gpu_blocks: int
    load: LoadResult


class LoadedServer:
    """A server with live dials, and the runs on it."""

    def __init__(
        self, server: RunningServer, dials: DialDirectory, limits: Cell, vocab_size: int, options: LiveOptions
    ) -> None:
        """Prepare.

        Args:
            server: it is ready.
            dials: the directory that it shares.
            limits: the cell that it was started at.
            vocab_size: token ids of prompts stay below.
            options: how to measure.
        """
        self.server, self.limits = server, limits
        self.num_runs = 0
        self._dials = dials
        self._vocab_size = vocab_size
        self._options = options
        self._is_empty = True
        self._step_s = np.inf
        """A typical step of the run before."""

    def run(self, cell: Cell, workload: Workload, watch: Watch | None = None) -> LiveRun:
        """Run a workload at a cell, to its end or until `watch` has seen enough.

        Raises:
            ServerError: the server died or hangs, refused requests, or served others, too.
            UsageError: the server refuses the dials.
            SystemFailure: its records are missing.
        """
        number = self._turn(cell)
        self._is_empty = False
        watching = RunWatch(self._dials.follow_run(number), watch, self._options.stall_timeout_s)
        result = self._drive(self._plan(workload, number), cell, self._options.request_timeout_s, watching)
        if watching.is_stalled:
            raise self._hangs(result)
        if result.num_errors:
            raise self._death() or self._requests_failed(result)
        num_gpu_blocks = self._dials.wait_applied(number).applied.num_gpu_blocks
        if result.cut_short and watching.steps is not None:
            return LiveRun(watching.steps, num_gpu_blocks, result)
        record = self._own_requests(self._await_records(number, workload.num_requests), workload)
        self._is_empty = True
        self._step_s = float(np.median(record.steps_s))
        return LiveRun(record, num_gpu_blocks, result)

    def empty(self) -> bool:
        """Wait until nothing is left of a run that did not come to its end; False if the server keeps it.

        The dials turn only when a request finds no other on the server and all KV blocks free: so one token is asked
        for, with dials of its own, until they have turned.
        """
        deadline = time.monotonic() + EMPTY_WAIT_S
        while not self._is_empty and (left_s := deadline - time.monotonic()) > 0 and self.server.is_alive():
            number = self._turn(self.limits)
            try:
                self._drive(self._plan(ONE_TOKEN, number), self.limits, left_s)
            except SystemFailure:
                return False
            state = self._dials.state()
            self._is_empty = state is not None and state.run == number and state.refused is None
            if not self._is_empty:
                time.sleep(EMPTY_POLL_S)
        return self._is_empty

    # a run

    def _turn(self, cell: Cell) -> int:
        self.num_runs += 1
        self._dials.turn(self.num_runs, cell, self._options.num_gpu_blocks)
        return self.num_runs

    def _plan(self, workload: Workload, run: int) -> LoadPlan:
        options = self._options
        return plan_load(
            workload,
            self._vocab_size,
            seed=options.seed,
            run=run,
            open_loop=options.open_loop and workload.arrival_s is not None,
            is_streaming=options.client_latency,
        )

    def _drive(self, plan: LoadPlan, cell: Cell, timeout_s: float, on_progress: Progress | None = None) -> LoadResult:
        """Send the requests. A token of each sequence at every step of the run before is the most to expect."""
        server = self.server
        most_tokens_per_s = min(cell.max_num_seqs, len(plan.requests)) / self._step_s
        try:
            return drive_in_processes(
                plan, server.base_url, server.model, num_processes=count_processes(plan, most_tokens_per_s),
                api_key=server.api_key, timeout_s=timeout_s, on_progress=on_progress,
            )  # fmt: skip
        except SystemFailure as error:
            raise (self._death() or error) from error

    def _await_records(self, run: int, num_requests: int) -> RecordedSteps:
        deadline = time.monotonic() + RECORD_WAIT_S
        while True:
            recorded = self._dials.read_run(run)
            num_ended = int(np.isfinite(recorded.request_columns["request_index"]).sum())
            if num_ended >= num_requests:
                return recorded
            if time.monotonic() > deadline:
                raise SystemFailure(
                    f"{num_requests - num_ended} of {num_requests} requests are missing in what the server recorded",
                    "is the disk full? See the server's log",
                )
            time.sleep(0.1)

    def _own_requests(self, recorded: RecordedSteps, workload: Workload) -> RunRecord:
        """The run, if nobody else was served in it."""
        num_others = int(np.isnan(recorded.request_columns["request_index"]).sum())
        if num_others:
            raise self._failed(
                "other-traffic",
                f"the server was given {num_others} other requests beside the {workload.num_requests} of the run",
                "keep other clients away from it while it is measured",
            )
        return RunRecord(recorded.columns, {name: recorded.request_columns[name] for name in REQUEST_COLUMNS})

    # what may go wrong

    def _hangs(self, result: LoadResult) -> ServerError:
        limit_s = self._options.stall_timeout_s
        return self._failed(
            "hang",
            f"the server did not compute a step for {limit_s:g} s, with requests under way, and was stopped "
            f"({len(result.completed)} requests were answered before)",
            "see its log for a collective or a kernel that does not return; does the GPU answer nvidia-smi?",
        )

    def _requests_failed(self, result: LoadResult) -> ServerError:
        counts = ", ".join(f"{count} {kind}" for kind, count in result.num_errors.most_common())
        first = next(outcome.error for outcome in result.outcomes if outcome.error_kind)
        message = f"{result.num_errors.total()} of {len(result.outcomes)} requests failed ({counts}): {first}"
        return self._failed("requests-failed", message, "see the server's log")

    def _death(self) -> ServerError | None:
        """Why the server cannot go on; None when it can."""
        return None if self._is_well() else ServerError(self.server.failure(), self.server.log_path)

    def _is_well(self) -> bool:
        """Whether the server goes on; one whose engine has died takes a few seconds to end."""
        for _ in range(int(DEATH_WAIT_S / 0.5)):
            if not self.server.is_alive():
                return False
            time.sleep(0.5)
        try:
            return get(f"{self.server.base_url}/health").status == HTTPStatus.OK
        except SystemFailure:
            return False

    def _failed(self, code: FailureCode, message: str, remedy: str) -> ServerError:
        last_lines = tuple(self.server.last_lines(NUM_LAST_LINES))
        return ServerError(
            ServerFailure(code=code, message=message, remedy=remedy, last_lines=last_lines), self.server.log_path
        )
