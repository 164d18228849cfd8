"""Queues that are drained more slowly than they fill, and those that are not."""

from __future__ import annotations

import queue
import random
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vramlens import LeakWatch
from vramlens.live.counters.step_counters import CounterSeries
from vramlens.live.growth import backlogs, births
from vramlens.live.growth.backlogs import _is_level, _is_the_rise, steady_rise, with_complete
from vramlens.live.growth.pace import Pace
from vramlens.live.growth.piles import Item, Pile
from vramlens.live.heap.tensors import Storage
from vramlens.live.leaks.leak_report import LeakReport

torch = pytest.importorskip("torch")


def test_steady_rise() -> None:
    assert steady_rise([(5, 50), (7, 70), (9, 90), (12, 120), (16, 160)]) == 10
    assert steady_rise([(5, 50), (7, 70), (9, 90), (12, 120)]) is None  # too few
    assert steady_rise([(5, 50), (7, 70), (9, 90), (12, 10), (16, 50), (21, 100)]) is None
    assert steady_rise([(step, 50) for step in (5, 7, 9, 12, 16)]) is None


def test_a_rise_that_what_is_in_use_hides_at_first() -> None:
    """Requests in flight are as much as some hundred of them leave."""
    pace = Pace(steps=40, is_steady=True, is_late=False, first=20, last=980, filled=0.04,
                bytes_per_step=10)  # fmt: skip
    items = [Item(0, 250, born, Storage("cpu", born, 250)) for born in range(20, 1000, 25)]
    steps = [5, 7, 9, 12, 16, 21, 27, 34, 43, 54, 68, 86, 108, 136, 171, 214, 268, 336, 421, 527, 659,
             824]  # fmt: skip
    noise = [900, 0, 700, 0, 800, 100, 900, 0]
    sums = [(step, 10 * step + (noise[at] if at < 8 else 0)) for at, step in enumerate(steps)]
    assert _is_the_rise(Pile(0, items, pace), sums)
    emptied = [(step, size if step < 500 else size - 4000) for step, size in sums]
    assert not _is_the_rise(Pile(0, items, pace), emptied)


@pytest.mark.parametrize(
    ("reading", "is_level"),
    [
        (lambda step: 9000, True),
        (lambda step: 9000 + 30 * (step % 7), True),
        (lambda step: 9000 + (5000 if step > 92 else 0), True),  # the program's end
        (lambda step: 9000 + 50 * step, False),
        (lambda step: 9000 + 50 * step - (3000 if step > 60 else 0), False),
        (lambda step: 900, False),  # the memory is on another counter
    ],
    ids=["level", "noisy", "at the end", "rising", "falls once", "not counted"],
)
def test_what_a_counter_says_of_a_pile(
    monkeypatch: pytest.MonkeyPatch, reading: Callable[[int], int], is_level: bool
) -> None:
    monkeypatch.setattr(backlogs, "may_be_counted", lambda _addresses: True)
    pace = Pace(steps=100, is_steady=True, is_late=False, first=2, last=99, filled=1.0,
                bytes_per_step=50)  # fmt: skip
    items = [Item(0, 50, born, Storage("cpu", born, 50)) for born in range(2, 100)]
    series = CounterSeries()
    for step in range(100):
        series.add(step, reading(step))
    tensors = {item.storage: 1 for item in items if item.storage is not None}
    assert _is_level(Pile(0, items, pace), {"cpu": series}, tensors) == is_level


@pytest.fixture(params=[0.02, 0.0], ids=["quick", "slow"])
def _machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has time to sum all objects, and one that has not."""
    monkeypatch.setattr(births, "_FREE_SUM_SECONDS", request.param)


@pytest.mark.usefixtures("_machine")
def test_a_queue_that_is_drained_too_slowly() -> None:
    backlog: queue.Queue[Any] = queue.Queue()
    watch = LeakWatch()
    for _ in range(40):
        backlog.put(torch.zeros(4096))
        backlog.put(torch.zeros(4096))
        backlog.get_nowait()
        watch.step()
    (leak,) = watch.report().found
    assert leak.verdict == "likely"
    assert leak.bytes_per_step == 4 * 4096


def test_a_queue_that_is_drained_now_and_then() -> None:
    for drained_at in (21, 25, 30):
        backlog: queue.Queue[Any] = queue.Queue()
        watch = LeakWatch()
        for step in range(40):
            backlog.put(torch.zeros(4096))
            while step == drained_at and not backlog.empty():
                backlog.get_nowait()
            watch.step()
        assert not watch.report().found


@pytest.mark.usefixtures("_machine")
def test_half_of_the_entries_are_taken() -> None:
    answers: dict[int, Any] = {}
    watch = LeakWatch()
    for request in range(40):
        answers[request] = torch.zeros(4096)
        if request % 2:
            answers.pop(request, None)
        watch.step()
    (leak,) = watch.report().found
    assert leak.verdict == "likely"
    assert any("more comes than goes" in reason for reason in leak.why)


@pytest.fixture
def _without_time_for_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of so short steps that sums of what was seen have no time after the first ones."""
    monkeypatch.setattr(births, "_FREE_SUM_SECONDS", 0.0)
    monkeypatch.setattr(births, "_SUM_SHARE", 0.0)


