"""The alerts: when each fires, which limit it is about, what to turn, and when to leave it alone.

Expressions and texts are templates (`maitre.export.queries`): `@level:metric:operations` is a recorded series
(`maitre.export.recorded_series`), `@max_waiting` a threshold, `@who` the deployment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from maitre.slo import LatencyTarget
from maitre.units import format_seconds

Severity = Literal["critical", "warning", "info"]


class Alert(NamedTuple):
    """One alert, before names and thresholds are filled in."""

    name: str
    severity: Severity
    hold: str
    """How long the expression is true before it fires (`for:`): for a mean longer than its window, so that one burst
    never fires."""
    expr: str
    summary: str
    description: str
    """A sentence a line: the value, what to turn, when not to."""

    @property
    def section(self) -> str:
        """Of docs/export.md: the name, without the percentile of a latency target."""
        return re.sub(r"P\d\dHigh$", "High", self.name)


_CONFIRMATIONS = (
    Alert(
        "VllmRequestsWaiting", "warning", "15m",
        "@level:vllm_num_requests_waiting:max_avg10m > @max_waiting",
        "@who: requests wait in steady state",
        """{{ $value | humanize }} requests waited on average over ten minutes on one engine (limit @max_waiting).
The busiest engine runs @running_now, and the fullest uses @kv_usage_now of its KV blocks.
If VllmKvCacheFull or VllmPreemptions fires, too, KV blocks are short: lower --max-num-seqs or enlarge the pool; more \
slots make it worse.
Else, if running requests stand at --max-num-seqs@seqs, raise it; if they stay below, prefills are short of tokens: \
raise --max-num-batched-tokens.
Leave both alone while latencies are within their targets: a queue that empties after each burst costs little.""",
    ),
    Alert(
        "VllmPreemptions", "warning", "15m",
        "@level:vllm_num_preemptions:max_per_minute10m >= @max_preemptions",
        "@who: requests are preempted",
        """One engine preempted {{ $value | humanize }} requests a minute over ten minutes (limit @max_preemptions); \
what they had computed is computed again.
Lower --max-num-seqs@seqs, or enlarge the pool: --gpu-memory-utilization, --kv-cache-dtype fp8, a smaller \
--max-num-batched-tokens.
Leave it alone if the inter-token latency is within its target: a few preemptions cost less than empty slots.""",
    ),
    Alert(
        "VllmItlUnstable", "warning", "15m",
        "@level:vllm_itl:p99_10m / clamp_min(@level:vllm_itl:p50_10m, @finest_itl_s) > @max_itl_ratio",
        "@who: inter-token latency is unstable",
        """The slowest hundredth of the gaps between tokens is {{ $value | humanize }} times as long as the median \
(limit @max_itl_ratio).
Long prefills in the steps of the decodes do that: lower --max-num-batched-tokens, or set \
--long-prefill-token-threshold.
If VllmPreemptions fires, too, see there first: a preempted request stands still until it is computed again.
Leave it alone while the p99 itself is within its target: nobody sees a ratio.""",
    ),
)  # fmt: skip

_CAPACITY = (
    Alert(
        "VllmKvCacheFull", "warning", "10m",
        "@level:vllm_kv_cache_usage:max_avg5m > @max_kv_usage",
        "@who: the KV cache is full",
        """{{ $value | humanizePercentage }} of one engine's KV blocks were in use over five minutes.
The next longer answer preempts another one: lower --max-num-seqs@seqs, or enlarge the pool: \
--gpu-memory-utilization, --kv-cache-dtype fp8, a smaller --max-num-batched-tokens, more GPUs.
Do not raise --max-num-seqs.
Leave it alone if nothing is preempted and nothing waits: a full pool that suffices is well used.""",
    ),
    Alert(
        "VllmQueueTimeHigh", "warning", "15m",
        "@level:vllm_queue:p95_10m > @max_queue_p95_s",
        "@who: requests spend long in the queue",
        """A twentieth of the requests waited longer than {{ $value | humanizeDuration }} before their first step \
(limit @max_queue_p95).
Which limit it is: see VllmRequestsWaiting.
If nothing waits on average, the requests come in bursts: more replicas or a limit at the gateway help, the two flags \
hardly do.""",
    ),
    Alert(
        "VllmKvCacheUnderused", "info", "1h",
        "max_over_time(@level:vllm_kv_cache_usage:max_avg5m[1h]) < @min_kv_usage\n"
        "and avg_over_time(@level:vllm_num_requests_running:sum_avg5m[1h]) >= @min_running\n"
        "and max_over_time(@level:vllm_num_requests_waiting:max_avg10m[1h]) <= @max_waiting",
        "@who: the KV cache is little used",
        """No engine used more than {{ $value | humanizePercentage }} of its KV blocks within the last hour, with \
