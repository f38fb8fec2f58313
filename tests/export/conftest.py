"""A real promtool, and the rules and the dashboard of a deployment."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from maitre.export import NEWEST, Queries, Thresholds, make_dashboard, make_rules, metrics_of_version
from maitre.slo import parse_latency_targets


@pytest.fixture(scope="session")
def promtool():
    """Runs promtool; returns whether it is content, and what it prints."""
    folder = os.environ.get("MAITRE_PROMETHEUS")
    program = Path(folder or "") / "promtool"
    if not folder or not program.exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"MAITRE_PROMETHEUS={folder}: no promtool there, and CI runs every test")
        pytest.skip("MAITRE_PROMETHEUS does not name a folder with promtool")

    def call(*arguments):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        return done.returncode == 0, done.stdout + done.stderr

    return call


TARGETS = ("itl_p99=50ms", "ttft_p95=500ms", "tpot_p90=40ms", "e2e_p95=20s")


@pytest.fixture(scope="session")
def thresholds():
    """The defaults, with a target for each latency and a known limit."""
    return Thresholds(targets=parse_latency_targets(TARGETS), max_num_seqs=256)


@pytest.fixture(scope="session")
def rules_of(thresholds):
    """The rules of a version of vLLM."""

    def make(version=NEWEST, prefix="vllm:", **changes):
        return make_rules(Queries(metrics_of_version(version, prefix), **changes), thresholds)

    return make


@pytest.fixture(scope="session")
def dashboard_of(thresholds):
    """The dashboard of a version of vLLM."""

    def make(version=NEWEST, prefix="vllm:", **changes):
        return make_dashboard(Queries(metrics_of_version(version, prefix), **changes), thresholds, "A title")

    return make


@pytest.fixture
def write(tmp_path):
    """Writes a document as JSON, which is YAML."""

    def to_file(name, document):
        path = tmp_path / name
        path.write_text(json.dumps(document), "utf-8")
        return path

    return to_file
