"""A real Prometheus and a real VictoriaMetrics on free ports, with a past of their own and with targets to scrape.

Load it by its path (importlib.util.spec_from_file_location): folders of tests are no packages.
"""

import json
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

READY_S = 60
STOP_S = 20
BLOCK_S = 7200
"""Of Prometheus' smallest block."""


class Server:
    """A server of metrics that runs, its address, and what it wrote to its log."""

    def __init__(self, name, command, url, folder):
        self.name, self.url, self.folder = name, url, folder
        self._log = folder / "log"
        # Dies with the tests, even when those are killed.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*guard, *map(str, command)], stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
            )

    def log(self):
        return self._log.read_text("utf-8", "replace")

    def wait_until_ready(self, path):
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if fetch(self.url + path):
                    return self
            except OSError:
                time.sleep(0.05)
        self.stop()
        raise AssertionError(f"{self.name} is not ready:\n{self.log()[-3000:]}")

    def stop(self):
        """Politely, then for sure."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def get(self, path):
        """The JSON that it answers."""
        return json.loads(fetch(self.url + path))

    def wait_for(self, expr, at_least=1.0):
        """Until an instant query has a value of that size; for what is being scraped."""
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expr})
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if any(float(row["value"][1]) >= at_least for row in self.get(path)["data"]["result"]):
                return
            time.sleep(0.1)
        raise AssertionError(f"{expr} never reached {at_least}:\n{self.log()[-3000:]}")


def start_prometheus(programs, folder, *, history="", targets=(), interval_s=1.0, prefix="", relabel=(), flags=()):
    """Prometheus.

    Args:
        programs: the folder that MAITRE_PROMETHEUS names.
        folder: an empty one, for its data.
        history: OpenMetrics text, each sample with a time in seconds.
        targets: to be scraped, as host:port; or (host:port, {label: value}).
        interval_s: between two scrapes.
        prefix: of all paths, such as /prometheus.
        relabel: metric_relabel_configs.
        flags: more of them.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(json.dumps(scrape_config(targets, interval_s, relabel)))
    if history:
        create_blocks(programs, history, folder)
    port = free_port()
    command = [
        Path(programs) / "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y", *flags,
    ]  # fmt: skip
    if prefix:
        command += [f"--web.external-url=http://127.0.0.1:{port}{prefix}", f"--web.route-prefix={prefix}"]
    return Server("Prometheus", command, f"http://127.0.0.1:{port}{prefix}", folder).wait_until_ready("/-/ready")


def start_victoria_metrics(
    programs, folder, *, history="", targets=(), interval_s=1.0, prefix="", relabel=(), flags=()
):
    """VictoriaMetrics; arguments as for `start_prometheus`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scrape.yml").write_text(json.dumps(scrape_config(targets, interval_s, relabel)))
    port = free_port()
    command = [
        Path(programs) / "victoria-metrics", f"-storageDataPath={folder}/data", f"-httpListenAddr=127.0.0.1:{port}",
        f"-promscrape.config={folder}/scrape.yml", "-retentionPeriod=100y", "-search.latencyOffset=0s", *flags,
    ]  # fmt: skip
    if prefix:
        command.append(f"-http.pathPrefix={prefix}")
    server = Server("VictoriaMetrics", command, f"http://127.0.0.1:{port}{prefix}", folder).wait_until_ready("/health")
    if history:
        import_history(server, history)
    return server


STARTERS = {"prometheus": start_prometheus, "victoria-metrics": start_victoria_metrics}


def create_blocks(programs, history, folder):
    """Write a past into the data of a Prometheus that does not run yet, block by block: promtool reads all of a file
    again for every block in it.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    blocks = {}
    for line in history.splitlines():
        if line and not line.startswith("#"):
            blocks.setdefault(float(line[line.rindex(" ") :]) // BLOCK_S, []).append(line)
    for lines in blocks.values():
        path = Path(folder) / "history.txt"
        path.write_text("\n".join([*lines, "# EOF\n"]))
        subprocess.run(
            [Path(programs) / "promtool", "tsdb", "create-blocks-from", "openmetrics", path, Path(folder) / "data"],
            check=True,
            capture_output=True,
            timeout=600,
        )
        path.unlink()


def import_history(server, history):
    """Give a running VictoriaMetrics a past; it counts time in milliseconds."""
    lines = []
    for line in history.splitlines():
        if line and not line.startswith("#"):
            sample, _, moment_s = line.rpartition(" ")
            lines.append(f"{sample} {round(float(moment_s) * 1000)}")
    fetch(server.url + "/api/v1/import/prometheus", "\n".join(lines).encode() + b"\n")
    fetch(server.url + "/internal/force_flush")


def scrape_config(targets, interval_s, relabel=()):
    interval = f"{round(interval_s * 1000)}ms"
    groups = [(target, {}) if isinstance(target, str) else target for target in targets]
    job = {
        "job_name": "vllm",
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "static_configs": [{"targets": [target], "labels": labels} for target, labels in groups],
        "metric_relabel_configs": list(relabel),
    }
    return {"scrape_configs": [job] if targets else []}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url, data=None):
    """The body of an answer; the environment's proxy is not asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, data=data, timeout=60) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"{url}: {error.code} {error.read()[:300]!r}") from None
