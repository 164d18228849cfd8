"""What a watch does at each step of a standard program, counted: no clock can change it."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from vramlens import LeakWatch
from vramlens.live import follow, unit_watch
from vramlens.live.counters import step_counters
from vramlens.live.counters.step_counters import CounterSeries
from vramlens.live.growth import births, last_frames, line_observer
from vramlens.live.growth.ration import FIRST_STEPS, Ration
from vramlens.live.heap.tensors import TorchObjects, loaded
from vramlens.live.unit_watch import UnitWatch

torch = pytest.importorskip("torch")


class Training:
    """Four layers, AdamW, a list of numbers: as most programs are."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.losses: list[float] = []
        self.kept: list[Any] = []

    def step(self) -> None:
        loss = self.model(torch.ones(8, 32)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def leaking_step(self) -> None:
        self.step()
        self.kept.append(torch.zeros(1000))


@pytest.fixture
def without_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger or coverage would end it, too."""
    monkeypatch.setattr(line_observer, "can_trace", lambda: False)


@pytest.mark.usefixtures("without_tracing")
@pytest.mark.timed
def test_a_step_looks_at_the_young_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 4 layers leaves some dozen tensors; what was there before is not looked at again."""
    training = Training()
    placed = 0
    place_of = TorchObjects.place_of

    def counted(self: TorchObjects, tensor: Any) -> tuple[int, int] | None:
        nonlocal placed
        placed += 1
        return place_of(self, tensor)

    crowd = [torch.zeros(1) for _ in range(3000)]
    training.step()
    gc.collect()
    watch = LeakWatch()
    monkeypatch.setattr(TorchObjects, "place_of", counted)
    monkeypatch.setattr(births, "_FIRST_SUM", 0)
    assert watch._births is not None
    for _ in range(20):
        training.step()
        watch.step()
    youngest_at_most = gc.get_threshold()[0] + 200
    assert watch._births.visited <= 20 * youngest_at_most
    assert placed <= 20 * 80, placed
    assert len(crowd) == 3000


def test_what_wraps_a_tensor_is_not_looked_for() -> None:
    """PyTorch's subclasses stand for tensors with memory; a user's are such tensors."""

    class Image(torch.Tensor):
        pass

    objects = loaded()
    assert objects is not None
    objects.refresh()
    kinds = set(objects.types_with_storage().values())
    assert {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, Image} <= kinds
    assert kinds < set(objects.tensor_types.values())
    assert not any(kind.__module__.startswith("torch.masked") for kind in kinds)


@pytest.mark.usefixtures("without_tracing")
def test_another_unit_does_not_read_the_heap_again(monkeypatch: pytest.MonkeyPatch) -> None:
    training, watch = Training(), LeakWatch()
    for _ in range(3):
        training.leaking_step()
        watch.step()
    read = []
    all_tracked = births.tracked_of_types
    monkeypatch.setattr(
        births, "tracked_of_types", lambda types: read.append(1) or all_tracked(types)
    )
    watch = LeakWatch(watch)
    assert not read
    monkeypatch.undo()
    for _ in range(12):
        training.leaking_step()
        watch.step()
    assert watch.steps == 12
    (leak,) = watch.report().found
    assert leak.bytes_per_step == 4000


@pytest.mark.usefixtures("without_tracing")
def test_whether_anything_grew_is_known_from_the_latest_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, watch = Training(), LeakWatch()
    for _ in range(12):
        training.leaking_step()
        watch.step()
    assert watch._births is not None
    assert watch._births.is_summed
    monkeypatch.setattr(births.Births, "bytes_alive", lambda _: pytest.fail("summed again"))
    assert watch.may_have_grown


class Looks:
    """A follower whose looks are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.follower = follow.LeakFollower()
        monkeypatch.setattr(UnitWatch, "_keep", self._look)
        self.follower.step_ended(0)

    def _look(self) -> None:
        self.count += 1

    def after(self, step: Callable[[], None], steps: int) -> int:
        for number in range(1, steps + 1):
            step()
            self.follower.step_ended(number)
        return self.count


@pytest.mark.usefixtures("without_tracing")
def test_nothing_is_searched_where_nothing_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Looks(monkeypatch).after(Training().step, 50) == 0


@pytest.mark.usefixtures("without_tracing")
@pytest.mark.parametrize(("step_s", "looks"), [(0.1, [6, 12, 24, 48]), (0.001, [6, 24, 48])])
def test_what_grows_is_searched_at_doubling_distances(
    step_s: float, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a quick loop the second look, for which nothing may be left, is not one of the first."""
    training = Training()
    clock = types.SimpleNamespace(monotonic=lambda: step_s * len(training.kept))
    monkeypatch.setattr(unit_watch, "time", clock)
    looked = Looks(monkeypatch)
    counts = [0]
    for number in range(1, 51):
        training.leaking_step()
        looked.follower.step_ended(number)
        counts.append(looked.count)
    assert [number for number in range(1, 51) if counts[number] > counts[number - 1]] == looks


def test_a_counter_rises_on_where_most_of_the_run_has_its_share() -> None:
    def series(values: list[int]) -> CounterSeries:
        made = CounterSeries()
        for step, value in enumerate(values):
            made.add(step, value)
        return made

    assert series([8192 * step for step in range(24)]).rises_on
    assert not series([0] * 4 + [1_000_000] * 20).rises_on  # a cache, once
    assert not series([100 * step for step in range(24)]).rises_on  # lists of numbers
    assert not series([8192 * (step % 3) for step in range(24)]).rises_on
    assert not series([5]).rises_on


def test_a_counter_that_was_not_read_in_part_of_the_run_counts_by_its_whole_rise() -> None:
    """Steps of a millisecond use up the time for reading in the first few of them."""

    def series(steps: list[int], bytes_per_step: int) -> CounterSeries:
        readings = CounterSeries()
        for step in steps:
            readings.add(step, bytes_per_step * step)
        return readings

    first_and_last = [0, 1, 2, 3, 4, 800]
    assert not series(first_and_last, 8192).rises_on
    assert series(first_and_last, 8192).may_rise_on(800)
    assert not series(first_and_last, 100).may_rise_on(800)
    assert series(list(range(800)), 8192).may_rise_on(800)


def test_a_ration_keeps_little_beyond_the_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("vramlens.live.growth.ration.perf_counter", lambda: now)
    ration = Ration(1.0, 0.01)
    assert ration.left == 1.0
    now = 10.0
    ration.spent = 0.5
    ration.first_steps_ended()
    assert ration.left == pytest.approx(0.25)
    now = 110.0
    assert ration.left == pytest.approx(1.25)
    ration.spent = 9.0
    ration.first_steps_ended()  # what was taken too much stays so
    assert ration.left == pytest.approx(-7.25)


def test_a_first_step_that_imports_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("vramlens.live.growth.ration.perf_counter", lambda: now)
    ration = Ration(0.02, 0.004, 0.02)
    now = 1.5  # of importing, in which the collector came 80 times
    ration.spent = 80 * 0.00025
    assert ration.left == pytest.approx(0.03)
    now = 2.0
    ration.first_steps_ended()
    assert ration.left == pytest.approx(0.005)
    now = 3.0
    assert ration.left == pytest.approx(0.009)


def test_every_part_of_the_watch_is_rationed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first steps, with no time left, a step does nothing that grows with the program."""
    watch = LeakWatch()
    training = Training()
    for _ in range(FIRST_STEPS):
        training.step()
        watch.step()
    monkeypatch.setattr(Ration, "left", -1.0)
    assert watch._births is not None
    visited = watch._births.visited
    for part in (births.Births, step_counters.StepCounters, line_observer.Observer):
        for name in ("_look_at_new", "_read_all", "_find"):
            if hasattr(part, name):
                monkeypatch.setattr(part, name, lambda *_: pytest.fail("looked"))
    for _ in range(20):
        watch.step()
    assert watch._births.visited == visited
    watch.stop()


def test_the_same_stack_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    last = last_frames._last_frames
    monkeypatch.setattr(
        last_frames, "_last_frames", lambda stack: read.append(len(stack)) or last(stack)
    )
    for _ in range(5):
        last_frames.keep_last(sys._getframe())
    assert len(read) == 1
    last_frames.let_go()
