"""Programs of the user's, loaded from files: what is said of them is read from their source."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_TIMED = (
    "counters.step_counters",
    "growth.births",
    "growth.line_observer",
    "heap.dominators",
    "source.users_source",
)
"""Modules of the finder that do less where the processor is slow."""


@pytest.fixture(autouse=True)
def free_looks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Looks take none of their time here: steps of some microseconds would else leave time for all
    looks on a quick machine only. Tests of that time are marked ``timed``.
    """
    if request.node.get_closest_marker("timed") is None:
        for module in _TIMED:
            monkeypatch.setattr(f"vramlens.live.{module}.thread_time", lambda: 0.0)


@pytest.fixture
def load_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., types.ModuleType]:
    """Loads a program from a file of its own: its text, its module's name, and the variables that
    it finds beside ``torch``.
    """
    torch = pytest.importorskip("torch")

    def load_program(text: str, name: str = "program", **variables: Any) -> types.ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        module = types.ModuleType(name)
        module.__dict__.update(variables, torch=torch, __file__=str(path))
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, str(path), "exec"), module.__dict__)
        return module

    return load_program
