"""Plans made by hand, and the server beside the tests (which are no package, so it comes as a fixture)."""

import importlib.util
from pathlib import Path

import pytest

from maitre.trial.load import LoadPlan, PlannedRequest


@pytest.fixture(scope="session")
def serving():
    """`with serving(gap_s=…) as server:` runs a server of known behaviour."""
    spec = importlib.util.spec_from_file_location("load_server", Path(__file__).with_name("server.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.serving


@pytest.fixture(scope="session")
def make_load():
    """A plan of n requests with the same output length."""

    def make(num_requests, output_tokens=4, **options):
        requests = tuple(PlannedRequest(index, [100 + index, 7], output_tokens) for index in range(num_requests))
        return LoadPlan(**{"run": 3, "requests": requests} | options)

    return make
