"""One window of a Prometheus API as vLLM's own series, in ten requests or fewer, however long the window is.

| what | step | why that is enough |
|---|---|---|
| gauges | 15 s, or a thousandth of the window | a thousand values of the moment give a mean and percentiles |
| counters, the labels of the cache | the same | cumulative: what lies between two steps is not lost |
| buckets | a 24th of the window, not below 60 s | the same, and there are hundreds of them |
| counters and buckets where a server started, stopped or restarted | 15 s | there it would be lost |

Lost remains what a server counted after the last scrape before it stopped and before the first one after its start, and
what a series with a label value that came up for the first time counted within its first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from maitre.errors import InputError, UsageError
from maitre.metric_series import MetricSeries
from maitre.prometheus.client import PrometheusClient
from maitre.units import format_seconds
from maitre.verify.sources.prometheus_names import HISTOGRAMS, ServerNames, any_of, find_names, parse_matcher, select
from maitre.verify.sources.same_series import drop_copies, join_pieces
from maitre.verify.sources.server_starts import MARGIN_S, Turn, find_turns
from maitre.vllm.metric_names import resolve_name

FINE_STEP_S = 15.0
"""The usual scrape interval of vLLM's own examples is 5 s, Prometheus' default 60 s."""
FINE_POINTS = 1000
COARSE_STEP_S = 60.0
COARSE_POINTS = 24
MAX_CLOSER_LOOKS = 5
"""Requests for stretches in which servers started, stopped or restarted; more would exceed ten in all."""
_TURN_POINTS = 100
_MAX_TURN_S = _TURN_POINTS * COARSE_STEP_S
"""A longer stretch is one restart after the other, and its points lie too far apart."""
_ANCHORS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:request_success_total")
"""Counters that every process has; one of them tells when it restarted."""


def read_window(
    client: PrometheusClient,
    start_s: float,
    end_s: float,
    *,
    matchers: Sequence[str] = (),
    model_name: str | None = None,
    all_models: bool = False,
    prefixes: Sequence[str] = (),
    histograms: Sequence[str] = HISTOGRAMS,
    on_note: Callable[[str], None] = lambda _: None,
) -> list[MetricSeries]:
    """All that a server stores of vLLM within a window, under vLLM's own names; families it has not are absent.

    Args:
        client: whom to ask; its `remarks` are the server's own warnings.
        start_s: of the window, since the epoch.
        end_s: its end.
        matchers: label matchers such as `namespace=prod` or `pod=~"vllm-.*"`; all of them must fit.
        model_name: as the server was told to serve it; `cache_config_info` has no such label and is taken from the
            same servers.
        all_models: whether several models are read together.
        prefixes: beginnings of names that stand for `vllm:`, where somebody renamed the metrics.
        histograms: families of which all buckets are read; vLLM's own names without a suffix.
        on_note: is told what was lost or left out.

    Raises:
        UsageError: the window is empty, or a matcher is none.
        InputError: nothing of vLLM is there, or several models; and what the client raises.
        SystemFailure: what the client raises.
    """
    start_s, end_s = round(start_s, 3), round(end_s, 3)
    if not end_s > start_s:
        raise UsageError("the window ends before it starts", "give an earlier start or a later end")
    given = tuple(parse_matcher(text) for text in matchers)
    names = find_names(client, start_s, end_s, given, prefixes, histograms)
    for written, own in names.own.items():
        if (meaning := resolve_name(written, prefixes)) is not None and meaning.is_alias:
            on_note(f"{written}: no vLLM ever had a metric of that name; it is taken for {own}")
    servers = _Reader(client, names, given, start_s, end_s)
    model = servers if model_name is None else replace(servers, matchers=(*given, any_of("model_name", [model_name])))
    step_s, coarse_step_s = steps_s(end_s - start_s)
    fine = model.read((*names.gauges, *names.counters), step_s)
    if model_name is None and not all_models:
        _refuse_several_models(fine)
    coarse = model.read(names.histograms, coarse_step_s)
    if not (fine or coarse):
        raise _no_sample(servers, model_name)
    closer = _closer_looks(model, fine, step_s, on_note)
    kept, num_copies = drop_copies(join_pieces([*fine, *coarse, *closer]))
    if num_copies:
        on_note(
            f"{num_copies} series are there twice, from two Prometheus servers or two scrape jobs: one of each counts"
        )
    return kept + _infos(servers, step_s, kept)


def steps_s(window_s: float) -> tuple[float, float]:
    """The steps of gauges and counters, and of histograms."""
    return even_step_s(window_s, FINE_STEP_S, FINE_POINTS), even_step_s(window_s, COARSE_STEP_S, COARSE_POINTS)


def even_step_s(length_s: float, finest_s: float, max_steps: int) -> float:
    """A step that leads from one end to the other, in whole milliseconds, so that the last moment is not missed.

    Args:
        length_s: between the ends.
        finest_s: no shorter step, unless the length itself is shorter.
        max_steps: no more of them.
    """
    length_ms = round(length_s * 1000)
    num_steps = min(max(int(length_ms / (finest_s * 1000)), 1), max_steps)
    return max(length_ms // num_steps, 1) / 1000


@dataclass(frozen=True, slots=True)
class _Reader:
    client: PrometheusClient
    names: ServerNames
    matchers: tuple[str, ...]
    start_s: float
    end_s: float

    def read(self, names: Sequence[str], step_s: float, turn: Turn | None = None) -> list[MetricSeries]:
        """Some metrics under vLLM's own names, at even steps over the window or over a part of it."""
        if not names:
            return []
        matchers = [any_of("__name__", names), *self.matchers]
        start_s, end_s = self.start_s, self.end_s
        if turn is not None:
            start_s, end_s = turn.start_s, turn.end_s
            matchers += [any_of("instance", sorted(turn.instances))] if all(turn.instances) else []
        found = self.client.query_range(select(*matchers), start_s, end_s, step_s)
        named = ((self.names.own_name(one.name), one) for one in found)  # a name that was not asked for has none
        return [MetricSeries(name, one.labels, one.time_s, one.values) for name, one in named if name is not None]

    def read_resets(self, names: Sequence[str], step_s: float) -> list[MetricSeries]:
        """Where counters fell between two steps."""
        over = f"[{round(step_s + MARGIN_S)}s]"
        exprs = [f"(resets({select(any_of('__name__', [name]), *self.matchers)}{over}) > 0)" for name in names]
        return self.client.query_range(" or ".join(exprs), self.start_s, self.end_s, step_s)


