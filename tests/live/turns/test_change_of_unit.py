"""What is told where the unit of steps has changed: of the long loop, or of what came after it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramlens.ground.verdict import Verdict  # noqa: E402
from vramlens.live.follow import LeakFollower  # noqa: E402
from vramlens.live.leaks.leak_report import LeakReport  # noqa: E402
from vramlens.live.turns.other_steps import StepUnit  # noqa: E402

LOOP = StepUnit("a turn of the loop at a.py:1", follows_loop=True)
LATER_LOOP = StepUnit("a turn of the loop at a.py:9", follows_loop=True)
AFTER_IT = StepUnit("0.1 s in which the program ran", is_of_time=True, follows_loop=True)
GOING_ON = StepUnit("0.1 s in which the program ran", is_of_time=True)
CALLS = StepUnit("a call of Net")
TURNS = 60


class _Steps:
    """Stands for what tells the ends of steps."""

    def __init__(self, unit: StepUnit) -> None:
        self.unit = unit


class ChangingProgram:
    """What a follower is told of a program that does one thing after another."""

    def __init__(self) -> None:
        self.kept_by_units: list[Any] = []
        self._follower: Any = LeakFollower()

    def run(self, unit: StepUnit, steps: int, *, leaks: bool) -> None:
        self._follower._other_steps = _Steps(unit)
        self._follower._begin_anew()
        for _ in range(steps + 1):  # the first begins the watch
            if leaks:
                self.kept_by_units.append(torch.zeros(4096))
            self._follower._unit_ended(sys._getframe())

    def keep(self) -> None:
        """Keeps a tensor more, in the step that has not ended."""
        self.kept_by_units.append(torch.zeros(4096))

    def first(self) -> Any:
        """Reads what the first turn left: it may be what the loop was for."""
        return self.kept_by_units[0]

    def report(self) -> LeakReport:
        report: LeakReport = self._follower.conclusion()
        return report


@pytest.mark.parametrize(
    ("unit", "steps", "told"),
    [
        (LATER_LOOP, 2, LOOP),
        (LATER_LOOP, 12, LOOP),
        (AFTER_IT, 12, LOOP),
        (GOING_ON, 3, LOOP),
        (GOING_ON, 12, GOING_ON),
        (CALLS, 3, LOOP),
        (CALLS, 12, CALLS),
    ],
)
def test_what_a_loop_counted_stays_until_another_unit_has_counted_enough(
    unit: StepUnit, steps: int, told: StepUnit
) -> None:
    """A cache that the first turns filled is none of a program that goes on without growing."""
    program = ChangingProgram()
    program.run(LOOP, TURNS, leaks=True)
    program.run(unit, steps, leaks=False)
    report = program.report()
    assert report.notes[0].endswith(told.text)
    assert bool(report.found) is (told is LOOP)


@pytest.mark.parametrize("unit", [LATER_LOOP, AFTER_IT])
def test_what_grew_in_a_loop_that_is_over_is_possible(unit: StepUnit) -> None:
    """Whatever comes after the loop, and however long it is: no leak was ruled out."""
    program = ChangingProgram()
    program.run(LOOP, TURNS, leaks=True)
    program.run(unit, 40, leaks=False)
    report = program.report()
    (leak,) = report.possible
    assert not report.found
    assert leak.bytes_per_step == 4 * 4096
    assert leak.reason == "the loop that it grew in has ended: it may be its result"
    assert report.steps == TURNS
    assert report.notes[0].endswith(LOOP.text)


def test_a_leak_of_the_present_loop_stands_before_growth_of_one_that_is_over() -> None:
    program = ChangingProgram()
    program.run(LOOP, TURNS, leaks=True)
    program.run(LATER_LOOP, 40, leaks=True)
    report = program.report()
    assert len(report.found) == 1
    assert report.steps == 40


def test_of_loops_without_growth_the_longest_is_told() -> None:
    """A store that filled in the first turns is named with it."""
    program = ChangingProgram()
    program.run(LOOP, 12, leaks=True)
    for _ in range(TURNS):
        program._follower._unit_ended(sys._getframe())
    program.run(LATER_LOOP, 40, leaks=False)
    report = program.report()
    assert report.notes[0].endswith(LOOP.text)
    assert [leak.verdict for leak in report.leaks] == [Verdict.NOT_A_PROBLEM]


@pytest.mark.parametrize("unit", [LATER_LOOP, AFTER_IT, GOING_ON, CALLS])
def test_a_leak_of_what_came_later_is_found(unit: StepUnit) -> None:
    program = ChangingProgram()
    program.run(LOOP, TURNS, leaks=False)
    program.run(unit, 12, leaks=True)
    (leak,) = program.report().found
    assert leak.bytes_per_step == 4 * 4096


@pytest.mark.parametrize(("unit", "is_sure"), [(GOING_ON, False), (LOOP, True)])
def test_growth_in_a_quarter_of_few_stretches_of_time_is_possible(
    unit: StepUnit, is_sure: bool
) -> None:
    """Of a population some live on: what is alive was born at many times, and is not more each
    time.
    """
    program = ChangingProgram()
    program.run(unit, 1, leaks=False)
    for _ in range(6):
        program.keep()
        for _ in range(4):
            program._follower._unit_ended(sys._getframe())
    report = program.report()
    assert bool(report.found) is is_sure
    assert bool(report.possible) is not is_sure
    if not is_sure:
        assert report.possible[0].reason == "only 6 of 21 steps left something behind"
