"""The traffic of one window as metrics show it: lengths in buckets, a rate, and how many requests were in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from maitre.errors import InputError
from maitre.metric_series import FloatArray, Histogram
from maitre.records import Workload
from maitre.verify.window_figures import WindowFigures
from maitre.workload.from_histograms import workload_from_histograms

Loop = Literal["open", "closed", "backlog"]
"""`open`: requests come whatever the server does; `closed`: a fixed number of clients, each of which sends its next
request when it has its answer; `backlog`: hardly any come, and those that wait are worked off."""

NORMAL_P95 = 1.645
STEADY_SHARE = 0.5
"""In flight varies by less than this share of what independent arrivals would make it vary: clients wait for answers.
Independent arrivals make it vary by the square root of its mean (Poisson, as in M/G/∞)."""

DRAINING = 0.5
"""Fewer requests come than this share of those that are finished: a backlog is worked off."""

AT_REST = 0.5
"""Growth over the mean, of the requests in flight, up to which they only vary."""

LEAST_HIT_RATE = 0.02
"""A prefix cache that answers less changes nothing that is worth a simulation."""


@dataclass(frozen=True, slots=True, eq=False)
class ObservedTraffic:
    """What one engine was asked for in a window."""

    prompt_lengths: Histogram
    """Tokens, one observation a request, as is the next one."""
    output_lengths: Histogram
    arrival_rps: float
    """Requests that came in a second."""
    finished_rps: float
    in_flight_mean: float
    """Running and waiting requests, over time."""
    in_flight_p95: float | None = None
    """None where only the mean is known: the arrivals are then taken as independent."""
    growth: float = 0.0
    """By how much more requests were in flight at the end than at the beginning."""
    prefix_hit_rate: float = 0.0
    """Share of the prompt tokens that the prefix cache had."""

    @property
    def loop(self) -> Loop:
        """Whether requests come by themselves, or when others are answered."""
        if self.arrival_rps < DRAINING * self.finished_rps:
            return "backlog"
        if self.in_flight_p95 is None or self.in_flight_mean <= 0:
            return "open"
        spread = (self.in_flight_p95 - self.in_flight_mean) / NORMAL_P95
        return "closed" if spread < STEADY_SHARE * self.in_flight_mean**0.5 else "open"

    @property
    def is_at_rest(self) -> bool:
        """The queue does not grow all the time: one that does, from nothing, grows by twice its mean."""
        return self.growth <= AT_REST * self.in_flight_mean

    @property
    def mean_output_tokens(self) -> float:
        """Of a request; at least 1."""
        return max(1.0, self.output_lengths.mean or 1.0)

    @property
    def has_prefixes(self) -> bool:
        """The prefix cache answers so much that it has to be simulated."""
        return self.prefix_hit_rate >= LEAST_HIT_RATE

    def workload(
        self, num_requests: int, seed: int, max_model_len: int, *, length_correlation: float = 0.0
    ) -> Workload:
        """Requests as likely as those of the window, without arrival times.

        Histograms do not say how prompt and output lengths go together. Independent ones are a good guess: Spearman's
        correlation is -0.02 to 0.07 in Azure's traces of 2023 and in Mooncake's conversations. What the prefix cache
        answered is one prefix that all requests share as far as their prompts reach.

        Args:
            num_requests: how many.
            seed: of the draw.
            max_model_len: the server's limit of prompt and output.
            length_correlation: of the two lengths' normal scores, -1 to 1.
        """
        drawn = workload_from_histograms(
            self.prompt_lengths, self.output_lengths, num_requests, seed, max_model_len=max_model_len
        )
        if length_correlation:
            drawn = _paired(drawn, length_correlation, max_model_len, np.random.default_rng(seed))
        return _with_shared_prefix(drawn, self.prefix_hit_rate) if self.has_prefixes else drawn


def observed_traffic(
    figures: WindowFigures, in_flight: FloatArray | None = None, *, num_engines: int = 1
) -> ObservedTraffic:
    """The traffic of one engine.

    Args:
        figures: of the window, over all engines.
        in_flight: samples of running and waiting requests, summed over all engines; None where only means are known.
        num_engines: that share the traffic.

    Raises:
        InputError: the source has no histograms of lengths, or no rate.
    """
    prompt, output, rate = figures.prompt_lengths, figures.output_lengths, figures.rate_rps
    if prompt is None or output is None or not prompt.count or not output.count or not rate or figures.running is None:
        raise InputError(
            "the window does not tell how many requests there are, how long they are, or how many run",
            "read vllm:request_prompt_tokens, vllm:request_generation_tokens, vllm:request_success_total and "
            "vllm:num_requests_running (a log has no lengths) over a window in which requests finish",
        )
    arrivals = figures.arrival_rps
    known = None if in_flight is None or not len(in_flight) else in_flight / num_engines
    mean = (figures.running + (figures.waiting or 0.0)) / num_engines
    return ObservedTraffic(
        prompt_lengths=prompt,
        output_lengths=output,
        arrival_rps=(rate if arrivals is None else arrivals) / num_engines,
        finished_rps=rate / num_engines,
        in_flight_mean=mean if known is None else float(known.mean()),
        in_flight_p95=None if known is None else float(np.percentile(known, 95)),
        growth=((figures.arrivals or 0.0) - (figures.num_requests or 0.0)) / num_engines if figures.arrivals else 0.0,
        prefix_hit_rate=min(max(figures.prefix_hit_rate or 0.0, 0.0), 1.0),
    )


def _paired(workload: Workload, correlation: float, max_model_len: int, generator: np.random.Generator) -> Workload:
    """The same lengths, dealt out by the ranks of two normal scores that go together."""
    normal = generator.standard_normal((2, workload.num_requests))
    scores = normal[0], correlation * normal[0] + (1 - correlation**2) ** 0.5 * normal[1]
    first, second = (np.argsort(np.argsort(score)) for score in scores)
    prompt, output = np.sort(workload.prompt_tokens)[first], np.sort(workload.output_tokens)[second]
    output = np.maximum(1, np.minimum(output, max_model_len - prompt))
    return workload.model_copy(update={"prompt_tokens": prompt, "output_tokens": output})


def _with_shared_prefix(workload: Workload, hit_rate: float, chunk_tokens: int = 16) -> Workload:
    """The same requests, each beginning with as much of one common text that the cache answers this share of tokens."""
    chunks = np.floor(workload.prompt_tokens * hit_rate / chunk_tokens).astype(np.int64)
    common = tuple(range(int(chunks.max())))
    return workload.model_copy(
        update={
            "prefix_hashes": tuple(common[:number] for number in chunks.tolist()),
            "prefix_block_tokens": chunk_tokens,
        }
    )
