"""A real vLLM for the tests marked `vllm`: MAITRE_VLLM names its program, for example /opt/vllm-cpu/bin/vllm.

Those marked `prometheus`, too, look at one server that a real Prometheus scraped: MAITRE_PROMETHEUS names the folder
of its programs.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def load(path):
    spec = importlib.util.spec_from_file_location(f"vllm_live_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


servers = load(HERE.parent / "prometheus_live" / "servers.py")
watched_server = load(HERE / "watched_server.py")


@pytest.fixture(scope="session")
def vllm() -> Path:
    """The program of a real vLLM."""
    name = os.environ.get("MAITRE_VLLM")
    found = shutil.which(name) if name else None
    if found:
        return Path(found)
    if os.environ.get("CI") == "true":
        pytest.fail(f"MAITRE_VLLM={name}: no vLLM there, and CI runs every test")
    pytest.skip("MAITRE_VLLM does not name a vllm program")


@pytest.fixture(scope="session")
def prometheus_programs() -> Path:
    """The folder of a real Prometheus' programs."""
    name = os.environ.get("MAITRE_PROMETHEUS")
    if name and (Path(name) / "prometheus").exists():
        return Path(name)
    if os.environ.get("CI") == "true":
        pytest.fail(f"MAITRE_PROMETHEUS={name}: no Prometheus there, and CI runs every test")
    pytest.skip("MAITRE_PROMETHEUS does not name a folder with prometheus")


@pytest.fixture(scope="session")
def watched(vllm, prometheus_programs, tmp_path_factory):
    """What was seen of one server under three loads; see watched_server.py."""
    folder = tmp_path_factory.mktemp("watched")
    with watched_server.watch(vllm, servers, prometheus_programs, folder) as seen:
        yield seen


@pytest.fixture(scope="session")
def loads():
    """What was sent to it: the constants of watched_server.py."""
    return watched_server
