"""What became of the requests of a run. Errors are data here, like times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from maitre.trial.load.health import ClientHealth

ErrorKind = Literal["refused", "rejected", "server-error", "timed-out", "reset", "wrong-length", "bad-answer"]
"""In this order: no connection could be made; 4xx; 5xx, or an error in the stream; no end in time; the connection
broke; another number of tokens than was asked for; an answer that is not what vLLM answers."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request: all times in seconds from the run's start, latencies from the intended time."""

    index: int
    """Its place in the workload."""
    intended_s: float
    """When it should have been sent: its arrival, or the moment at which its place in the closed loop was free."""
    sent_s: float
    """When it was."""
    first_token_s: float | None
    """None without streaming, or when no token came."""
    last_token_s: float | None
    """The last token, without streaming the whole answer; None when none came."""
    num_tokens: int
    """Tokens that came: the server's count, or the events of a stream that broke off."""
    status: int | None
    """HTTP status; None when there was no answer."""
    error_kind: ErrorKind | None = None
    error: str = ""
    """What went wrong, in the server's words where it has any."""
    gaps_s: NDArray[np.float64] | None = None
    """Seconds between consecutive events of the stream; None without streaming. An event may hold several tokens."""

    @property
    def ttft_s(self) -> float | None:
        """Intended time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.intended_s

    @property
    def e2e_s(self) -> float | None:
        """Intended time to last token."""
        return None if self.last_token_s is None else self.last_token_s - self.intended_s

    @property
    def num_merged_tokens(self) -> int:
        """Streamed tokens that came in one event with another."""
        if self.gaps_s is None or self.first_token_s is None:
            return 0
        return max(0, self.num_tokens - len(self.gaps_s) - 1)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One run: every request that was planned, in the order of the workload; of a run cut short those that ended."""

    outcomes: tuple[RequestOutcome, ...]
    health: ClientHealth
    start_s: float
    """The run's start on the machine's monotonic clock (`time.monotonic`)."""
    cut_short: bool = False
    """The run was ended before all requests had."""

    @property
    def completed(self) -> tuple[RequestOutcome, ...]:
        """Requests without an error."""
        return tuple(outcome for outcome in self.outcomes if outcome.error_kind is None)

    @property
    def num_errors(self) -> Counter[ErrorKind]:
        """Failed requests by kind."""
        return Counter(outcome.error_kind for outcome in self.outcomes if outcome.error_kind is not None)

    @property
    def duration_s(self) -> float:
        """Run's start to the last token of all."""
        return max((outcome.last_token_s or 0.0 for outcome in self.outcomes), default=0.0)

    @property
    def num_tokens(self) -> int:
        """Output tokens of the completed requests."""
        return sum(outcome.num_tokens for outcome in self.completed)

    @property
    def ttft_s(self) -> NDArray[np.float64]:
        """Of each completed request, shape (completed,); empty without streaming."""
        return np.array([outcome.ttft_s for outcome in self.completed if outcome.ttft_s is not None])

    @property
    def e2e_s(self) -> NDArray[np.float64]:
        """Of each completed request, shape (completed,)."""
        return np.array([outcome.e2e_s for outcome in self.completed if outcome.e2e_s is not None])

    @property
    def gaps_s(self) -> NDArray[np.float64]:
        """Between the events of each completed request, all of them in one array; empty without streaming."""
        gaps = [outcome.gaps_s for outcome in self.completed if outcome.gaps_s is not None]
        return np.concatenate(gaps) if gaps else np.array([])

    @property
    def send_delay_s(self) -> NDArray[np.float64]:
        """How much later than intended each request was sent, shape (requests,)."""
        return np.array([outcome.sent_s - outcome.intended_s for outcome in self.outcomes])


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A run so far."""

    num_requests: int
    num_sent: int
    num_done: int
    """Finished, with or without an error."""
    num_failed: int
    elapsed_s: float
    """Since the run's start."""
