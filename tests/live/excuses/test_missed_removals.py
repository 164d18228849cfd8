"""Removals of one entry that take nothing out."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402
from vramlens.live.excuses.numbered_keys import keeps_nearly_all  # noqa: E402

BUS = """
import functools

class Bus:
    def __init__(self):
        self.listeners = []

    def on(self, listener):
        self.listeners.append(listener)

    def off(self, listener):
        if listener in self.listeners:
            self.listeners.remove(listener)

class Worker:
    def __init__(self, bus):
        self.bus = bus

    def abort(self, features):
        pass

    def cancel(self, features):
        return functools.partial(self.abort, features)

    def serve(self):
        features = torch.zeros(4096)
        self.bus.on(functools.partial(self.abort, features))
        {end}
"""
JOBS_A_STEP, STEPS = 5, 20


def _leaks(
    load_program: Callable[..., types.ModuleType], end: str, source: str = BUS
) -> tuple[Any, ...]:
    """The leaks of a program whose thread serves some jobs in a step: no line of it is traced."""
    program = load_program(source.replace("{end}", end), "serving")
    bus = program.Bus()
    worker = program.Worker(bus)
    watch = vramlens.LeakWatch()
    for _ in range(STEPS):
        thread = threading.Thread(target=lambda: [worker.serve() for _ in range(JOBS_A_STEP)])
        thread.start()
        thread.join()
        watch.step()
    leaks = watch.report().leaks
    assert len(bus.listeners) == STEPS * JOBS_A_STEP
    return leaks


def test_what_compares_by_identity_and_was_made_only_now(
    load_program: Callable[..., types.ModuleType],
) -> None:
    end = "self.bus.off(functools.partial(self.abort, features))"
    (leak,) = _leaks(load_program, end)
    assert (leak.verdict, leak.owner.name) == ("likely", "Bus.listeners")
    assert "0 of the removals at line 13 in" in leak.reason
    assert leak.reason.endswith("line 28 makes a new partial, which equals no entry")


LEAVES_EARLY = BUS.replace(
    """
        if listener in self.listeners:
            self.listeners.remove(listener)
""",
    """
        if listener not in self.listeners:
            return
        self.listeners.remove(listener)
""",
)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter specializes nothing")
@pytest.mark.parametrize("bus", [BUS, LEAVES_EARLY])
def test_what_is_asked_for_and_was_never_there(
    load_program: Callable[..., types.ModuleType], bus: str
) -> None:
    (leak,) = _leaks(load_program, "self.bus.off(self.cancel(features))", bus)
    assert (leak.verdict, leak.owner.name) == ("likely", "Bus.listeners")
    assert leak.reason.endswith("line 12 asks whether it is there, and it never was")


FAILS = BUS.replace(
    """
        if listener in self.listeners:
            self.listeners.remove(listener)
""",
    """
        try:
            listener.keywords
        except:
            self.listeners.remove(listener)
""",
)


def test_a_removal_that_any_error_leads_to(
    load_program: Callable[..., types.ModuleType],
) -> None:
    """``except:`` catches what no expression of the source names."""
    (leak,) = _leaks(load_program, "self.bus.off(self.bus.listeners[-1])", FAILS)
    assert leak.owner.name == "Bus.listeners"


WINDOW = """
def remember(bank, step):
    bank[f"{step:05d}"] = torch.zeros(2048)
    expired = f"{step - 200:05d}"
    if expired in bank:
        del bank[expired]
"""


def test_a_window_by_key_that_is_not_full_yet_is_possible(
    load_program: Callable[..., types.ModuleType],
) -> None:
    program = load_program(WINDOW, "window")
    bank: dict[str, Any] = {}
    watch = vramlens.LeakWatch()
    for step in range(60):
        program.remember(bank, step)
        watch.step()
    (leak,) = watch.report().leaks
    assert (leak.verdict, leak.reason) == (
        "possible",
        "line 6 would take an entry out: del bank[expired]",
    )


EXPIRY = """
class Sessions:
    def __init__(self):
        self.kept = {}

    def open(self, name):
        self.kept[name] = torch.zeros(2048)

    def close(self, name):
        self.kept.pop(f"{name}/closed", None)

def serve(sessions, number):
    sessions.open(f"{number}")
    if number % 500 == 499:
        sessions.close(f"{number}")
"""


@pytest.mark.parametrize(("before", "verdict"), [(0, "possible"), (200, "likely")])
def test_what_came_before_the_watch_counts_as_evidence(
    load_program: Callable[..., types.ModuleType], before: int, verdict: str
) -> None:
    """A watch of 90 steps of a process that has run for long."""
    program = load_program(EXPIRY, "sessions")
    sessions = program.Sessions()
    for number in range(before):
        program.serve(sessions, number)
    watch = vramlens.LeakWatch()
    for number in range(before, before + 90):
        program.serve(sessions, number)
        watch.step()
    (leak,) = watch.report().leaks
    assert leak.verdict == verdict, leak.reason
    told = "would take an entry out"
    if before:
        told = f"{told}, but was not seen to in about 2"
    assert told in leak.reason


SWEEP = """
class Answers:
    def __init__(self):
        self.answers_by_key, self.expiries = dict(), []

    def put(self, number):
        key = (number % 5, str(number))
        self.answers_by_key[key] = torch.zeros(4096) + number
        self.expiries.append((number + 2, {kept}))

    def sweep(self, now):
        while self.expiries and self.expiries[0][0] < now:
            _, key = self.expiries.pop(0)
            self.answers_by_key.pop(key, None)
