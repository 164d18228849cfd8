"""Things apart in one namespace are judged apart; parts of one structure are not."""

from __future__ import annotations

import gc
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vramlens import LeakWatch

torch = pytest.importorskip("torch")

_BYTES = 4 * 4096


class Program(types.ModuleType):
    """A program of the user's, whose variables are a module's."""

    def run(self, source: str, tick: Callable[[], None]) -> None:
        path = self.__dict__["__file__"]
        Path(path).write_text(source)
        self.__dict__.update(torch=torch, tick=tick, random=random.Random(0))
        exec(compile(source, path, "exec"), self.__dict__)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    module = Program("apart")
    module.__dict__["__file__"] = str(tmp_path / "apart.py")
    sys.modules["apart"] = module
    yield module
    del sys.modules["apart"]


@pytest.fixture(autouse=True)
def none_are_young() -> None:
    """What tests before left would be looked at in each step."""
    gc.collect()


STORES_THAT_FILL = """\
recent, table, best = [None] * 30, {}, []
for step in range(97):
    recent[step % 30] = torch.zeros(4096)
    if step % 3 == 0 and len(table) < 30:
        table[step] = torch.zeros(4096)
    if step % 9 == 8:
        best = sorted([*best, (random.random(), [torch.zeros(4096)])], key=lambda b: b[0])[:9]
    tick()
"""
IN_A_FUNCTION = "def train():\n" + "".join(
    f"    {line}\n" for line in STORES_THAT_FILL.splitlines()
)
IN_AN_OBJECT = """\
class Search:
    def __init__(self):
        self.recent, self.table, self.best = [None] * 30, {}, []

    def train(self):
        for step in range(97):
            self.recent[step % 30] = torch.zeros(4096)
            if step % 3 == 0 and len(self.table) < 30:
                self.table[step] = torch.zeros(4096)
            if step % 9 == 8:
                self.best.append((random.random(), [torch.zeros(4096)]))
                self.best.sort(key=lambda b: b[0])
                del self.best[9:]
            tick()

search = Search()
search.train()
"""


@pytest.mark.parametrize(
    "source",
    [STORES_THAT_FILL, IN_A_FUNCTION + "train()\n", IN_AN_OBJECT],
    ids=["a module", "a function", "an object"],
)
def test_stores_that_fill_one_after_the_other_are_no_leak(program: Program, source: str) -> None:
    """Their sum grows to the end, at a pace that looks steady."""
    watch, alarms = LeakWatch(), []

    def tick() -> None:
        watch.step(sys._getframe(1))
        if watch.steps in (60, 96):
            alarms.extend(watch.report().found)

    program.run(source, tick)
    assert alarms == []


class Step:
    """A position in a game; it knows the one that it came from, and what else could be tried."""

    def __init__(self, origin: Step | None) -> None:
        self.origin = origin
        self.options: list[Step] = []
        self.board: Any = None

    def explore(self, chance: random.Random) -> Step:
        self.board = torch.zeros(4096)
        self.options = [Step(self) for _ in range(3)]
        for option in self.options[: chance.randrange(4)]:
            option.board = torch.zeros(4096)
        return chance.choice(self.options)


class Game:
    def __init__(self) -> None:
        self.now = Step(None)

    def play(self, chance: random.Random) -> None:
        self.now = self.now.explore(chance)


def test_a_tree_that_its_newest_leaf_holds_is_one_store() -> None:
    """All of its branches are reached by way of what each came from."""
    game, chance, watch = Game(), random.Random(0), LeakWatch()
    for _ in range(60):
        game.play(chance)
        watch.step()
    (leak,) = watch.report().found
    assert leak.verdict == "proven"
    assert leak.owner is not None
    assert leak.owner.source == "self.now = self.now.explore(chance)"
    assert leak.bytes >= 0.9 * 60 * 2 * _BYTES


class Draws:
    """A buffer of entries; what is drawn from it are not the entries, but what they have."""

    def __init__(self, entry_of: Callable[[Any], Any]) -> None:
        self.drawn_experiences: list[Any] = []
        self.entry_of = entry_of

    def add(self) -> None:
        self.drawn_experiences.append(self.entry_of(torch.zeros(4096)))

    def draw(self, chance: random.Random, count: int) -> list[Any]:
        entries = chance.choices(self.drawn_experiences, k=count)
        return [next(iter(e.values())) if isinstance(e, dict) else e[0] for e in entries]


@pytest.mark.parametrize(
    "entry_of",
    [lambda state: (state, 1.0), lambda state: {"state": state, "reward": 1.0}],
    ids=["tuples", "dicts"],
)
def test_what_is_drawn_from_a_buffer_is_the_buffer_s(entry_of: Callable[[Any], Any]) -> None:
    draws, chance, watch, batch = Draws(entry_of), random.Random(0), LeakWatch(), []
    for _ in range(40):
        draws.add()
        batch = draws.draw(chance, 24)
        watch.step()
    report = watch.report()
    assert report.found, (report, report.notes)
    (leak,) = report.found
    assert leak.owner is not None
    assert leak.owner.name == "Draws.drawn_experiences"
    assert leak.bytes >= 0.9 * 39 * _BYTES
    assert len(batch) == 24


class _Log:
    """An object with two lists, and other attributes that a test sets."""

    def __init__(self) -> None:
        self.early: list[Any] = []
        self.late: list[Any] = []


def _node_without_data(weight: Any) -> Any:
    return (weight + 0).sum().grad_fn


def test_attributes_of_nodes_without_data_are_no_proof() -> None:
    log, weight = _Log(), torch.ones(8, requires_grad=True)
    watch = LeakWatch()
    for step in range(20):
        setattr(log, f"node_{step}", _node_without_data(weight))
        watch.step()
    assert not watch.report().found


def test_two_lists_of_nodes_without_data_are_judged_apart() -> None:
    log, weight = _Log(), torch.ones(8, requires_grad=True)
    watch = LeakWatch()
    for step in range(40):
        (log.early if step < 20 else log.late).append(_node_without_data(weight))
        watch.step()
    assert not watch.report().found


class Operator:
    def __init__(self) -> None:
        self.by_width: dict[int, Any] = {}


class Flow:
    def __init__(self) -> None:
        self.operator = Operator()
        self.field: Any = None

    def advance(self, step: int, what: str) -> None:
        if what == "d":
            self.operator.by_width[step] = torch.zeros(4096)
        if what == "f":
            self.field = torch.zeros(4096)


@pytest.mark.parametrize("turns", ["d.fdf.dfd", "d.fd.f.d.", "d.f.d.f.d."])
def test_what_holds_nearly_all_is_named_also_where_few_steps_left_something(turns: str) -> None:
    """A turn takes several steps by the clock: a dict gets an entry in some of them, and the field
    beside it is made anew in others.
    """
    flow, watch = Flow(), LeakWatch()
    for step, what in enumerate(turns):
        flow.advance(step, what)
        watch.step()
    names = {leak.owner.name for leak in watch.report().leaks if leak.owner is not None}
    assert names == {"Operator.by_width"}


_RARE = """
for step in range(160):
    if step % {every} == 9:
        globals()[f"kept_{{step}}"] = torch.ones(4096) * step
    tick()
"""


@pytest.mark.parametrize(("every", "verdict"), [(40, "possible"), (16, "proven"), (1, "proven")])
def test_a_few_variables_set_now_and_then_are_possible(
    program: Program, every: int, verdict: str
) -> None:
    watch = LeakWatch()
    program.run(_RARE.format(every=every).replace("% 1 == 9", "% 1 == 0"), watch.step)
    (leak,) = watch.report().leaks
    assert leak.verdict == verdict
