"""What is said of containers in whole programs: the statement, the class and the fix."""

from __future__ import annotations

import textwrap
import types
from collections.abc import Callable
from typing import Any

import pytest

from vramlens import LeakWatch
from vramlens.live.holder.registrations import is_hook_name

torch = pytest.importorskip("torch")


def _leak_in(load_program: Callable[..., types.ModuleType], source: str) -> Any:
    """The leak that is found in a program that steps ``watch``."""
    watch = LeakWatch()
    load_program(textwrap.dedent(source), watch=watch)
    (leak,) = watch.report().found
    return leak


def test_names_of_hooks() -> None:
    assert all(map(is_hook_name, ("_forward_hooks", "hook", "_hooks_by_id", "save_hook", "a.Hook")))
    assert not any(map(is_hook_name, ("_datahook_selector", "webhook_url", "unhooked")))


def test_a_name_that_only_contains_hook_is_none(
    load_program: Callable[..., types.ModuleType],
) -> None:
    leak = _leak_in(
        load_program,
        """\
        class Selector:
            pass

        class Model:
            running = None
            def __init__(self):
                self._datahook_selector = Selector()
                self._datahook_selector.total = torch.zeros(())

        model, net = Model(), torch.nn.Linear(64, 64)
        for _ in range(12):
            loss = net(torch.randn(16, 64)).square().mean()
            model._datahook_selector.total = 0.9 * model._datahook_selector.total + loss
            watch.step()
        """,
    )
    assert leak.kind == "graph"


def test_a_list_that_is_sliced_stays_a_list(
    load_program: Callable[..., types.ModuleType],
) -> None:
    leak = _leak_in(
        load_program,
        """\
        teachers = []
        def train():
            for _ in range(12):
                teachers.append(torch.randn(1024))
                torch.stack(teachers[-3:])
                watch.step()
        train()
        """,
    )
    assert leak.fix.startswith("limit teachers (del teachers[:-n])"), leak.fix


def test_the_statement_in_the_function_that_made_the_container(
    load_program: Callable[..., types.ModuleType],
) -> None:
    leak = _leak_in(
        load_program,
        """\
        def capture(model):
            captured = {}
            def hook(module, inputs, output):
                captured.setdefault("out", []).append(output.detach())
            model.register_forward_hook(hook)
            return captured

        model = torch.nn.Linear(64, 64)
        maps = capture(model)
        for _ in range(12):
            model(torch.randn(16, 64))
            watch.step()
        """,
    )
    assert leak.owner is not None
    assert leak.owner.line == 4


def test_the_statement_in_a_function_that_returns_several(
    load_program: Callable[..., types.ModuleType],
) -> None:
    leak = _leak_in(
        load_program,
        """\
        def ingest():
            rows, rejected = [], []
            for _ in range(12):
                rejected.append(torch.randn(16, 64))
                watch.step()
            return len(rows), rejected

        count, rejected = ingest()
        """,
    )
    assert leak.owner is not None
    assert leak.owner.line == 4
