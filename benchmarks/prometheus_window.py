"""How long `maitre verify` takes for a window of a real Prometheus or VictoriaMetrics, and in how many requests.

    MAITRE_PROMETHEUS=$(.ci/install_prometheus) python benchmarks/prometheus_window.py --engines 1 --days 7

Writes a past of that length with the families of vLLM 0.32 that are read (and some that are not) and one restart, then
reads it. Nearly all of the time goes into writing: some minutes a week and engine on two cores.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from maitre.metric_series import MetricSeries, total_increase
from maitre.prometheus.client import PrometheusClient
from maitre.verify.deployment import Deployment
from maitre.verify.sources.from_prometheus import read_window
from maitre.verify.verification import verify

START_S = 1_700_006_400
"""On the border of two of Prometheus' blocks."""
LIVE = Path(__file__).resolve().parents[1] / "tests" / "prometheus_live"


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--scrape-s", type=float, default=15.0)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    programs = os.environ.get("MAITRE_PROMETHEUS")
    if not programs:
        sys.exit(
            "MAITRE_PROMETHEUS names the folder of prometheus, promtool and victoria-metrics: .ci/install_prometheus"
        )
    servers, history = load("servers"), load("history")
    end_s = START_S + options.days * 86400
    restart_s = START_S + 0.55 * (end_s - START_S)
    spans = ((START_S - 86400, restart_s), (restart_s + 120, end_s))
    lives = [history.lives(f"10.0.0.{i}:8000", *spans) for i in range(options.engines)]
    with tempfile.TemporaryDirectory() as folder:
        victoria = servers.start_victoria_metrics(programs, Path(folder) / "victoria-metrics")
        prometheus = None
        try:
            for start_s in range(START_S, int(end_s), servers.BLOCK_S):
                last_s = min(start_s + servers.BLOCK_S - options.scrape_s, end_s)
                text = history.write_history(lives, start_s, last_s, options.scrape_s)
                servers.create_blocks(programs, text, Path(folder) / "prometheus")
                servers.import_history(victoria, text)
            prometheus = servers.start_prometheus(programs, Path(folder) / "prometheus")
            print("server            engines  requests  series  read: median, worst s  verdict s  tokens read/scraped")
            for server in (prometheus, victoria):
                measure(server, options.engines, end_s, options.repeats, history.RATES["prompt_tokens_total"])
        finally:
            for server in (prometheus, victoria):
                if server is not None:
                    server.stop()


def measure(server: Any, engines: int, end_s: float, repeats: int, tokens_per_s: float) -> None:
    """Read a few times; the first time nothing is in the server's cache."""
    seconds: list[float] = []
    found: list[MetricSeries] = []
    client = PrometheusClient(server.url)
    for _ in range(repeats):
        client = PrometheusClient(client.address)
        start = time.perf_counter()
        found = read_window(client, START_S, end_s)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    verify(found, Deployment(max_num_seqs=256, max_num_batched_tokens=8192), server.name)
    verdict_s = time.perf_counter() - start
    tokens = total_increase([one for one in found if one.name == "vllm:prompt_tokens_total"]) or 0.0
    share = tokens / (tokens_per_s * engines * (end_s - START_S - 120))
    times = f"{statistics.median(seconds):.2f}, {max(seconds):.2f}"
    name = server.name
    print(f"{name:16}  {engines:7}  {client.num_requests:8}  {len(found):6}  {times:21}  {verdict_s:9.2f}  {share:.6f}")


def load(name: str) -> Any:
    """A module of the tests."""
    spec = importlib.util.spec_from_file_location(name, LIVE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
