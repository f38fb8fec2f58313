"""Real servers for the tests marked `prometheus`: MAITRE_PROMETHEUS names the folder of their programs."""

import importlib.util
import os
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("prometheus_servers", Path(__file__).with_name("servers.py"))
servers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(servers)


@pytest.fixture(scope="session")
def prometheus_programs():
    """The folder with prometheus, promtool and victoria-metrics."""
    folder = os.environ.get("MAITRE_PROMETHEUS")
    if folder and all((Path(folder) / name).exists() for name in ("prometheus", "promtool", "victoria-metrics")):
        return Path(folder)
    if os.environ.get("CI") == "true":
        pytest.fail(f"MAITRE_PROMETHEUS={folder}: no Prometheus there, and CI runs every test")
    pytest.skip("MAITRE_PROMETHEUS does not name a folder with prometheus, promtool and victoria-metrics")


@pytest.fixture(scope="module")
def start_server(prometheus_programs, tmp_path_factory):
    """Starts 'prometheus' or 'victoria-metrics' with the arguments of servers.start_prometheus; all are stopped."""
    running = []

    def start(name, **options):
        server = servers.STARTERS[name](prometheus_programs, tmp_path_factory.mktemp(name), **options)
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture(scope="module")
def free_port():
    return servers.free_port()
