"""Stores that the program empties: what is said of them in their first round, in a later one, and
when they have been emptied by the end.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from vramlens.live.follow import LeakFollower

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

EPOCHS = """\
def train(epochs, steps):
    metrics = []
    for epoch in range(epochs):
        for step in range(steps):
            metrics.append(torch.zeros(4096))
            tick()
        print(torch.stack(metrics).mean())
        metrics.clear()
"""


class Watched:
    """A watch whose report is made at one step."""

    def __init__(self, step: int) -> None:
        self._watch, self._step = vramlens.LeakWatch(), step
        self.leaks: tuple[Any, ...] = ()

    def tick(self) -> None:
        self._watch.step(sys._getframe(1))
        if self._watch.steps == self._step:
            self.leaks = self._watch.report().leaks


@pytest.mark.parametrize(
    ("step", "verdict", "reason"),
    [
        (14, "possible", "line 8 would empty it: metrics.clear()"),
        (42, "not a problem", "line 8 empties it: metrics.clear()"),
    ],
    ids=["in the first round", "in a later round"],
)
def test_a_store_that_is_emptied_after_an_inner_loop(
    load_program: Callable[..., types.ModuleType], step: int, verdict: str, reason: str
) -> None:
    """Its statement stands behind the loop: steps of the loop have not passed it by."""
    watched = Watched(step)
    load_program(EPOCHS, tick=watched.tick).train(3, 16)
    (leak,) = watched.leaks
    assert leak.verdict == verdict
    assert reason in leak.reason
    assert leak.fix is None


EXPIRY = """\
class Sessions:
    def __init__(self):
        self.now = 0
        self.kept = {}

    def get(self, name):
        entry = self.kept.setdefault(name, [0, torch.zeros(4096)])
        entry[0] = self.now
        return entry

    def reap(self):
        for name in list(self.kept):
            if self.now - self.get(name)[0] > 20:
                del self.kept[name]

def serve(requests):
    sessions = Sessions()
    for number in range(requests):
        sessions.now += 1
        sessions.get(number)
        if number % 5 == 0:
            sessions.reap()
        tick()
"""


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        (40, "line 14 would empty it: del self.kept[name]"),
        (130, "line 14 would empty it, but was not seen to in 1"),
    ],
)
def test_a_clean_up_that_never_found_anything_is_not_said_to_empty_it(
    load_program: Callable[..., types.ModuleType], requests: int, reason: str
) -> None:
    """What it looks at is made young by looking: nothing is ever old enough."""
    watched = Watched(requests)
    load_program(EXPIRY, tick=watched.tick).serve(requests)
    leak = next(leak for leak in watched.leaks if "kept" in leak.owner.name)
    assert leak.verdict == "possible"
    assert reason in leak.reason


class Followed:
    """What ``run --leaks`` is told of a program, in this process."""

    def __init__(self) -> None:
        self.follower, self._count = LeakFollower(), 0
        self.follower.step_ended(0)

    def tick(self) -> None:
        self._count += 1
        self.follower.step_ended(self._count)

    def leaks(self) -> dict[str, Any]:
        report = self.follower.conclusion()
        assert report is not None
        return {leak.owner.name: leak for leak in report.leaks if leak.owner is not None}


GONE = """\
class Scores:
    def __init__(self):
        self.all, self.dead = [], []
    def add(self):
        self.all.append(torch.zeros(4096))
        self.dead.append(torch.zeros(4096))
    def mean(self):
        return torch.stack([score for score in self.all]).mean()

def clear(stores):
    for store in stores:
        store.clear()

def evaluate(steps):
    rounds, outputs, scores = [], [], Scores()
    for step in range(steps):
        if step % 16 == 15:
            clear([rounds])
        rounds.append(torch.zeros(4096))
        outputs.append(torch.zeros(4096))
        scores.add()
        tick()
    return torch.stack(outputs).mean() + scores.mean()
