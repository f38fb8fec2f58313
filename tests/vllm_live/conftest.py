"""A real vLLM for the tests marked `vllm`: MAITRE_VLLM names its program, for example /opt/vllm-cpu/bin/vllm."""

import os
import shutil
from pathlib import Path

import pytest


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
