"""A source that was read and holds no usable request: an answer in itself, so the counts come with the error."""

from __future__ import annotations

from maitre.errors import InputError
from maitre.records import Record


class ServerLoad(Record):
    """What a server's log tells about its load where it does not tell the requests' lengths."""

    num_samples: int
    """Lines of periodic statistics."""
    rate_rps: float | None
    """Requests received a second, from first to last request line; None when there are none."""
    concurrency_mean: float
    concurrency_p95: float
    """Running and waiting requests."""
    waiting_max: int
    prompt_tokens_per_s: float
    """Mean; from vLLM 0.16 on without the tokens that the prefix cache answers."""
    output_tokens_per_s: float


class NoRequestsError(InputError):
    """The source holds no request whose lengths are known."""

    def __init__(
        self, message: str, hint: str, *, source: str, num_dropped: dict[str, int], load: ServerLoad | None = None
    ) -> None:
        super().__init__(message, hint)
        self.source = source
        self.num_dropped = num_dropped
        self.load = load