def _closer_looks(
    reader: _Reader, fine: Sequence[MetricSeries], step_s: float, on_note: Callable[[str], None]
) -> list[MetricSeries]:
    """Counters and buckets around the starts, stops and restarts of servers."""
    anchor = next((name for name in _ANCHORS if any(one.name == name for one in fine)), None)
    if anchor is None:
        return []
    spellings = [name for name in reader.names.counters if reader.names.own[name] == anchor]
    resets = reader.read_resets(spellings, step_s) if step_s > FINE_STEP_S else []
    anchors = [one for one in fine if one.name == anchor]
    turns = find_turns(anchors, resets, reader.start_s, reader.end_s, step_s)
    close, rest = turns[:MAX_CLOSER_LOOKS], turns[MAX_CLOSER_LOOKS:]
    if rest or any(turn.end_s - turn.start_s > _MAX_TURN_S for turn in close):
        lost_s = steps_s(reader.end_s - reader.start_s)[1]
        on_note(
            "servers started, stopped or restarted too often to look at each time closely: "
            f"up to {format_seconds(lost_s)} of what one counted before may be missing each time"
        )
    names = (*reader.names.counters, *reader.names.histograms)
    return [
        one
        for turn in close
        for one in reader.read(names, even_step_s(turn.end_s - turn.start_s, FINE_STEP_S, _TURN_POINTS), turn)
    ]


def _infos(reader: _Reader, step_s: float, kept: Sequence[MetricSeries]) -> list[MetricSeries]:
    """The cache's labels, of the servers that are read."""
    places = {one.place for one in kept}
    infos, _ = drop_copies(join_pieces(reader.read(reader.names.infos, step_s)))
    return [one for one in infos if one.place in places]


def _no_sample(reader: _Reader, model_name: str | None) -> InputError:
    if model_name is None:
        return InputError(
            f"{reader.client.address} knows vLLM's names, but has no sample of them in this window",
            "take a later window; old samples are deleted after the server's retention time",
        )
    selector = select(any_of("__name__", reader.names.own), *reader.matchers)
    there = reader.client.label_values("model_name", [selector], reader.start_s, reader.end_s)
    names = ", ".join(f"'{name}'" for name in there)
    hint = f"there are {names}" if there else "the metrics have no label 'model_name'"
    return InputError(f"{reader.client.address} has nothing of a model '{model_name}' in this window", hint)


def _refuse_several_models(series: Sequence[MetricSeries]) -> None:
    models = sorted({one.labels["model_name"] for one in series if one.labels.get("model_name")})
    if len(models) > 1:
        names = ", ".join(f"'{name}'" for name in models)
        hint = "name one with --model-name, or take them together with --all-models"
        raise InputError(f"the metrics are of {len(models)} models: {names}", hint)
