"""Measures a server that is already up, as it is: nothing is started, stopped or changed.

The client is the only source of latencies here, so tokens are streamed, from several processes where one core does not
follow. What the server shows in `/metrics` adds preemptions, KV usage, prefix-cache hits, and whether it served others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import numpy as np

from maitre.errors import SystemFailure, UsageError
from maitre.records import Cell, FailedTrial, Workload
from maitre.trial.client_run import client_trial
from maitre.trial.engine import Measurement, TrialFailure, Watch
from maitre.trial.load import LoadResult, count_processes, drive_in_processes, plan_load
from maitre.trial.probe import Probe, get
from maitre.trial.server_metrics import MetricsWatch, ServerSide, scrape, settled

WARM_UP_REQUESTS = 32
"""Requests before the first run: they wake the server up, and say how fast it streams."""
WARM_UP_TOKENS = 32
"""Output tokens of each at most."""


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """How to measure."""

    first_run: int
    """Number of the first run. The server keeps its prefix cache over maitre's runs, and prompts are new only for a
    number that was not used before: seconds since 1970, for one."""
    api_key: str | None = None
    open_loop: bool = False
    """Requests come at the workload's own times."""
    seed: int = 0
    """Decides the content of the prompts."""
    vocab_size: int = 32_000
    """Token ids stay below; every common model has as many."""
    request_timeout_s: float = 3600.0


class AttachEngine:
    """A server that somebody else runs, at the one cell that it runs at."""

    name: str = "attach"

    def __init__(self, probe: Probe, workload: Workload, cell: Cell, options: AttachOptions) -> None:
        """Prepare.

        Args:
            probe: what the server said of itself.
            workload: the traffic.
            cell: the dials that it runs at.
            options: how to measure.
        """
        self.cells: Sequence[Cell] | None = (cell,)
        self._probe = probe
        self._workload = workload
        self._cell = cell
        self._options = options
        self._next_run = options.first_run
        self._most_tokens_per_s: float | None = None
        """Output rate to expect at most; None before the warm-up."""

    def measure(self, cell: Cell, watch: Watch | None = None) -> Measurement:  # noqa: ARG002 - there are no steps to see
        """Measure the server's cell.

        Raises:
            UsageError: another cell is asked for.
            TrialFailure: requests failed.
            SystemFailure: the server does not answer any more.
        """
        if cell != self._cell:
            raise UsageError(
                f"the server runs at {self._cell}, and its dials cannot be turned to {cell}",
                "start it with maitre's scheduler and name its directory with --attach-dials, or use --engine live",
            )
        if self._most_tokens_per_s is None:
            self._most_tokens_per_s = self._warm_up()
        result, server = self._run(self._workload, self._most_tokens_per_s)
        is_burst = not self._options.open_loop
        trial = client_trial(result, self._workload, cell, server, engine=self.name, is_burst=is_burst)
        return Measurement(trial, None)

    def _warm_up(self) -> float:
        """Send a few requests; returns the output tokens/s that all slots together may reach at most."""
        few = min(WARM_UP_REQUESTS, self._workload.num_requests)
        workload = Workload(
            name="warm-up",
            source="the first requests",
            prompt_tokens=self._workload.prompt_tokens[:few],
            output_tokens=np.minimum(self._workload.output_tokens[:few], WARM_UP_TOKENS),
        )
        result, _ = self._run(workload, 0.0)
        slots = min(self._cell.max_num_seqs, self._workload.num_requests)
        gaps_s = result.gaps_s
        return slots / max(float(np.median(gaps_s)), 1e-3) if len(gaps_s) else 0.0

    def _run(self, workload: Workload, most_tokens_per_s: float) -> tuple[LoadResult, ServerSide | None]:
        if not self._probe.has_metrics:
            return self._load(workload, most_tokens_per_s), None
        url, key = self._probe.base_url, self._options.api_key
        before = scrape(url, key)
        with MetricsWatch(url, key) as watch:
            result = self._load(workload, most_tokens_per_s)
        return result, ServerSide(before, tuple(watch.samples), settled(url, key, before, len(result.outcomes)))

    def _load(self, workload: Workload, most_tokens_per_s: float) -> LoadResult:
        options = self._options
        run, self._next_run = self._next_run, self._next_run + 1
        plan = plan_load(
            workload,
            options.vocab_size,
            seed=options.seed,
            run=run,
            open_loop=options.open_loop and workload.arrival_s is not None,
            is_streaming=True,
        )
        result = drive_in_processes(
            plan,
            self._probe.base_url,
            self._probe.model_names[0],
            num_processes=count_processes(plan, most_tokens_per_s),
            api_key=options.api_key,
            timeout_s=options.request_timeout_s,
        )
        if result.num_errors:
            raise self._requests_failed(result)
        return result

    def _requests_failed(self, result: LoadResult) -> Exception:
        """A failed trial if the server goes on, else the end of the study."""
        counts = ", ".join(f"{count} {kind}" for kind, count in result.num_errors.most_common())
        first = next(outcome.error for outcome in result.outcomes if outcome.error_kind)
        message = f"{result.num_errors.total()} of {len(result.outcomes)} requests failed ({counts}): {first}"
        url = self._probe.base_url
        try:
            is_well = get(f"{url}/health").status == HTTPStatus.OK
        except SystemFailure:
            is_well = False
        if not is_well:
            return SystemFailure(
                f"{url} does not answer any more; {message}", "see the server's log, and start it again"
            )
        remedy = "see the server's log; --model names the model whose vocabulary prompts are made of"
        failed = FailedTrial(
            **self._cell.model_dump(), engine=self.name, code="requests-failed", message=message, remedy=remedy
        )
        return TrialFailure(failed)


def served_cell(base_url: str, api_key: str | None = None) -> Cell | None:
    """The dials that a server runs at, if it says so: only with VLLM_SERVER_DEV_MODE=1 does it (vLLM 0.11 and later).

    Args:
        base_url: without `/v1`.
        api_key: sent as a bearer token.

    Raises:
        SystemFailure: no answer.
    """
    answer = get(f"{base_url}/server_info?config_format=json", api_key)
    if answer.status != HTTPStatus.OK:
        return None
    try:
        content = json.loads(answer.body)
        scheduler = content["vllm_config"]["scheduler_config"]
        return Cell.model_validate({name: scheduler[name] for name in ("max_num_seqs", "max_num_batched_tokens")})
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
