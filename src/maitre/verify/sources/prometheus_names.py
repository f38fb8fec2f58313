"""Which of a Prometheus API's names are vLLM's, however they are spelled there, and how series of them are selected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from maitre.errors import InputError, UsageError
from maitre.prometheus.client import PrometheusClient
from maitre.vllm.metric_names import resolve_name

HISTOGRAMS = (
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:time_to_first_token_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_max_tokens",
    "vllm:iteration_tokens_total",
)
"""The families of which all buckets are read, unless others are asked for."""

_SAMPLES = ("_bucket", "_sum", "_count")
_MATCHER = re.compile(r"\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*(.*?)\s*", re.DOTALL)
_LIKELY = re.compile(r"vllm|llm|num_requests|cache_usage|preempt|first_token|token_latency|output_token", re.IGNORECASE)
"""Part of a name that may be vLLM's after somebody renamed it."""
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ServerNames:
    """The server's names of what is to be read, by kind."""

    own: Mapping[str, str]
    """vLLM's own name of each."""
    gauges: tuple[str, ...]
    counters: tuple[str, ...]
    histograms: tuple[str, ...]
    """Of the samples; of a native histogram its own name."""
    infos: tuple[str, ...]

    def own_name(self, name: str) -> str | None:
        """What vLLM calls a sample, also one that was made of a native histogram; None for none of these names."""
        if name in self.own:
            return self.own[name]
        stem = name.rpartition("_")[0]
        own = self.own.get(stem)
        return None if own is None else own + name[len(stem) :]


def find_names(
    client: PrometheusClient,
    start_s: float,
    end_s: float,
    matchers: Sequence[str],
    prefixes: Sequence[str],
    histograms: Sequence[str],
) -> ServerNames:
    """What the server has of vLLM within a window; one request.

    Args:
        client: whom to ask.
        start_s: of the window, since the epoch.
        end_s: its end.
        matchers: as `parse_matcher` gives them.
        prefixes: beginnings that stand for `vllm:`.
        histograms: families to be read with all their buckets.

    Raises:
        InputError: nothing of vLLM is there; the error names what was looked for and what is similar.
    """
    wanted = "|".join(["(?i:.*vllm.*)", *(f"{re.escape(prefix)}.*" for prefix in prefixes)])
    selector = select(f"__name__=~{json.dumps(wanted)}", *matchers)
    names = sort_names(client.label_values("__name__", [selector], start_s, end_s), prefixes, histograms)
    if not names.own:
        raise _nothing_found(client, start_s, end_s, selector, matchers)
    return names


def sort_names(names: Iterable[str], prefixes: Sequence[str], histograms: Sequence[str]) -> ServerNames:
    """The names that are wanted; a native histogram only where there is no classic one."""
    found: dict[str, dict[str, str]] = {"gauge": {}, "counter": {}, "histogram": {}, "info": {}}
    for name in sorted(names):
        meaning = resolve_name(name, prefixes)
        if meaning is None or meaning.name.endswith("_created"):
            continue
        if meaning.family.kind != "histogram" or meaning.family.name in histograms:
            found[meaning.family.kind][name] = meaning.name
    classic = {own.removesuffix("_bucket") for own in found["histogram"].values() if own.endswith("_bucket")}
    kept = {name: own for name, own in found["histogram"].items() if own.endswith(_SAMPLES) or own not in classic}
    infos = {name: own for name, own in found["info"].items() if own == "vllm:cache_config_info"}
    return ServerNames(
        own=found["gauge"] | found["counter"] | kept | infos,
        gauges=tuple(found["gauge"]),
        counters=tuple(found["counter"]),
        histograms=tuple(kept),
        infos=tuple(infos),
    )


def select(*matchers: str) -> str:
    """A series selector."""
    return "{" + ",".join(matchers) + "}"


def any_of(label: str, values: Iterable[str]) -> str:
    """A matcher for any of some values of a label."""
    return f"{label}=~{json.dumps('|'.join(re.escape(value) for value in values), ensure_ascii=False)}"


def parse_matcher(text: str) -> str:
    """A label matcher such as `namespace=prod`, `pod=~"vllm-.*"` or `env!=test`, as PromQL writes it.

    Raises:
        UsageError: it is none.
    """
    match = _MATCHER.fullmatch(text)
    if match is None:
        raise UsageError(
            f"'{text}' is no label matcher", "write LABEL=VALUE, LABEL=~REGEX, LABEL!=VALUE or LABEL!~REGEX"
        )
    label, sign, value = match.groups()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1].replace(f"\\{value[0]}", value[0]).replace("\\\\", "\\")
    return f"{label}{sign}{json.dumps(value, ensure_ascii=False)}"


def _nothing_found(
    client: PrometheusClient, start_s: float, end_s: float, selector: str, matchers: Sequence[str]
) -> InputError:
    message = f"{client.address} has nothing of vLLM in this window: looked for {selector}"
    names = client.label_values("__name__", [], start_s, end_s)
    if not names:
        return InputError(message, "it has no metrics at all in this window: is that before its retention time?")
    ours = [name for name in names if resolve_name(name) is not None]
    if ours:
        return InputError(message, f"without {', '.join(matchers)} it has {_some(ours)}")
    similar = [name for name in names if _LIKELY.search(name)]
    if similar:
        return InputError(message, f"similar names there: {_some(similar)}; --prefix says what stands for 'vllm:'")
    hint = "does it scrape the server's /metrics? vLLM exposes nothing there with --disable-log-stats"
    return InputError(message, hint)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_SHOWN])
    return shown if len(names) <= _MAX_SHOWN else f"{shown} and {len(names) - _MAX_SHOWN} more"
