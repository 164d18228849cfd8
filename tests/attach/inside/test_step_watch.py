"""What counts as a step of a program that nobody prepared."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from support.fake_gpu import FakeGpu
from vramlens.attach.inside import forked_copy, step_watch
from vramlens.attach.inside.forked_copy import AskingThread, NoCopy
from vramlens.attach.inside.pauses import Pauses
from vramlens.attach.inside.program_end import ProgramEnd
from vramlens.attach.inside.step_watch import StepWatch
from vramlens.capture import torch_api
from vramlens.capture.names import tensor_names
from vramlens.capture.process.own_thread import OwnThread
from vramlens.capture.recording.output_path import RecordingPaths
from vramlens.capture.recording.recorder import Recorder
from vramlens.live.growth.autocast_cache import caching_depth


class _Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """The clock that the watch reads."""
    clock = _Clock()
    monkeypatch.setattr(step_watch.time, "monotonic", clock.monotonic)
    return clock


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps at which a watch was over."""
    steps: list[int] = []

    def finish(watch: StepWatch, leak_watch: Any) -> None:
        watch._is_finishing = True
        steps.append(leak_watch.steps)

    monkeypatch.setattr(StepWatch, "_finish", finish)
    return steps


def watch_of(steps: int, seconds: float = 3600.0) -> StepWatch:
    request = {"steps": steps, "seconds": seconds, "pause_s": 1.0}
    recorder = Recorder(RecordingPaths("unused.vram", None), marks_modules=False)
    return StepWatch(request, Pauses(), recorder)


def test_quick_calls_of_a_model_are_one_step(clock: _Clock, ended: list[int]) -> None:
    watch = watch_of(4)
    for _ in range(130):
        watch._called()
        clock.now += 0.01
    assert watch.steps == 4
    assert ended == [4]
    watch.leave()


def test_slow_calls_are_a_step_each(clock: _Clock, ended: list[int]) -> None:
    watch = watch_of(4)
    for _ in range(5):
        watch._called()
        clock.now += 0.3
    assert ended == [4]
    watch.leave()


def test_time_counts_until_a_step_comes_and_ends_nothing_before(
    clock: _Clock, ended: list[int]
) -> None:
    watch = watch_of(4)
    for _ in range(40):
        watch.tick()
        clock.now += 0.25
    assert watch.steps == 39
    assert ended == []  # a large model's step may yet come
    watch.optimizer_stepped(1)
    watch.tick()
    assert watch.steps == 0
    for _ in range(4):
        watch.optimizer_stepped(1)
    assert ended == [4]
    watch.leave()


def test_where_no_step_comes_time_is_what_counts(clock: _Clock, ended: list[int]) -> None:
    watch = watch_of(4)
    for _ in range(90):
        watch.tick()
        clock.now += 0.25
    assert len(ended) == 1
    assert ended[0] >= 4
    assert watch._unit_note() == (step_watch._BY_CLOCK,)
    watch.leave()


def test_without_a_model_time_is_what_counts_at_once(clock: _Clock, ended: list[int]) -> None:
    model = torch.nn.Linear(2, 2)
    assert step_watch._has_models(torch)
    del model
    watch = watch_of(4)
    watch._has_models = False
    for _ in range(6):
        watch.tick()
        clock.now += 0.25
    assert ended == [4]
    watch.leave()


def test_a_program_that_ends_before_its_first_step_is_not_held_up() -> None:
    watch = watch_of(4)
    watch.program_ends()
    assert watch.is_over.is_set
    watch.tick()
    assert watch.conclude() is None
    watch.leave()


def test_threads_that_end_a_step_at_once_make_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_of(1)
    copies: list[Any] = []

    def copy(_watch: StepWatch, leak_watch: Any) -> Any:
        copies.append(leak_watch)
        raise NoCopy

    monkeypatch.setattr(StepWatch, "_copy_that_searches", copy)
    monkeypatch.setattr(StepWatch, "_searched_here", lambda _watch, _leak_watch: {})
    watch._finish("of one thread")  # type: ignore[arg-type]
    watch._finish("of another")  # type: ignore[arg-type]
    assert copies == ["of one thread"]
    assert watch.is_over.is_set
    watch.leave()


def test_the_copy_knows_the_autocast_of_the_thread_that_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forked_copy, "look_for", lambda _ident: None)  # here is no copy
    depths: list[int] = []
    with torch.autocast("cpu"), torch.autocast("cpu"):
        asking = AskingThread()
    copy = OwnThread(lambda: depths.append(asking.run_in_copy(lambda: caching_depth(torch))))
    copy.start()
    copy.join()
    assert depths == [2]
    assert caching_depth(torch) == 0


def test_classes_are_told_apart_by_identity() -> None:
    class Refusing(type):
        def __eq__(cls, other: object) -> bool:
            raise AssertionError("the program's own code ran")

        __hash__ = type.__hash__

    class Odd(torch.nn.Module, metaclass=Refusing):
        pass

    class Odder(Odd):
        pass

    model = Odder()
    assert step_watch._has_models(torch)
    del model


class _OpenLine:
    """A connection to somebody who waits."""

    def is_open(self) -> bool:
        return True

    def send(self, _message: dict[str, Any]) -> None:
        """Hears it."""


def _watched_while(work: Callable[[], object], recording: str, pauses: Pauses) -> None:
    """Watches four steps on a thread of its own, while this thread works."""
    request = {"steps": 4, "seconds": 30.0, "pause_s": 1.0, "max_events": 9, "recording": recording}
    line: Any = _OpenLine()
    watching = OwnThread(lambda: step_watch.watched(request, line, pauses, ProgramEnd(pauses)))
    watching.start()
    while not watching.join(0.001):
        work()


@pytest.mark.parametrize(
    ("recording", "calls"), [("", []), ("never_written.vram", ["start", "stop"])]
)
def test_the_programs_own_steps_name_nothing(
    recording: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu()
    gpu.use()
    named: list[Any] = []
    monkeypatch.setattr(torch_api, "connect", lambda: gpu)
    monkeypatch.setattr(tensor_names, "named_tensors", lambda **asked: named.append(asked) or [])
    monkeypatch.setattr(StepWatch, "_finish", lambda watch, _: watch.is_over.set())
    monkeypatch.setattr(StepWatch, "conclude", lambda watch: None)
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight])
    pauses = Pauses()
    _watched_while(optimizer.step, recording, pauses)
    assert gpu.calls == calls
    assert named == []
    pause = pauses.to_dict()
    assert pause["longest_step_s"] >= pause["median_step_s"] > 0


def test_in_a_child_of_the_program_the_watch_ends(
    clock: _Clock, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_of(4)
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    before, collects = len(hooks), len(gc.callbacks)
    watch.begin(torch)
    watch._called()
    monkeypatch.setattr(step_watch.os, "getpid", lambda: -1)
    for _ in range(6):
        clock.now += 0.3
        watch._called()
        watch.optimizer_stepped(1)
    assert (ended, len(hooks), len(gc.callbacks)) == ([], before, collects)
