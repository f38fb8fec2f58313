"""An HTTP server that answers `/metrics/NAME` for many simulated servers, while their time goes by."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from conditions.exposition import metrics_text
from maitre.metric_series import MetricSeries

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """Serves conditions from the first sample of each on; use it in a `with` statement."""

    def __init__(
        self,
        servers: Mapping[str, Sequence[MetricSeries]],
        *,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen on a free port of this machine.

        Args:
            servers: the series of each name.
            speed: simulated seconds that go by in a second of the clock.
            clock: seconds.
        """
        self._servers = dict(servers)
        self._start_s = {name: float(series[0].time_s[0]) for name, series in self._servers.items()}
        self._speed, self._clock = speed, clock
        self._opened_s = clock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._http.server_address[1]}"

    def path(self, name: str) -> str:
        """Where a server's metrics are."""
        return f"/metrics/{name}"

    def answer(self, path: str) -> str | None:
        """The text behind a path at this moment; None where there is none."""
        name = path.removeprefix("/metrics/")
        if name not in self._servers:
            return None
        moment_s = self._start_s[name] + self._speed * (self._clock() - self._opened_s)
        return metrics_text(self._servers[name], moment_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _handler_of(exporter: Exporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = exporter.answer(self.path)
            body = (text or "no such server\n").encode()
            self.send_response(404 if text is None else 200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing: a scrape a second is no news."""

    return Handler
