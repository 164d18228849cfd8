"""The baseline: the peak of each test, stored in a file that is reviewed with the code."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from vramlens.errors import UsageError
from vramlens.schema import SCHEMA
from vramlens.units import parse_tolerance
from vramlens.whole_file import whole_file

NAME = "vramlens-tests.json"


def tolerance(text: str) -> Callable[[int], int]:
    """The bytes by which a size may rise, as a function of it: ``2%`` or ``1MiB``.

    Raises:
        pytest.UsageError: it is neither.
    """
    try:
        return parse_tolerance(text)
    except UsageError as error:
        raise pytest.UsageError(f"--vramlens-tolerance {error}") from None


def read_baseline(path: str) -> dict[str, int] | None:
    """The stored peaks by test; None where there is no file yet.

    Raises:
        pytest.UsageError: it is not a baseline.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        tests = content["tests"]
        if content["schema"] != SCHEMA or not all(
            type(peak) is int and peak >= 0 for peak in tests.values()
        ):
            raise ValueError("not written by vramlens")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise pytest.UsageError(
            f"{path}: is not a baseline of pytest --vramlens ({error}); delete it to start over"
        ) from None
    return dict(tests)


def write_baseline(path: str, peaks: dict[str, int]) -> None:
    """Stores the peaks: the file is replaced in one step.

    Raises:
        pytest.UsageError: it cannot be written.
    """
    content = {"schema": SCHEMA, "tests": dict(sorted(peaks.items()))}
    try:
        with whole_file(path) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")
    except OSError as error:
        raise pytest.UsageError(
            f"{path}: {error.strerror or error}; the peaks were not stored"
        ) from None