@pytest.mark.usefixtures("_without_time_for_sums")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter specializes nothing")
def test_some_of_the_entries_are_taken_in_a_long_run() -> None:
    """In another thread, whose lines nobody sees; and not as many in each step."""
    answers: dict[int, Any] = {}

    def claim(request: int) -> None:
        answers.pop(request)

    def work(first: int, count: int) -> None:
        for request in range(first, first + count):
            claim(request)

    watch = LeakWatch()
    for step in range(200):
        for request in range(4 * step, 4 * step + 4):
            answers[request] = torch.zeros(4096)
        worker = threading.Thread(target=work, args=(4 * step, 1 + step % 2))
        worker.start()
        worker.join()
        watch.step()
    report = watch.report()
    watch.stop()
    (leak,) = report.found
    assert leak.verdict == "likely"
    assert "takes an entry out" in leak.reason
    assert leak.reason.endswith("but more comes than goes")


class _Reorder:
    """Passes answers on in their order, and moves on where one is late."""

    def __init__(self) -> None:
        self.waiting: dict[int, Any] = {}
        self.next = 0

    def offer(self, ticket: int, answer: Any) -> None:
        self.waiting[ticket] = answer
        self._release(ticket)

    def _release(self, highest: int) -> None:
        while self.next <= highest:
            if self.next in self.waiting:
                self.waiting.pop(self.next)
            elif highest - self.next < 4:
                break
            self.next += 1


@pytest.mark.usefixtures("_without_time_for_sums")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter specializes nothing")
def test_a_loop_that_takes_what_comes_in_time() -> None:
    """In another thread; two of sixteen answers in each step come too late, and stay."""
    reorder, late = _Reorder(), (3, 9)

    def work(first: int) -> None:
        for ticket in range(first, first + 16):
            if ticket - first not in late:
                reorder.offer(ticket, torch.zeros(4096))
        for ticket in late:
            reorder.offer(first + ticket, torch.zeros(4096))

    watch = LeakWatch()
    for step in range(120):
        worker = threading.Thread(target=work, args=(16 * step,))
        worker.start()
        worker.join()
        watch.step()
    report = watch.report()
    watch.stop()
    (leak,) = report.found
    assert leak.verdict == "likely"
    assert "takes entries out" in leak.reason
    assert leak.reason.endswith("but more comes than goes")


@pytest.mark.usefixtures("_without_time_for_sums")
def test_a_store_that_gives_up_any_entry_once_it_is_full() -> None:
    """Entries of all ages are left, as of a leak: in the last steps it did not grow."""
    entries: list[Any] = []
    draw = random.Random(7)

    def forget() -> None:
        entries.pop(draw.randrange(len(entries)))

    watch = LeakWatch()
    for step in range(260):
        entries.append(torch.zeros(4096))
        if step >= 200:
            forget()
        watch.step()
    report = watch.report()
    watch.stop()
    assert [leak.verdict for leak in report.leaks] == ["possible"]


@pytest.mark.usefixtures("_without_time_for_sums")
def test_rows_of_batches_of_which_half_are_taken() -> None:
    """Each is a view of its batch, and the tensors themselves are as large as what they look at."""
    rows_by_node: dict[int, list[Any]] = {}
    watch = LeakWatch()
    for _ in range(120):
        for node in range(64):
            if node % 2:
                rows_by_node.pop(node, None)
        for node, row in enumerate(torch.zeros(64, 64).unbind(0)):
            rows_by_node.setdefault(node, []).append(row)
        watch.step()
    report = watch.report()
    watch.stop()
    assert report.unexplained is None
    (leak,) = report.found
    assert leak.verdict == "likely"
    assert leak.reason.endswith("but more comes than goes")


