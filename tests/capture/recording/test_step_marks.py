"""Which turns of optimizers are steps."""

from __future__ import annotations

import threading

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


def test_optimizers_of_folds_that_somebody_holds() -> None:
    """What ``Accelerator.prepare`` has made stays: only the second fold can be taken for a partner."""
    folds = [_sgd(torch.zeros(2)) for _ in range(5)]
    assert _counted(*(fold for fold in folds for _ in range(4))) == 19
    first, second, third = folds[:3]
    assert _counted(first, first, second, first, second, third, first, second, third) == 4


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


def test_hooks_change_only_where_no_step_of_the_program_goes_through_them() -> None:
    """While a hook of the program runs, which waits for vramlens to come and to go."""
    from torch.optim.optimizer import register_optimizer_step_post_hook as register

    counter = StepCounter()
    is_inside, may_go_on = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def wait(*_: object) -> None:
        is_inside.set()
        may_go_on.wait(300)

    def step() -> None:
        try:
            _sgd(torch.zeros(2)).step()  # type: ignore[attr-defined]
        except BaseException as error:
            errors.append(error)

    handles = [register(wait), register(lambda *_: None)]
    try:
        for change in (counter.watch_optimizers, counter.leave_optimizers):
            is_inside.clear()
            may_go_on.clear()
            stepping, changing = threading.Thread(target=step), threading.Thread(target=change)
            stepping.start()
            assert is_inside.wait(300)
            changing.start()
            changing.join(0.05)
            may_go_on.set()
            stepping.join()
            changing.join()
    finally:
        for handle in handles:
            handle.remove()
    assert errors == []
    assert counter._handle is None
