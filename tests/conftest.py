"""What all tests share: the folder of public traces and cases."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_path() -> Path:
    """The folder of public traces: $MAITRE_SHARED, or `shared` beside the checkout; must be there when CI=true."""
    path = Path(os.environ.get("MAITRE_SHARED") or REPOSITORY.parent / "shared")
    if path.is_dir():
        return path
    if os.environ.get("CI") == "true":
        pytest.fail(f"{path} is missing: CI runs every test")
    pytest.skip(f"{path} is missing; MAITRE_SHARED names another folder")
