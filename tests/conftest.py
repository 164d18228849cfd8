"""The order of the tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts those first that search all of Python's objects: what other tests keep would make them slow."""
    items.sort(key=lambda item: "tests/live/" not in item.nodeid)
