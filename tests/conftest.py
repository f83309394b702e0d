"""Shared fixtures: the folder of real benchmark files, where a checkout has one beside it."""

from __future__ import annotations

import os
from pathlib import Path

# One thread a process, before torch is imported: two OpenMP threads on a busy machine are many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SHARED.is_dir():
        return
    skip = pytest.mark.skip(reason="no shared/ folder with real benchmark files beside this checkout")
    for item in items:
        if "shared" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def shared() -> Path:
    return SHARED
