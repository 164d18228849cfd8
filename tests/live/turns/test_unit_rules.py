"""What is left of leaks where a step is a stretch of time."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from vramlens.ground.verdict import Verdict
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.turns.other_steps import StepUnit
from vramlens.live.turns.unit_rules import judged_without_optimizer
from vramlens.live.unit_watch import UnitWatch


@pytest.mark.parametrize(
    ("steps", "span", "verdict", "reason"),
    [
        (12, 12, "proven", ""),
        (16, 60, "proven", ""),
        (8, 17, "possible", "only 8 of 17 steps left something behind"),
        (6, 12, "proven", ""),
        (6, 13, "possible", "only 6 of 13 steps left something behind"),
        (4, 4, "possible", "only 4 steps left something behind"),
    ],
)
def test_few_stretches_that_left_something_are_possible(
    steps: int, span: int, verdict: str, reason: str
) -> None:
    leak = LiveLeak(
        verdict=Verdict.PROVEN,
        kind="container",
        bytes_per_step=4096,
        bytes=4096 * steps,
        steps=steps,
        first_step=2,
        last_step=span + 1,
    )
    (judged,) = judged_without_optimizer(LeakReport(span + 1, (leak,)), is_of_time=True).leaks
    assert (judged.verdict, judged.reason) == (verdict, reason)


class Server:
    """Keeps something in every third stretch of time."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def serve(self, watch: UnitWatch) -> None:
        for stretch in range(24):
            if stretch % 3 == 0:
                self.answers.append(torch.zeros(4096))
            watch.step(sys._getframe())


def test_a_recording_says_of_a_leak_what_the_report_says() -> None:
    server, watch = Server(), UnitWatch(StepUnit("0.1 s", is_of_time=True))
    server.serve(watch)
    (told,) = watch.conclusion()[0].leaks
    owned = watch.owned()
    assert owned is not None
    (recorded,) = owned.report.leaks
    assert told.verdict == recorded.verdict == Verdict.POSSIBLE
    assert told.reason == recorded.reason
    assert "left something behind" in told.reason
