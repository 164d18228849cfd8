"""Which turns of optimizers are steps."""

from __future__ import annotations

import pytest

from vramlens.capture.recording.step_marks import StepCounter

torch = pytest.importorskip("torch")


def _sgd(*parameters: object) -> object:
    return torch.optim.SGD(parameters, lr=0.1)


def _counted(*turns: object) -> int:
    counter = StepCounter()
    for optimizer in turns:
        counter._optimizer_stepped(optimizer, (), {})
    return counter.count


def test_optimizers_that_take_turns() -> None:
    first, second = _sgd(torch.zeros(2)), _sgd(torch.zeros(2))
    assert _counted(first, second, first, second, first) == 3
    assert _counted(first, first, second, first, second) == 3  # the second came later


def test_an_optimizer_that_takes_the_place_of_another() -> None:
    weight = torch.zeros(2)
    first, second = _sgd(weight), _sgd(weight)
    assert _counted(first, first, second, second) == 4


def test_an_optimizer_that_wraps_another() -> None:
    weight = torch.zeros(2)
    inner, outer = _sgd(weight), _sgd(weight)
    outer.optim = inner  # type: ignore[attr-defined]
    assert _counted(inner, outer, inner, outer, inner, outer) == 3


def test_an_optimizer_that_comes_after_the_other_is_gone() -> None:
    counter = StepCounter()
    for _ in range(3):
        optimizer = _sgd(torch.zeros(2))
        counter._optimizer_stepped(optimizer, (), {})
        counter._optimizer_stepped(optimizer, (), {})
        del optimizer
    assert counter.count == 6