"""


def test_only_what_had_no_use_and_was_not_emptied_is_likely(
    load_program: Callable[..., types.ModuleType],
) -> None:
    """All four grew at the look after step 12, and are gone at the end."""
    followed = Followed()
    load_program(GONE, tick=followed.tick).evaluate(20)
    leaks = followed.leaks()
    assert leaks["rounds"].verdict == "not a problem"
    assert leaks["outputs"].verdict == "possible"
    assert "line 23 uses outputs after the loop" in leaks["outputs"].reason
    assert leaks["Scores.all"].verdict == "possible"
    assert "line 8 uses all of Scores.all" in leaks["Scores.all"].reason
    assert leaks["Scores.dead"].verdict == "likely"
    assert [name for name, leak in leaks.items() if leak.fix] == ["Scores.dead"]


ENDED = """\
rows = []
def fill(steps):
    for step in range(steps):
        rows.append(torch.zeros(4096))
        tick()
"""


def test_what_is_emptied_after_the_last_step_is_possible(
    load_program: Callable[..., types.ModuleType],
) -> None:
    followed = Followed()
    program = load_program(ENDED, tick=followed.tick)
    program.fill(20)
    program.rows.clear()
    followed.follower.program_ended()
    leak = followed.leaks()["rows"]
    assert leak.verdict == "possible"
    assert "the program emptied it after its last step" in leak.reason
    assert leak.fix is None


REDUCED = """\
class Reducer:
    def __init__(self):
        self.parts = {"eu": [], "us": []}

    def accept(self, region):
        self.parts[region].append(torch.zeros(4096))

    def finish(self):
        taken = [self.parts.pop(region) for region in ("eu", "us")]
        return [torch.stack([part for part in parts]) for parts in taken]

def evaluate(steps):
    reducer = Reducer()
    for step in range(steps):
        reducer.accept("eu" if step % 2 else "us")
        tick()
    return reducer.finish()
"""


def test_what_may_have_been_a_result_and_is_gone_has_a_known_owner(
    load_program: Callable[..., types.ModuleType],
) -> None:
    """A look found who kept it, as possible: at the end nobody says that this is unknown."""
    followed = Followed()
    load_program(REDUCED, tick=followed.tick).evaluate(40)
    report = followed.follower.conclusion()
    assert report is not None
    assert report.gone is None
    (leak,) = report.possible
    assert leak.owner is not None
    assert "Reducer.parts" in leak.owner.name
    assert leak.reason.startswith("line 9 would take an entry out")
    assert leak.reason.endswith("it is gone now")


RARE = """\
import time

class Box:
    def __init__(self):
        self.records, self.seen, self.last = [], 0, time.monotonic()

    def note(self, record, step, is_bad):
        self.seen += 1
        self.records.append(record)
        {condition}
            self.flush()

    def flush(self):
        {removal}

def fly(steps):
    box = Box()
    for step in range(steps):
        box.note(torch.zeros(4096), step, step < 0)
        tick()
"""


def _verdict_on(load_program: Callable[..., types.ModuleType], condition: str, removal: str) -> Any:
    watched = Watched(160)
    source = RARE.replace("{condition}", condition).replace("{removal}", removal)
    load_program(source, tick=watched.tick).fly(160)
    (leak,) = watched.leaks
    return leak


@pytest.mark.parametrize(
    ("condition", "removal"),
    [
        ("if record.isnan().any():", "self.records.clear()"),
        ("if record.sum().item() < 0:", "self.records = []"),
        ("try:\n            record.numpy()\n        except ValueError:", "self.records.clear()"),
    ],
)
def test_a_removal_that_waits_for_what_never_comes_is_no_excuse(
    load_program: Callable[..., types.ModuleType], condition: str, removal: str
) -> None:
    leak = _verdict_on(load_program, condition, removal)
    assert leak.verdict == "likely"
    assert "would empty it, but has not in 1" in leak.reason


@pytest.mark.parametrize(
    "condition",
    [
        "if len(self.records) == 500:",
        "if step % 500 == 499:",
        "if self.seen == 500:",
        "if step == 400:",
        "if time.monotonic() - self.last > 600:",
    ],
)
def test_a_removal_whose_turn_comes_with_time_is_an_excuse(
    load_program: Callable[..., types.ModuleType], condition: str
) -> None:
    """However long none has come."""
    leak = _verdict_on(load_program, condition, "self.records.clear()")
    assert leak.verdict in ("possible", "not a problem")


WINDOW = """\
import time

