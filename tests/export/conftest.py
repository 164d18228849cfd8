"""What the exports' tests share: shared recordings with what the analyses say of them."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from support.recordings import data_of, read
from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.export import export_recording
from vramlens.trace import Trace

NAMES = (
    "recordings/gpt_annotated",
    "recordings/oom_train",
    "recordings/streams",
    "recordings/graphs",
    "recordings/leak_exception",
    "recordings/oom_fragmented",
)


@cache
def _trace(name: str) -> Trace:
    return read(data_of(name))


@cache
def _view(name: str) -> Attribution:
    trace = _trace(name)
    device = trace.main_device
    assert device is not None
    return attribute(trace, trace.devices[device])


@pytest.fixture(params=NAMES)
def view(request: pytest.FixtureRequest) -> Attribution:
    """A recording's fullest device."""
    return _view(request.param)


@pytest.fixture(scope="session")
def view_of() -> Callable[[str], Attribution]:
    """A recording's fullest device, by the recording's name."""
    return lambda name: _view(f"recordings/{name}")


@pytest.fixture(scope="session")
def exported() -> Callable[..., bytes]:
    """The bytes that a recording becomes in a format."""

    def export(trace: Trace, to: str, **options: Any) -> bytes:
        out = io.BytesIO()
        export_recording(trace, to, out, **options)
        return out.getvalue()

    return export
