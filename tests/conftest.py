"""The order of the tests, which of them take long, and how many threads they take."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(  # a busy machine is no fault of a test
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Before anything loads NumPy or torch: as many workers as cores are enough.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

# Under nohup every program that a test starts would ignore its terminal's end, too.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

TESTS = Path(__file__).parent
SLOW = (
    "agents",
    "analyses/profile/test_key_averages.py",
    "capture/names",
    "capture/triggers/test_run.py",
    "docs/test_site.py",
    "docs/test_tutorial.py",
    "fleet/test_workers.py",
    "integrations",
    "leaks",
    "live",
    "prediction",
    "recovery",
    "ranks/test_torchrun.py",
    "read/test_hostile.py",
    "test_examples.py",
    "test_wrong_types.py",
    "users_programs",
)
"""Files and folders whose tests take long, most of them because each starts programs that import
PyTorch. Single tests that do are marked where they stand.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take long, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what takes long and leaves it out unless it is asked for.

    Those that search all of Python's objects come first: what other tests keep would make them
    slow.
    """
    slow_paths = [TESTS / name for name in SLOW]
    for item in items:
        if any(item.path == slow or slow in item.path.parents for slow in slow_paths):
            item.add_marker("slow")
    items.sort(key=lambda item: "tests/live/" not in item.nodeid)
    if "spark" not in config.getoption("markexpr", ""):  # it needs Java
        items[:] = [item for item in items if not item.get_closest_marker("spark")]
    if config.getoption("--slow") or "slow" in config.getoption("markexpr", ""):
        return
    named = [path for path in _named_paths(config) if path != TESTS and TESTS in path.parents]
    late = [
        item for item in items if item.get_closest_marker("slow") and not _is_named(item, named)
    ]
    if late:
        config.hook.pytest_deselected(items=late)
        left_out = set(late)
        items[:] = [item for item in items if item not in left_out]


def _named_paths(config: pytest.Config) -> list[Path]:
    return [
        (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        for argument in config.args
    ]


def _is_named(item: pytest.Item, named: list[Path]) -> bool:
    return any(item.path == path or path in item.path.parents for path in named)