"""


@pytest.mark.parametrize(("kept", "verdicts"), [("key[1]", ["likely"]), ("key", [])])
def test_a_sweep_that_asks_for_other_keys_takes_nothing(
    load_program: Callable[..., types.ModuleType], kept: str, verdicts: list[str]
) -> None:
    """A part of the key that is a remainder makes no ring of it."""
    answers = load_program(SWEEP.format(kept=kept), "sweeping").Answers()
    watch = vramlens.LeakWatch()
    for number in range(150):
        answers.put(number)
        answers.sweep(number)
        watch.step()
    report = watch.report()
    watch.stop()
    assert [leak.verdict for leak in report.leaks if leak.sure] == verdicts


RECENCY = """
from collections import OrderedDict, deque

class Memory:
    def __init__(self):
        self.vectors, self.recency, self.order = {}, OrderedDict(), deque()

    def remember(self, episode, moment):
        self.vectors[f"{episode}/{moment}"] = torch.zeros(2048)
        self.recency[{kept}] = moment
        self.order.append({kept})
        if len(self.recency) > self.{capacity}:
            {taken}
            self.vectors.pop(oldest, None)
"""
TAKEN = (
    "oldest, _ = self.recency.popitem(last=False)",
    "oldest = next(iter(self.recency))",
    "oldest = self.order.popleft()",
    "oldest = self.order[0]",
    "for oldest in list(self.recency)[:3]: pass",
)


def _memory_leak(
    load_program: Callable[..., types.ModuleType], kept: str, taken: str, capacity: int
) -> Any:
    text = RECENCY.replace("{kept}", kept).replace("{taken}", taken)
    memory = load_program(text.replace("self.{capacity}", str(capacity)), "recent").Memory()
    watch = vramlens.LeakWatch()
    for episode in range(20):
        for moment in range(1 + episode % 3):
            memory.remember(episode, moment)
        watch.step()
    (leak,) = [leak for leak in watch.report().leaks if leak.owner and "vectors" in leak.owner.name]
    watch.stop()
    return leak


@pytest.mark.parametrize("taken", TAKEN[:4])
def test_a_key_from_another_container_has_the_type_of_that_ones(
    load_program: Callable[..., types.ModuleType], taken: str
) -> None:
    leak = _memory_leak(load_program, "(episode, moment)", taken, capacity=8)
    assert leak.verdict == "likely"
    assert leak.reason.endswith("its keys are str, and line 14 looks for tuple")


@pytest.mark.parametrize(
    ("kept", "taken"),
    [
        ('f"{episode}/{moment}"', TAKEN[0]),  # the same type: its turn comes
        ("(episode, moment)", TAKEN[0] + "; oldest = self.name_of(oldest)"),
        ("(episode, moment) if moment else str(episode)", TAKEN[0]),
        ("(episode, moment)", "oldest = self.recency.pop((0, 0), 'none')"),  # what it has there
        ("(episode, moment)", TAKEN[4]),  # of a part
    ],
)
def test_a_key_that_may_be_there_is_asked_for(
    load_program: Callable[..., types.ModuleType], kept: str, taken: str
) -> None:
    leak = _memory_leak(load_program, kept, taken, capacity=500)
    assert leak.verdict == "possible"
    assert "looks for" not in leak.reason


SNAPSHOTS = """
class Average:
    def __init__(self, span):
        self.every, self.span = 2, span
        self.weights = {}

    def step(self, step):
        if step % self.every:
            return
        self.weights[step] = torch.zeros(4096)
        self.weights.pop(step - self.span, None)
"""


@pytest.mark.parametrize(("span", "told"), [(9, True), (100, False)])
def test_a_removal_that_asks_between_the_keys(
    load_program: Callable[..., types.ModuleType], span: int, told: bool
) -> None:
    """All keys are even. A window that is not yet full looks the same, and has its turn."""
    average = load_program(SNAPSHOTS, "averaging").Average(span)
    watch = vramlens.LeakWatch()
    for step in range(60):
        average.step(step)
        watch.step()
    (leak,) = watch.report().leaks
    watch.stop()
    assert leak.verdict == ("likely" if told else "possible")
    reason = "its keys are 2 apart, and line 11 looks for the one 9 before the newest"
    assert (reason in leak.reason) is told


REVIEWS = """
class Desk:
    def __init__(self):
        self.reviews = {}

    def answer(self, number):
        self.reviews[number] = torch.zeros(4096)

    def inspect(self, number):
        return self.reviews.pop(number)
"""


def test_a_table_by_number_that_keeps_nearly_all(
    load_program: Callable[..., types.ModuleType],
) -> None:
    desk = load_program(REVIEWS, "reviewing").Desk()
    watch = vramlens.LeakWatch()
    for number in range(130):
        desk.answer(number)
        if number % 30 == 3:
            desk.inspect(number)
        watch.step()
    (leak,) = watch.report().leaks
    watch.stop()
    assert leak.verdict == "likely"
    reason = "line 10 takes an entry out: return self.reviews.pop(number), but more comes than goes"
    assert reason in leak.reason


@pytest.mark.parametrize(
    ("keys", "nearly_all"),
    [
        ([key for key in range(0, 400, 2) if key % 20], True),
        ([key for key in range(200) if key % 20], True),
        ([key for key in range(200) if key % 4], False),
        (list(range(200)), False),
        ([key for key in range(60) if key % 20], False),
        ([*range(100, 200), *range(90)], False),
        ([key / 2 for key in range(200) if key % 20], False),
    ],
    ids=["even", "all", "under way", "none is missing", "few", "moved to the end", "no numbers"],
)
def test_numbers_of_which_few_are_missing(keys: list[Any], nearly_all: bool) -> None:
    assert keeps_nearly_all(dict.fromkeys(keys)) is nearly_all