requests running and none waiting.
No limit binds, so neither flag gains anything now: leave both at what they are.
There is room for more traffic on this server, for a longer --max-model-len, or for fewer replicas.""",
    ),
)  # fmt: skip

_FAILURES = (
    Alert(
        "VllmDown", "critical", "2m",
        "up == 0 and on (job, instance) last_over_time(@running[1h])",
        "{{ $labels.instance }}: the vLLM server does not answer",
        """{{ $labels.instance }} ({{ $labels.job }}) served vLLM's metrics within the last hour, and its scrape fails \
now.
Look at the end of its log; after "out of memory" lower --gpu-memory-utilization or --max-num-batched-tokens.
A server that is starting again answers after some minutes: raise no alarm during a rollout.""",
    ),
    Alert(
        "VllmNoMetrics", "critical", "5m",
        "absent(@running)",
        "no vLLM server is scraped",
        """No series @running_name is there: nothing is scraped, the scrape's address is wrong, or the server \
runs with --disable-log-stats.
No other alert of this file can fire meanwhile.
Silence it where the deployment is scaled to zero on purpose.""",
    ),
    Alert(
        "VllmStalled", "critical", "2m",
        "count by (@by) (\n"
        "  min_over_time(@running[5m]) > 0\n"
        "  and rate(@generation_tokens[5m]) + rate(@prompt_tokens[5m]) == 0\n"
        ")",
        "@who: requests run, and no tokens come",
        """{{ $value }} engines had requests running for five minutes without computing a token.
The engine hangs: keep its log and a stack dump (py-spy dump), and restart it.
The two limits have no part in it.""",
    ),
    Alert(
        "VllmRequestsRejected", "warning", "10m",
        "sum by (@by, reason) (rate(@rejections[5m])) > 0",
        "@who: requests are rejected",
        """{{ $value | humanize }} requests a second are turned away by {{ $labels.reason }}.
The queue is as long as it may be: see VllmRequestsWaiting for the limit behind it.
Do not raise the queue's own limit unless clients wait that long: it turns a refusal into a time-out.""",
    ),
    Alert(
        "VllmRequestsLost", "warning", "15m",
        "(\n"
        "  sum by (@by) (increase(@ttft_count[10m]))\n"
        "  - sum by (@by) (increase(@served[10m]))\n"
        "  - sum by (@by) (delta(@running[10m]))\n"
        ") / sum by (@by) (increase(@ttft_count[10m])) > @max_lost\n"
        "and sum by (@by) (increase(@ttft_count[10m])) >= 30",
        "@who: answers begin and do not end",
        """{{ $value | humanizePercentage }} of the requests that began to answer within ten minutes neither stopped \
nor reached their length (limit @max_lost_percent).
Clients gave up or the engine failed; vLLM V1 counts a request that its client gave up under no finished_reason.
If latencies are above their targets, too, clients run into time-outs: see those alerts.
Leave the limits alone if the clients cancel on purpose, as an editor's completion does.""",
    ),
)  # fmt: skip

ALERTS = (*_CONFIRMATIONS, *_CAPACITY, *_FAILURES)
"""In the order of the file; those of the latency targets follow."""

_REMEDIES = {
    "itl": """If the median is high, too, the batch is too large for the target: lower --max-num-seqs@seqs.
If the median is fine, prefills stall the decodes: lower --max-num-batched-tokens.
Do not raise either limit while this fires.""",
    "tpot": """The batch is too large for the target, or requests are preempted: lower --max-num-seqs@seqs.
Do not raise --max-num-batched-tokens: longer prefills stand between the tokens.""",
    "ttft": """If VllmRequestsWaiting or VllmQueueTimeHigh fires, too, the time is lost in the queue: see there.
Else the prefill itself is slow: raise --max-num-batched-tokens as far as the inter-token latency allows.
Leave both alone if prompts have become longer: no limit makes a prefill cheaper; prefix caching may.""",
    "e2e": """Look at which part grew: the queue (VllmQueueTimeHigh), the first token, or the time between tokens.
Leave the limits alone if answers have become longer.""",
}
_TITLES = {
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "ttft": "time to first token",
    "e2e": "end-to-end latency",
}


def target_alerts(targets: tuple[LatencyTarget, ...]) -> Iterator[Alert]:
    """An alert a latency target, such as VllmTtftP95High."""
    for target in targets:
        limit, share = format_seconds(target.limit_s), 100 - target.percent
        yield Alert(
            f"Vllm{target.metric.capitalize()}P{target.percent}High", "warning", "15m",
            f"@level:vllm_{target.metric}:p{target.percent}_10m > {target.limit_s:g}",
            f"@who: {_TITLES[target.metric]} is above its target",
            f"p{target.percent} of the {_TITLES[target.metric]} is {{{{ $value | humanizeDuration }}}} over ten "
            f"minutes (target {limit}): {share} of 100 are slower.\n{_REMEDIES[target.metric]}",
        )  # fmt: skip
