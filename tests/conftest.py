"""The order of the tests, and how many threads they take."""

from __future__ import annotations

import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything loads NumPy or torch: as many workers as cores are enough
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts those first that search all of Python's objects: what other tests keep would make them slow."""
    items.sort(key=lambda item: "tests/live/" not in item.nodeid)