def test_entries_are_taken_in_another_thread() -> None:
    answers: dict[int, Any] = {}
    requests: queue.Queue[int] = queue.Queue()
    replies: queue.Queue[int] = queue.Queue()

    def claim(request: int) -> None:
        answers.pop(request, None)

    def work() -> None:
        while (request := requests.get()) >= 0:
            claim(request)
            replies.put(request)

    worker = threading.Thread(target=work)
    worker.start()
    watch = LeakWatch()
    for request in range(60):
        answers[request] = torch.zeros(4096)
        if request % 2:
            requests.put(request)
            replies.get()
        watch.step()
    requests.put(-1)
    worker.join()
    report = watch.report()
    if sys.version_info >= (3, 11):
        assert [leak.verdict for leak in report.found] == ["likely"]


def test_a_removal_that_never_finds_its_entry() -> None:
    sessions: dict[Any, Any] = {}

    def hang_up(client: str) -> None:
        sessions.pop(client, None)

    def serve(steps: int) -> LeakReport:
        sessions.clear()
        watch = LeakWatch()
        for client in range(steps):
            sessions[client] = torch.zeros(4096)
            if client > 120:
                hang_up(str(client))
            watch.step()
        return watch.report()

    assert not serve(30).found
    (leak,) = serve(130).found
    assert leak.verdict == "likely"
    assert any("line" in reason and "takes an entry out" in reason for reason in leak.why)


def test_requests_in_flight_that_are_older_than_the_watch() -> None:
    in_flight: dict[int, Any] = {}

    def finish(request: int) -> None:
        in_flight.pop(request, None)

    watch = LeakWatch()
    for request in range(80):
        in_flight[request] = torch.zeros(4096)
        if request >= 30:
            finish(min(in_flight))
        if request == 60:
            watch = LeakWatch()
        if request > 60:
            watch.step()
    assert not watch.report().found


def test_a_long_epoch_that_is_drained_at_its_end() -> None:
    outputs: list[Any] = []

    def epoch(steps: int) -> LeakReport:
        watch = LeakWatch()
        for _ in range(steps):
            outputs.append(torch.zeros(4096))
            watch.step()
        report = watch.report()
        drain()
        return report

    def drain() -> None:
        while outputs:
            outputs.pop()

    assert not epoch(130).found


def test_entries_that_wait_to_be_taken() -> None:
    answers: dict[int, Any] = {}
    watch = LeakWatch()
    for request in range(40):
        answers[request] = torch.zeros(4096)
        if request > 30:
            for number in [*answers]:
                answers.pop(number, None)
        if request == 30:
            break
        watch.step()
    assert not watch.report().found


def test_a_full_store_that_gives_up_any_entry_for_a_new_one() -> None:
    samples: list[Any] = []
    budget = 20 * 4 * 4096
    spent = 0
    watch = LeakWatch()
    for step in range(40):
        if spent >= budget:
            samples.pop(7 * step % 20)
            spent -= 4 * 4096
        samples.append(torch.zeros(4096))
        spent += 4 * 4096
        watch.step()
    assert not watch.report().found


@pytest.mark.parametrize(
    ("entries", "a_step", "last_birth", "steps", "is_complete"),
    [
        (100, 1, 95, 100, True),  # another thread is five batches ahead
        (100, 2, 95, 100, True),  # the same, of two tensors each
        (200, 2, 95, 100, True),  # two entries a step
        (100, 1, 100, 116, False),  # a ring that was full 16 steps ago
        (100, 1, 100, 101, False),  # and one step ago
        (240, 2.4, 100, 116, False),  # a round number would let it pass
        (100, 1, 60, 100, False),  # 40 entries are older than the watch
        (130, 1.3, 95, 100, False),  # neither one nor two a step
    ],
)
def test_a_store_is_complete_only_with_an_entry_of_each_step(
    entries: int, a_step: float, last_birth: int, steps: int, is_complete: bool
) -> None:
    search: Any = SimpleNamespace(order=[[None] * entries])
    items = [
        Item(0, 8, 1 + int(number / a_step), Storage("cpu", number, 8))
        for number in range(int(a_step * last_birth))
    ]
    pace = Pace(last_birth - 1, False, False, 2, last_birth, 0.9, 8)
    (pile,) = with_complete(search, [Pile(0, items, pace)], steps)
    assert (pile.is_complete, pile.pace.is_steady) == (is_complete, is_complete)


def test_entries_that_were_made_ahead_count_for_the_steps_since() -> None:
    """By step 56 of 60 another thread had made the entries of steps 57 to 60, too."""
    made_ahead = [Item(0, 8, 56, Storage("cpu", 100 + number, 8)) for number in range(4)]
    items = [Item(0, 8, step, Storage("cpu", step, 8)) for step in range(1, 57)] + made_ahead
    search: Any = SimpleNamespace(order=[[None] * 60])
    pace = Pace(55, False, False, 2, 56, 0.9, 8)
    (pile,) = with_complete(search, [Pile(0, items, pace)], 60)
    assert pile.is_complete
