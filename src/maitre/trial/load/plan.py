"""What will be sent, and when: decided before the first request leaves."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from maitre.errors import UsageError
from maitre.records import Workload
from maitre.trial.load.prompts import make_prompts


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a run."""

    index: int
    """Its place in the workload."""
    prompt: list[int]
    """Token ids."""
    output_tokens: int
    """Tokens to be generated, no more and no less."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """All requests of one run.

    With `arrival_s` they are sent at these times, whatever the server does (open loop). Without, they are sent in their
    order, `max_concurrency` at a time (closed loop), or all at once when that is None.
    """

    run: int
    """Number of the run; part of every request's id."""
    requests: tuple[PlannedRequest, ...]
    arrival_s: tuple[float, ...] | None = None
    """Of each request, seconds from the run's start at `rate_scale` 1."""
    max_concurrency: int | None = None
    rate_scale: float = 1.0
    """How many times as fast as in `arrival_s` requests come."""
    is_streaming: bool = False
    """Whether each token is sent as it is there; needed for client-side TTFT and inter-token latency, and not free."""

    def intended_s(self, position: int) -> float:
        """When a request of `requests` should be sent at the earliest, in seconds from the run's start."""
        return 0.0 if self.arrival_s is None else self.arrival_s[position] / self.rate_scale

    def request_id(self, request: PlannedRequest) -> str:
        """The X-Request-Id header."""
        return f"maitre-{self.run}-{request.index}"

    def body(self, request: PlannedRequest, model: str) -> bytes:
        """The JSON that is posted to /v1/completions."""
        fields = {
            "model": model,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        if self.is_streaming:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(fields, separators=(",", ":")).encode()

    def deal(self, num_shares: int) -> list[LoadPlan]:
        """Deal the requests round robin, and the concurrency as evenly as it goes.

        Args:
            num_shares: at most as many as requests and as `max_concurrency`.
        """
        shares = []
        for share in range(num_shares):
            concurrency, arrivals = self.max_concurrency, self.arrival_s
            shares.append(
                replace(
                    self,
                    requests=self.requests[share::num_shares],
                    arrival_s=None if arrivals is None else arrivals[share::num_shares],
                    max_concurrency=None if concurrency is None else (concurrency + share) // num_shares,
                )
            )
        return shares


def plan_load(
    workload: Workload, vocab_size: int, *, seed: int, run: int, open_loop: bool = False, rate_scale: float = 1.0,
    max_concurrency: int | None = None, is_streaming: bool = False,
) -> LoadPlan:  # fmt: skip
    """Plan one run over a workload.

    Args:
        workload: its requests.
        vocab_size: tokens of the model's vocabulary.
        seed: with `run`, decides the prompts' content.
        run: number of the run, another one for each.
        open_loop: send at the workload's own arrival times, `rate_scale` times as fast; else all are there at once.
        rate_scale: > 0.
        max_concurrency: ≥ 1, closed loop only: requests that are under way at the same time.
        is_streaming: have the tokens streamed.

    Raises:
        UsageError: an option is out of its range, contradicts another, or asks for arrivals that the workload has not.
    """
    if open_loop and workload.arrival_s is None:
        raise UsageError(f"{workload.name} has no arrival times", "use a closed loop, or a workload with times")
    if open_loop and max_concurrency is not None:
        raise UsageError("an open loop sends on time, so its concurrency has no limit", "leave one of the two out")
    if not rate_scale > 0 or (max_concurrency is not None and max_concurrency < 1):
        raise UsageError(f"a rate of {rate_scale} with {max_concurrency} requests at a time is no load")
    prompts = make_prompts(workload, vocab_size, seed, run)
    lengths = workload.output_tokens.tolist()
    return LoadPlan(
        run=run,
        requests=tuple(PlannedRequest(index, *facts) for index, facts in enumerate(zip(prompts, lengths, strict=True))),
        arrival_s=tuple(workload.arrival_s.tolist()) if open_loop and workload.arrival_s is not None else None,
        max_concurrency=max_concurrency,
        rate_scale=rate_scale,
        is_streaming=is_streaming,
    )
