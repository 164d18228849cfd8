"""``pytest --vramlens``: limits for the GPU memory of tests, and tests that may leave nothing
behind.

    @pytest.mark.limit_gpu_memory("2 GB")      # the most that the test may hold at once
    @pytest.mark.no_gpu_leaks                  # all that it asked for is free again when it is over
    pytest --vramlens --vramlens-fail-on-increase

pytest loads this module in every run: until one of its options is given it imports nothing more and
    changes nothing.

baseline: the peak of each test, stored in a file that is reviewed with the code.
marks: what a test's markers ask for.
measuring: what ``pytest --vramlens`` does around each test, and at the end of the run.
use: the GPU memory that one test uses.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator
from typing import Any

import pytest

_TOLERANCE = "1%"
_GROUP = ("vramlens", "GPU memory of tests")
_MEASURES = "vramlens_measure"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Adds the options, but for ``--vramlens`` itself: a project may have one of that name."""
    group = parser.getgroup(*_GROUP)
    group.addoption(
        "--vramlens-measure",
        action="store_true",
        dest=_MEASURES,
        help="the same as --vramlens, for projects that have an option of that name",
    )
    group.addoption(
        "--vramlens-require-gpu",
        action="store_true",
        help="fail marked tests, and the run, if there is no GPU to measure on (implies "
        "--vramlens)",
    )
    group.addoption(
        "--vramlens-fail-on-increase",
        action="store_true",
        help="fail tests whose peak is above the baseline (implies --vramlens); writes the "
        "first baseline",
    )
    group.addoption(
        "--vramlens-baseline",
        metavar="FILE",
        help="the stored peaks (default: vramlens-tests.json in the root folder)",
    )
    group.addoption(
        "--vramlens-update-baseline",
        action="store_true",
        help="store the peaks of this run's tests",
    )
    group.addoption(
        "--vramlens-tolerance",
        default=_TOLERANCE,
        metavar="SIZE|SHARE",
        help=f"how far a peak may be above its baseline, 1MiB or 2%% (default: {_TOLERANCE}%)",
    )

    if any(name.endswith("conftest.py") for name, _ in pluginmanager.list_name_plugin()):
        _add_short_name(
            parser
        )  # a conftest.py names this plugin: the hook below has begun without it


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Adds ``--vramlens`` after the project's own options."""
    outcome = yield
    _add_short_name(parser)
    return outcome


def _add_short_name(parser: pytest.Parser) -> None:
    """Adds ``--vramlens``; where the project has such an option, that stays what it is."""
    group = parser.getgroup(*_GROUP)
    purpose = "measure the GPU memory of each test, and enforce the markers"
    try:
        group.addoption("--vramlens", action="store_true", dest=_MEASURES, help=purpose)
    except (ValueError, argparse.ArgumentError):
        return


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers; with ``--vramlens``, begins to measure."""
    config.addinivalue_line(
        "markers",
        'limit_gpu_memory(size, warmup=0): the most GPU memory that the test may use, as "2 GB"'
        " (vramlens)",
    )
    config.addinivalue_line(
        "markers",
        "no_gpu_leaks(allow=0, warmup=0): the test leaves no GPU memory behind (vramlens)",
    )
    option = config.option
    wishes = (
        _MEASURES,
        "vramlens_require_gpu",
        "vramlens_fail_on_increase",
        "vramlens_update_baseline",
    )
    if any(getattr(option, wish) for wish in wishes):
        from vramlens.pytest_plugin.measuring import Measuring

        config.pluginmanager.register(Measuring(config), "vramlens-measuring")
