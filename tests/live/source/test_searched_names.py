"""The names by which a container is looked for in the source."""

from __future__ import annotations

import contextvars
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

PROGRAM = """
trace = contextvars.ContextVar("trace", default=())


def note(value):
    trace.set(trace.get() + (value,))


def main(watch):
    for _ in range(8):
        note(torch.zeros(4096))
        watch.step()
    return watch.report()
"""


def test_a_context_variable_whose_module_is_gone(tmp_path: Path) -> None:
    """As ``runpy`` leaves it at the program's end: its own name is mostly its variable's."""
    path = tmp_path / "tracing.py"
    path.write_text(PROGRAM)
    names: dict[str, Any] = {"torch": torch, "contextvars": contextvars, "__name__": "tracing"}
    exec(compile(PROGRAM, str(path), "exec"), names)

    (leak,) = contextvars.copy_context().run(names["main"], vramlens.LeakWatch()).found
    assert leak.owner.source == "trace.set(trace.get() + (value,))"
