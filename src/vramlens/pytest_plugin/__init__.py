"""``pytest --vramlens``: limits for the GPU memory of tests, and tests that may leave nothing behind.

    @pytest.mark.limit_gpu_memory("2 GB")      # the most that the test may hold at once
    @pytest.mark.no_gpu_leaks                  # all that it asked for is free again when it is over
    pytest --vramlens --vramlens-fail-on-increase

pytest loads this module in every run: until one of its options is given it imports nothing more and changes nothing.
"""

from __future__ import annotations

import pytest

_TOLERANCE = "1%"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("vramlens", "GPU memory of tests")
    group.addoption("--vramlens", action="store_true", help="measure the GPU memory of each test, and hold the markers")
    group.addoption(
        "--vramlens-fail-on-increase",
        action="store_true",
        help="fail tests whose peak is above that in the baseline (implies --vramlens); writes a first baseline",
    )
    group.addoption(
        "--vramlens-baseline",
        metavar="FILE",
        help="the stored peaks (default: vramlens-tests.json in the root folder)",
    )
    group.addoption("--vramlens-update-baseline", action="store_true", help="store the peaks of this run's tests")
    group.addoption(
        "--vramlens-tolerance",
        default=_TOLERANCE,
        metavar="SIZE|SHARE",
        help=f"what a peak may be above its baseline, 1MiB or 2%% (default: {_TOLERANCE}%)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers; with ``--vramlens``, begins to measure."""
    config.addinivalue_line(
        "markers", 'limit_gpu_memory(size, warmup=0): the most GPU memory that the test may hold, as "2 GB" (vramlens)'
    )
    config.addinivalue_line(
        "markers", "no_gpu_leaks(allow=0, warmup=0): the test leaves no GPU memory behind (vramlens)"
    )
    option = config.option
    if option.vramlens or option.vramlens_fail_on_increase or option.vramlens_update_baseline:
        from vramlens.pytest_plugin.measuring import Measuring

        config.pluginmanager.register(Measuring(config), "vramlens-measuring")
