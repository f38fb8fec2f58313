"""May a result be compared with others, and which of its figures not? Each doubt names its evidence and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from maitre.bench_results.doubt import Doubt
from maitre.bench_results.latency_checks import check_itl, check_latencies
from maitre.bench_results.little import check_in_flight, half_a_digit
from maitre.bench_results.records import BenchmarkResult, Run
from maitre.records import Finding

_SAME_REL = 0.02
"""Printed and recomputed rates that differ by less are two ways of averaging."""
_PEAK_OVER_MEAN = 10
"""A peak so far above the mean is an artefact: a burst counted over a window near 0 s (vllm#37666)."""
_MANY_INCOMPLETE = 0.1
_OFFERED_SHARE = 0.95
"""A server that keeps up with this share of the offered rate is not the bottleneck."""


def judge(run: Run) -> BenchmarkResult:
    """A run with what can be recomputed from it, and what speaks against comparing it."""
    run = _complete(run)
    recomputed = _recompute(run)
    doubts = [doubt for check in _CHECKS for doubt in check(run)] + list(_check_rates(run, recomputed))
    fatal = [doubt for doubt in doubts if doubt.fatal]
    if fatal:  # what spoils the other figures helps to understand why
        fatal += [doubt for doubt in doubts if doubt.ignore and not doubt.fatal]
    return BenchmarkResult(
        **{name: getattr(run, name) for name in Run.model_fields},
        **recomputed,
        total_tokens_per_request=_ratio(run.total_tokens_per_s, run.requests_per_s),
        ignore=tuple(dict.fromkeys(name for doubt in doubts for name in doubt.ignore)),
        trust=not fatal,
        reasons=tuple(map(str, fatal)),
        findings=tuple(Finding(code=d.code, message=d.evidence, remedy=d.remedy) for d in doubts),
    )


def _complete(run: Run) -> Run:
    """Fill in what follows from the rest: failures hidden as missing requests, and rates from totals."""
    update: dict[str, object] = {}
    if run.failed is None and run.num_requests and run.successful is not None and not run.incomplete:
        missing = run.num_requests - run.successful
        if missing > 0:  # `failed` is printed since 0.11.1 only
            update["failed"] = missing
    if run.num_requests is None:
        counted = run.successful if run.successful is None else run.successful + (run.failed or 0)
        derived = run.requests_per_s * run.duration_s if run.requests_per_s and run.duration_s else None
        update["num_requests"] = counted if counted is not None else derived and round(derived)
    filled = run.model_copy(update=update)
    rates = _recompute(filled)
    missing_rates = {
        name: rates[f"recomputed_{name}"]
        for name in ("requests_per_s", "total_tokens_per_s", "output_tokens_per_s")
        if getattr(run, name) is None and run.failure is None
    }
    return filled.model_copy(update=missing_rates)


def _recompute(run: Run) -> dict[str, float | None]:
    """Rates from totals and duration."""
    inputs, outputs = run.total_input_tokens, run.total_output_tokens
    totals = {
        "requests_per_s": run.successful,
        "output_tokens_per_s": outputs,
        "total_tokens_per_s": inputs + outputs if inputs is not None and outputs is not None else None,
    }
    return {f"recomputed_{name}": _ratio(total, run.duration_s) for name, total in totals.items()}


def _check_result(run: Run) -> Iterator[Doubt]:
    if run.failure:
        yield Doubt(
            "no-result",
            f"no result: the tool says '{run.failure}'",
            "treat the run as failed, not as 0, and repeat it",
            fatal=True,
        )
        return
    rates = (run.requests_per_s, run.total_tokens_per_s, run.output_tokens_per_s, run.tokens_per_s)
    if all(rate is None for rate in rates):
        yield Doubt(
            "no-throughput",
            "no throughput is printed, nor totals and a duration to compute one from",
            "import the whole output of the benchmark, not a part of it",
            fatal=True,
        )
    elif not any(rates) or run.successful == 0:
        yield Doubt("nothing-served", "no request was served", "look for the error in the server's log", fatal=True)
    elif run.total_output_tokens == 0:
        yield Doubt("no-tokens", "no token was generated", "check --model, --endpoint and the tokenizer", fatal=True)


def _check_failures(run: Run) -> Iterator[Doubt]:
    if run.failed:
        total = (run.successful or 0) + run.failed
        share = f"{run.failed:,} of {total:,} requests failed ({run.failed / total:.1%})"
        yield Doubt(
            "failed-requests",
            f"{share}: the rates count the others over a time that the failed ones shaped",
            "find the cause in the server's log (vllm bench serve --save-detailed keeps each request's error), repeat",
            fatal=True,
        )
    if run.incomplete and run.incomplete > _MANY_INCOMPLETE * (run.successful or 0):
        yield Doubt(
            "incomplete-requests",
            f"{run.incomplete:,} requests were still running when the time was over and are in no figure",
            "let the stage run for many times one request's latency",
        )


def _check_labels(run: Run) -> Iterator[Doubt]:
    if run.tokens_per_s is not None and run.total_tokens_per_s is None and run.output_tokens_per_s is None:
        yield Doubt(
            "unlabelled-token-rate",
            f"{run.tokens_per_s:,.2f} tokens/s does not say whether prompt tokens count",
            "compare it with figures of the same tool and version only, or compare requests/s",
        )


def _check_load(run: Run) -> Iterator[Doubt]:
    rate, achieved = run.request_rate, run.requests_per_s
    if isinstance(rate, float | int) and achieved and achieved >= _OFFERED_SHARE * rate:
        yield Doubt(
            "not-saturated",
            f"{achieved:g} of {rate:g} offered requests/s were served: the throughput is the client's choice",
            "compare latencies at this rate, or measure capacity with --request-rate inf",
        )
    if run.max_num_seqs and run.concurrency and run.concurrency > run.max_num_seqs:
        yield Doubt(
            "queue-in-ttft",
            f"the client keeps {run.concurrency} requests in flight, max_num_seqs is {run.max_num_seqs}: "
            "the time to first token is mostly time in the queue",
            "do not read it as the server's prefill time",
        )


def _check_lengths(run: Run) -> Iterator[Doubt]:
    given = [run.settings.get(name) for name in ("max_model_len", "input_len", "output_len")]
    longest, *lengths = (value if isinstance(value, int | float) else None for value in given)
    needed = sum(length for length in lengths if length)
    if longest and needed > longest:
        yield Doubt(
            "longer-than-the-model",
            f"requests of {needed:g} tokens cannot be served with max_model_len {longest:g}",
            "find out which of the two the run really had",
            fatal=True,
        )


def check_units(runs: Sequence[Run]) -> Iterator[Doubt]:
    """Columns of latencies without a unit, in one run or a table of them."""
    names = list(dict.fromkeys(name for run in runs for name in run.without_unit))
    if names:
        yield Doubt(
            "no-unit",
            f"{', '.join(names)}: seconds or milliseconds? not used",
            "write the unit into the name, such as mean_ttft_ms or p95_latency_s",
        )


def _check_own_units(run: Run) -> Iterator[Doubt]:
    yield from check_units([run])


def _check_peak(run: Run) -> Iterator[Doubt]:
    peak, mean = run.peak_output_tokens_per_s, run.output_tokens_per_s
    if peak is None or not mean or mean <= peak <= _PEAK_OVER_MEAN * mean:
        return
    how = f"{peak / mean:,.0f} times" if peak > mean else "below"
    yield Doubt(
        "impossible-peak",
        f"the peak of {peak:,.2f} output tokens/s is {how} the mean of {mean:,.2f}",
        "ignore the peak",
        ignore=("peak_output_tokens_per_s",),
    )


def _check_rates(run: Run, recomputed: dict[str, float | None]) -> Iterator[Doubt]:
    """Whether printed rates follow from totals and duration."""
    averaged, wrong = [], []
    for name in ("requests_per_s", "total_tokens_per_s", "output_tokens_per_s"):
        printed, derived = getattr(run, name), recomputed[f"recomputed_{name}"]
        if not printed or not derived:
            continue
        off, rounded = printed / derived - 1, half_a_digit(printed)
        said = f"{name} {printed:,.2f} against {derived:,.2f} ({off:+.1%})"
        if run.tool != "GuideLLM" and abs(off) > _SAME_REL + rounded:  # whose rates are means over time
            wrong.append(said)
        elif abs(off) > _SAME_REL / 4 + rounded:
            averaged.append(said)
    if averaged:
        evidence = f"rates are averaged in another way than totals over duration: {', '.join(averaged)}"
        yield Doubt("averaged-otherwise", evidence, "use the recomputed rates for all results that you compare")
    if wrong:
        evidence = f"rates do not follow from totals and duration: {', '.join(wrong)}"
        yield Doubt("rates-contradict-totals", evidence, "find out which of them is wrong", fatal=True)


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


_CHECKS: tuple[Callable[[Run], Iterator[Doubt]], ...] = (
    *(_check_result, _check_failures, _check_labels, _check_load, _check_lengths, _check_peak, _check_own_units),
    *(check_latencies, check_itl, check_in_flight),
)
