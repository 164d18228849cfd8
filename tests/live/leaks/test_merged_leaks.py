"""Collections that one statement fills, each for a while: those of requests."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from vramlens import LeakWatch
from vramlens.live.leaks.leak_report import LeakReport

STEPS, CALLS_AT_ONCE = 60, 3


class _Call:
    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.encoded: list[Any] = []

    def turn(self) -> None:
        self.encoded.append(torch.zeros(4096))


def _served(turns: int, first_turns: int) -> LeakReport:
    """The report of a server of a few calls at once, which keeps the last few that are over.

    Args:
        turns: of each call.
        first_turns: how long the first calls last: they end one by one.
    """
    watch = LeakWatch()
    calls = [_Call(first_turns + number) for number in range(CALLS_AT_ONCE)]
    over: list[_Call] = []
    for _ in range(STEPS):
        for place, call in enumerate(calls):
            call.turn()
            if len(call.encoded) >= call.turns:
                over = [*over, call][-4:]
                calls[place] = _Call(turns)
        watch.step()
    return watch.report()


def test_one_of_several_that_are_each_filled_for_a_while() -> None:
    (leak,) = _served(turns=14, first_turns=4).leaks
    assert leak.owner is not None
    assert leak.owner.name.endswith("encoded")
    assert leak.verdict == "not a problem"
    assert "3 others that line 24 fills have stopped growing" in leak.reason


class _Meter:
    def __init__(self) -> None:
        self.losses: list[Any] = []


def test_the_longest_of_several_may_go_on() -> None:
    """Two short phases come before one that does not end."""
    meters, watch = [_Meter(), _Meter(), _Meter()], LeakWatch()
    for meter, steps in zip(meters, (14, 14, 50), strict=True):
        for _ in range(steps):
            meter.losses.append(torch.zeros(4096))
            watch.step()
    (leak,) = watch.report().leaks
    assert leak.verdict == "possible"
