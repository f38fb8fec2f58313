"""Measures a real vLLM server: one start for all cells with the dials turned live, or a fresh start for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from maitre.errors import SystemFailure, UsageError
from maitre.recording import RunRecord
from maitre.records import Cell, FailedTrial, Workload
from maitre.trial.command import ServeCommand
from maitre.trial.dials import PLUGIN_FOLDER, DialDirectory, fresh_dials
from maitre.trial.engine import Measurement, TrialFailure, Watch
from maitre.trial.facts import ServerFacts, read_facts, write_facts
from maitre.trial.latencies import percentiles
from maitre.trial.live_options import LiveOptions
from maitre.trial.load import LoadResult
from maitre.trial.loaded_server import WELL_SERVER_CODES, LiveRun, LoadedServer
from maitre.trial.measured import measured_run
from maitre.trial.metrics import summarize
from maitre.trial.registry import ServerRegistry
from maitre.trial.server import STOP_GRACE_S, ServerError, start_server
from maitre.vllm.command import flag_words

__all__ = ["LiveEngine", "LiveOptions"]

WARM_UP_REQUESTS, WARM_UP_TOKENS = 256, 16
"""Requests before the first run after a start, and output tokens of each at most: the first ones meet cold caches and
late compilation. After 32 of them the first run on an H200 was still 0.6 % slow, for its requests came in late."""

HUNG_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL for a server that does nothing any more."""


SMALL_VOCABULARY = 32_000
"""Where the server cannot tell its own: every common model has as many tokens."""


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
        self._server: LoadedServer | None = None

    def __enter__(self) -> Self:
        self._registry.stop_orphans()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def measure(self, cell: Cell, watch: Watch | None = None) -> Measurement:
        """Measure one cell.

        Args:
            cell: the dials.
            watch: is shown the steps about once a second, in another thread; True ends the run, whose requests are
                dropped.

        Raises:
            TrialFailure: the server did not start, died or hung, or requests failed.
        """
        return self.measure_requests(cell, self._workload, watch)

    def measure_requests(self, cell: Cell, requests: Workload, watch: Watch | None = None) -> Measurement:
        """Measure one cell with other requests than those of the study.

        Args:
            cell: the dials.
            requests: come at their arrival times in an open loop, and all at once where they have none.
            watch: as for `measure`.

        Raises:
            TrialFailure: as for `measure`.
        """
        try:
            run = self._server_for(cell).run(cell, requests, watch)
        except ServerError as error:
            if error.failure.code not in WELL_SERVER_CODES:
                self._stop(HUNG_GRACE_S if error.failure.code == "hang" else STOP_GRACE_S)
            failed = FailedTrial(**cell.model_dump(), engine=self.name, **error.failure.model_dump())
            raise TrialFailure(failed) from error
        if not isinstance(run.steps, RunRecord):
            return Measurement(None, run.steps)
        is_burst = not self._options.open_loop or requests.arrival_s is None
        measured = measured_run(run.steps, requests, cell, run.num_gpu_blocks, is_burst=is_burst)
        trial = summarize(measured, requests, engine=self.name, targets=self._options.targets)
        return Measurement(trial.model_copy(update=_client_figures(run.load)), run.steps)

    def start(self, cell: Cell) -> ServerFacts:
        """What the server says of itself. It is started only if it never was in this study.

        Args:
            cell: where to start it, if each cell has a start of its own.

        Raises:
            ServerError: it did not start.
            SystemFailure: it runs without maitre's scheduler.
        """
        facts = read_facts(self._facts_path)
        if facts is None:
            self._server_for(cell)
            facts = read_facts(self._facts_path)
            assert facts is not None
        return facts

    # the server

    @property
    def _facts_path(self) -> Path:
        return self._folder / "server.json"

    def _server_for(self, cell: Cell) -> LoadedServer:
        limits = cell if self._options.restart else self._largest.model_copy(update={"flags": cell.flags})
        if self._server is not None and not self._can_go_on(self._server, limits):
            self._stop()
        if self._server is None:
            self._server = self._start(limits)
        return self._server

    def _can_go_on(self, running: LoadedServer, limits: Cell) -> bool:
        if running.limits.flags != limits.flags:
            return False
        if self._options.restart and (running.limits != limits or running.num_runs > 1):  # the first is the warm-up
            return False
        return running.server.is_alive() and running.empty()

    def _start(self, limits: Cell) -> LoadedServer:
        number, dials = fresh_dials(self._folder / "dials")
        self.num_starts += 1
        words = [*dials.arguments(limits), *flag_words(limits.flags)]
        command = self._command.with_flags(dict(zip(words[::2], words[1::2], strict=True)))
        command = command.with_environment(dials.environment(), _mounts(dials))
        server = start_server(
            command,
            log_path=self._folder / "logs" / f"server-{number}.log",
            ready_timeout_s=self._options.ready_timeout_s,
            registry=self._registry,
        )
        try:
            vocab_size = self._options.vocab_size or self._facts(dials).vocab_size or SMALL_VOCABULARY
            loaded = LoadedServer(server, dials, limits, vocab_size, self._options)
            self._warm_up(loaded)
        except BaseException:
            server.stop()
            raise
        return loaded

    def _facts(self, dials: DialDirectory) -> ServerFacts:
        """What a server says of itself. The first of a study is remembered; a later one must be of the same vLLM."""
        state, before = dials.state(), read_facts(self._facts_path)
        if state is None:
            raise SystemFailure("the server runs without maitre's scheduler", f"see the log in {self._folder / 'logs'}")
        facts = ServerFacts.of(state)
        if before is None:
            write_facts(self._facts_path, facts)
        elif before.vllm_version != state.vllm_version:
            raise UsageError(
                f"{self._folder} was measured with vLLM {before.vllm_version}, the server now is {state.vllm_version}",
                "name a new directory with --study",
            )
        return facts

    def _warm_up(self, server: LoadedServer) -> LiveRun:
        few = min(WARM_UP_REQUESTS, self._workload.num_requests)
        workload = Workload(
            name="warm-up",
            source="the first requests",
            prompt_tokens=self._workload.prompt_tokens[:few],
            output_tokens=np.minimum(self._workload.output_tokens[:few], WARM_UP_TOKENS),
        )
        return server.run(server.limits, workload)

    def _stop(self, grace_s: float = STOP_GRACE_S) -> None:
        if self._server is not None:
            running, self._server = self._server, None
            running.server.stop(grace_s)


def _client_figures(load: LoadResult) -> dict[str, Any]:
    """What the load generator saw, and whether it could keep up."""
    return {
        "client_ttft_s": percentiles(load.ttft_s),
        "client_itl_s": percentiles(load.gaps_s),
        "client_cpu_share": load.health.cpu_share,
        "client_lag_p99_s": load.health.lag_p99_s,
        "spoiled_by": load.health.spoiled_by,
    }


def _mounts(dials: DialDirectory) -> dict[str, str]:
    """Folders that a container needs, at the same place inside; the server writes into the second."""
    return {str(PLUGIN_FOLDER): f"{PLUGIN_FOLDER}:ro", str(dials.path): str(dials.path)}
