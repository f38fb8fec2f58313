"""A client of Prometheus' HTTP API, as Prometheus, Mimir, Thanos and VictoriaMetrics answer it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence

from maitre.metric_series import MetricSeries
from maitre.prometheus.access import Access, read_address
from maitre.prometheus.answers import Answer, read_answer, read_names, read_series
from maitre.prometheus.connection import ask

_DEFAULT = Access()


class PrometheusClient:
    """A Prometheus API; knows nothing of what is stored there.

    All methods raise:
        UsageError: the address or a header cannot be used.
        InputError: the server refuses the question or who asks, or is no Prometheus API.
        SystemFailure: it cannot be reached, fails, or answers too late or too much.
    """

    def __init__(self, base_url: str, access: Access = _DEFAULT) -> None:
        """Take an address; nothing is asked yet.

        Args:
            base_url: what stands before `/api/v1`, verbatim; a login in it is used and never shown, a query is sent
                with every request.
            access: who asks, and how.
        """
        self._address, self._access = read_address(base_url), access
        self.num_requests = 0
        """So far."""
        self.remarks: list[str] = []
        """What the server warned of, each once."""

    @property
    def address(self) -> str:
        """The base URL without login and query, fit to be shown."""
        return self._address.root

    def label_values(
        self, label: str, match: Sequence[str] = (), start_s: float | None = None, end_s: float | None = None
    ) -> list[str]:
        """The values of a label; of `__name__` the names of metrics.

        Args:
            label: its name.
            match: series selectors, of which one must fit; servers before Prometheus 2.24 ignore them.
            start_s: of the time that counts, since the epoch; servers round it to their blocks.
            end_s: its end.
        """
        params = [("match[]", selector) for selector in match]
        params += [(name, _time(value)) for name, value in (("start", start_s), ("end", end_s)) if value is not None]
        path = f"/api/v1/label/{urllib.parse.quote(label, safe='')}/values"
        return read_names(self.address, self._ask(path, params))

    def query(self, expr: str, time_s: float | None = None) -> list[MetricSeries]:
        """The value of an expression at one moment.

        Args:
            expr: PromQL.
            time_s: since the epoch; None: the server's now.

        Returns:
            Series of one sample, or of those within the range if the expression selects one. Names are the server's;
            empty for what a function made. Native histograms come as classic ones.
        """
        params = [("query", expr)] + ([] if time_s is None else [("time", _time(time_s))])
        return read_series(self.address, self._ask("/api/v1/query", params))

    def query_range(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[MetricSeries]:
        """The values of an expression at even steps.

        Args:
            expr: PromQL.
            start_s: the first moment, since the epoch.
            end_s: the last moment.
            step_s: between two moments; Prometheus refuses more than 11,000 of them.

        Returns:
            As `query`; a moment at which a series has no value is left out.
        """
        params = [("query", expr), ("start", _time(start_s)), ("end", _time(end_s)), ("step", _time(step_s))]
        params.append(("nocache", "1"))  # keeps VictoriaMetrics from moving the moments to multiples of the step
        return read_series(self.address, self._ask("/api/v1/query_range", params))

    def _ask(self, path: str, params: list[tuple[str, str]]) -> Answer:
        self.num_requests += 1
        answer = read_answer(self.address, ask(self._address, self._access, path, params))
        self.remarks += [remark for remark in dict.fromkeys(answer.remarks) if remark not in self.remarks]
        return answer


def _time(seconds: float) -> str:
    """To the millisecond, which is as fine as servers store it."""
    return f"{seconds:.3f}"
