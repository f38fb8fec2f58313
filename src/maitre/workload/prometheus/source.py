"""From what a server served to requests like them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from maitre.prometheus.access import Access
from maitre.prometheus.client import PrometheusClient
from maitre.records import Workload
from maitre.workload.arrivals import unit_arrivals
from maitre.workload.from_histograms import workload_from_histograms
from maitre.workload.langfuse import Selection
from maitre.workload.prometheus.families import find_families
from maitre.workload.prometheus.profile import describe_served
from maitre.workload.prometheus.question import read_question
from maitre.workload.prometheus.served import Served, read_served

_ANYBODY = Access()


def read_prometheus(
    base_url: str,
    selection: Selection,
    access: Access = _ANYBODY,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Served:
    """Ask a Prometheus what vLLM served.

    Args:
        base_url: `http://HOST:PORT`, with the path before /api/v1 if there is one; a login in it is never shown.
        selection: window and label matchers; without a window the last 24 hours.
        access: who asks.
        now: the clock.

    Raises:
        UsageError: the address, a time or a filter cannot be read, or several models are served and none is chosen.
        InputError: no vLLM there, or nothing finished in the window.
        SystemFailure: the server cannot be reached or fails.
    """
    client = PrometheusClient(base_url, access)
    return read_served(find_families(client, read_question(selection, now())))


def draw_served(served: Served, num_requests: int, seed: int, max_model_len: int | None = None) -> Workload:
    """Requests like those that were served, at the mean rate of a Poisson process.

    Args:
        served: at least one finished request.
        num_requests: how many, ≥ 1.
        seed: of the draw, ≥ 0.
        max_model_len: the server's, in tokens, which no request exceeds.

    Raises:
        InputError: requests longer than `max_model_len` were counted.
    """
    described = describe_served(served)
    drawn = workload_from_histograms(
        served.prompt,
        served.output,
        num_requests,
        seed,
        max_model_len,
        name=described.name,
        source=described.source,
    )
    codes = [finding.code for finding in described.findings]
    doubts = f"; {', '.join(codes)}: see maitre profile" if codes else ""
    if num_requests == 1:
        return drawn
    return drawn.model_copy(
        update={
            "arrival_s": unit_arrivals(drawn, seed) / described.rate_rps,
            "source": f"{drawn.source}, Poisson arrivals at {described.rate_rps:.3g} requests/s{doubts}",
        }
    )