class Window:
    def __init__(self, limit):
        self.limit = limit
        self.frames = []
        self.put_at = float("inf")

    def size(self):
        return sum(len(frame) for frame in self.frames)

    def add(self, frame):
        now = time.monotonic()
        self.frames.append(frame)
        while {condition}:
            self.frames.pop(0)

def run(steps):
    window = Window(1 << 20)
    for step in range(steps):
        window.add(torch.zeros(2, 2048))
        tick()
"""


@pytest.mark.parametrize(
    ("condition", "verdict"),
    [
        ("self.size() > self.limit", "likely"),
        ("len(self.frames) > 0 and step_is_over()", "possible"),
        ("self.put_at < now - 60", "possible"),
        ("now - self.put_at > 60", "possible"),
    ],
    ids=["room is made each time", "emptied when its time comes", "too old", "its age"],
)
def test_room_that_was_never_made_is_no_excuse(
    load_program: Callable[..., types.ModuleType], condition: str, verdict: str
) -> None:
    """The limit is in bytes, and its size in rows."""
    watched = Watched(130)
    source = WINDOW.format(condition=condition)
    load_program(source, tick=watched.tick, step_is_over=lambda: False).run(130)
    (leak,) = watched.leaks
    assert leak.verdict == verdict
    assert "line 16 would" in leak.reason


CALLS = """\
from collections import deque

def pieces(sound):
    for _ in range(80):
        yield sound.shape

class Captions:
    def __init__(self):
        self.decoders, self.turns, self.finished = {}, deque(), 0

    def connect(self, number):
        self.decoders[number] = pieces(torch.zeros(4096))
        self.turns.append(number)

    def turn(self):
        for _ in range(len(self.turns)):
            number = self.turns.popleft()
            try:
                next(self.decoders[number])
            except StopIteration:
                del self.decoders[number]
                self.finished += 1
            else:
                self.turns.append(number)

def answer(calls):
    captions = Captions()
    for number in range(calls):
        captions.connect(number)
        if number % 4 == 3:
            captions.turns.remove(number - 2)  # and its decoder stays
        captions.turn()
        tick()
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter specializes nothing")
def test_a_removal_that_ran_after_the_traced_steps_is_not_said_to_have_taken_nothing(
    load_program: Callable[..., types.ModuleType],
) -> None:
    """Lines are traced in some early steps only, when no call was over yet."""
    watched = Watched(400)
    load_program(CALLS, tick=watched.tick).answer(400)
    leak = next(leak for leak in watched.leaks if leak.owner.name == "Captions.decoders")
    assert leak.sure
    assert leak.fix == "make line 21 (del self.decoders[number]) take these entries out"


QUEUE = """\
import heapq

class Dispatcher:
    def __init__(self):
        self.line, self.ranks, self.number = [], {}, 0

    def put(self, job):
        for rank in (2, 1):
            self.number += 1
            self.ranks[job] = rank
            heapq.heappush(self.line, (rank, self.number, job, torch.zeros(4096)))

    def drain(self):
        while self.ranks:
            rank, _, job, picture = heapq.heappop(self.line)
            if self.ranks.get(job) == rank:
                del self.ranks[job]

def run(steps):
    desk = Dispatcher()
    for job in range(steps):
        desk.put(job)
        desk.drain()
        tick()
"""


def test_the_loop_that_leaves_some_behind_is_named(
    load_program: Callable[..., types.ModuleType],
) -> None:
    watched = Watched(300)
    load_program(QUEUE, tick=watched.tick).run(300)
    (leak,) = [leak for leak in watched.leaks if leak.fix]
    assert leak.fix == (
        "make line 15 (rank, _, job, picture = heapq.heappop(self.line)) take these entries out: its"
        " loop (line 14: while self.ranks) can end while some are left"
    )
