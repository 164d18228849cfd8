"""What watching took of a run, as ``vramlens run --leaks`` says it at the end."""

from __future__ import annotations

import pytest

from vramlens.live import watching_cost
from vramlens.live.watching_cost import WatchingCost


class _Clock:
    """A clock that shows what it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(watching_cost, "perf_counter", clock)
    return clock


def _step_at(cost: WatchingCost, clock: _Clock, now: float, spent_seconds: float) -> None:
    clock.now = now
    cost.step_ended(spent_seconds)


def test_what_watching_took_of_a_short_run_is_told(clock: _Clock) -> None:
    cost = WatchingCost()
    clock.now = 10.0
    cost.unit_begins()
    _step_at(cost, clock, 12.0, 0.3)
    assert "watching for leaks took 0.40 s of 2.00 s (20%)" in cost.text(0.1)
    clock.now = 13.0
    cost.first_steps_ended()
    _step_at(cost, clock, 110.0, 0.0)
    assert not cost.text(0.1)


def test_both_numbers_count_from_the_first_unit_of_steps(clock: _Clock) -> None:
    cost = WatchingCost()
    clock.now = 10.0
    cost.unit_begins()
    _step_at(cost, clock, 20.0, 1.0)
    cost.add(0.5)  # the first unit's watch has ended
    clock.now = 20.5
    cost.unit_begins()
    _step_at(cost, clock, 21.0, 0.1)
    assert "took 1.60 s of 11.00 s (15%)" in cost.text(0.0)


def test_each_unit_may_cost_more_in_its_first_steps(clock: _Clock) -> None:
    cost = WatchingCost()
    cost.unit_begins()
    _step_at(cost, clock, 10.0, 0.4)
    cost.first_steps_ended()
    _step_at(cost, clock, 20.0, 0.0)
    cost.unit_begins()
    _step_at(cost, clock, 30.0, 0.4)
    assert not cost.text(0.0)
    assert "took 1.21 s of 30.00 s (4%)" in cost.text(0.41)
