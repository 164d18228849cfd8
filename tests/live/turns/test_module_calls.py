"""Calls of the model are steps where no optimizer steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vramlens.live.turns import module_calls
from vramlens.live.turns.module_calls import ModuleCalls

torch = pytest.importorskip("torch")


def test_outermost_module_only() -> None:
    told: list[int] = []
    calls = ModuleCalls(torch, lambda: told.append(1))
    try:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        for _ in range(5):
            model(torch.ones(1, 2))
        assert len(told) == 3
        assert calls.root_name == "Sequential"
    finally:
        calls.stop()
    model(torch.ones(1, 2))
    assert len(told) == 3


def test_modules_made_anew_for_each_request() -> None:
    told: list[int] = []
    calls = ModuleCalls(torch, lambda: told.append(1))
    try:
        for _ in range(5):
            torch.nn.Linear(2, 2)(torch.ones(1, 2))
        assert len(told) == 3
    finally:
        calls.stop()


def test_models_of_one_class_that_take_turns() -> None:
    """A server that loads one for each site: the first that it called is called no more."""
    told: list[int] = []
    calls = ModuleCalls(torch, lambda: told.append(1))
    models = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(3)]
    x = torch.ones(1, 2)
    try:
        for _ in range(5):
            models[0](x)
        for number in range(60):
            models[1 + number % 2](x)
    finally:
        calls.stop()
    assert len(told) == 3 + 60 - (64 + 4 * 2) // 3


def test_a_second_model_within_each_turn_of_the_first_is_no_step() -> None:
    told: list[int] = []
    calls = ModuleCalls(torch, lambda: told.append(1))
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    try:
        for _ in range(5):
            first(torch.ones(1, 2))
            for _ in range(60):
                second(torch.ones(1, 2))
    finally:
        calls.stop()
    assert len(told) == 3


def test_who_comes_in_the_middle_of_a_call_waits_for_the_outermost_module() -> None:
    told: list[int] = []
    begun: list[ModuleCalls] = []

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not begun:
                begun.append(ModuleCalls(torch, lambda: told.append(1)))
            return self.inner(self.inner(x))

    model = Outer()
    try:
        for _ in range(4):
            model(torch.ones(1, 2))
        assert begun[0].root_name.endswith("Outer")
        assert len(told) == 1
    finally:
        begun[0].stop()


def test_a_program_that_refuses_frames_still_calls_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_depth: int) -> None:
        raise PermissionError("refused sys._getframe")

    told: list[int] = []
    calls = ModuleCalls(torch, lambda: told.append(1))
    model = torch.nn.Linear(2, 2)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(module_calls, "sys", SimpleNamespace(_getframe=refuse))
            for _ in range(5):
                model(torch.ones(1, 2))
    finally:
        calls.stop()
    assert told == []
