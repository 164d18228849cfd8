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


def test_objects_that_are_registered_as_hooks(
    load_program: Callable[..., types.ModuleType],
) -> None:
    """A class with ``__call__``: the registration, of which only the last handle is kept."""
    leak = _leak_in(
        load_program,
        """\
        class Moments:
            def __init__(self, width):
                self.total = torch.zeros(width, width)
            def __call__(self, module, args, output):
                self.total += output.t() @ output

        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        def validate():
            for layer in model:
                moments = Moments(64)
                handle = layer.register_forward_hook(moments)
            with torch.no_grad():
                model(torch.randn(16, 64))
            handle.remove()

        for _ in range(12):
            validate()
            watch.step()
        """,
    )
    assert leak.owner.line == 11
    assert "keep all handles of the loop in a list" in leak.fix


@pytest.mark.parametrize("table", ["_forward_pre_hooks", "_backward_hooks"])
def test_a_registration_with_another_table_is_not_the_one(
    load_program: Callable[..., types.ModuleType], table: str
) -> None:
    method = {
        "_forward_pre_hooks": "register_forward_pre_hook",
        "_backward_hooks": "register_full_backward_hook",
    }[table]
    leak = _leak_in(
        load_program,
        f"""\
        class Moments:
            def __init__(self):
                self.total = torch.zeros(64, 64)
            def __call__(self, *args):
                pass

        model = torch.nn.Linear(64, 64)
        def listen():
            model.register_forward_hook(Moments()).remove()
            model.{method}(Moments())

        for _ in range(12):
            listen()
            watch.step()
        """,
    )
    assert leak.owner.line == 10


def test_a_call_that_ran_once_keeps_no_many(
    load_program: Callable[..., types.ModuleType],
) -> None:
    """The same method in the function that has the object, and in one that is given it."""
    source = """\
        import contextlib, gc
        import vramlens

        def main():
            scope = contextlib.ExitStack()
            scope.callback(len, torch.zeros(8, 8))
            for _ in range(12):
                work(scope)
            return vramlens.who_holds(latest())

        def work(scope):
            scope.callback(len, torch.randn(64, 63))

        def latest():
            tensors = filter(torch.is_tensor, gc.get_objects())
            return next(tensor for tensor in tensors if tensor.shape == (64, 63))

        found = main()
        """
    program = load_program(textwrap.dedent(source))
    assert program.found.owners[0].line == 12
