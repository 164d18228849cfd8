"""What tells a leak from a buffer that has not filled: what CPython really does, and what cuts
of recordings show.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from support.leak_programs import LEAK_LINE, MAIN, Run, at
from support.oracle import MIB
from support.recordings import data_of, read
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.leaks.evidence import (
    LATEST_FIRST,
    OLDEST_FIRST,
    OUTLIVED,
    UNORDERED,
    fate_of,
    loop_ended,
)
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace


class Kept:
    """Says when it goes."""

    def __init__(self, number: int, gone: list[int]) -> None:
        self.number, self.gone = number, gone

    def __del__(self) -> None:
        self.gone.append(self.number)


@pytest.mark.parametrize(
    ("container", "order"),
    [
        (list, range(39, -1, -1)),
        (deque, range(40)),
        (lambda kept: dict(enumerate(kept)), range(40)),
    ],
)
def test_the_order_in_which_python_empties_what_nobody_holds(
    container: Callable[[Iterable[Kept]], Any], order: range
) -> None:
    gone: list[int] = []
    held = container(Kept(number, gone) for number in range(40))
    assert gone == []
    del held
    assert gone == list(order)


def ended(
    order: Callable[[list[int]], Iterable[int]] | None, *, more: int = 0
) -> tuple[Run, str | None, bool]:
    """The fate of what ten steps kept, and whether the loop's end is seen; ``order`` None is a
    recording without one.
    """
    run = Run(0)
    run.setup()
    kept: list[int] = []
    for step in range(11):
        run.step(lambda _: kept.append(run.new(MIB, MAIN, at(LEAK_LINE))), step)
    if order is not None:
        run.finish(order(kept))
    for step in range(more):
        run.step(lambda _: None, 11 + step)
    trace = run.trace()
    view = attribute(trace, trace.devices[0])
    lines = trace.stacks.frame_line[np.maximum(view.phases.frame, 0)]
    rows = np.flatnonzero((lines == LEAK_LINE) & (view.phases.frame >= 0) & (view.step < 10))
    assert len(rows) == 10
    moment = int(view.steps.starts[10]) - 1
    return run, fate_of(view, rows, moment), loop_ended(view, rows, moment)


@pytest.mark.parametrize(
    ("order", "more", "fate"),
    [
        (None, 0, None),
        (reversed, 0, LATEST_FIRST),
        (list, 0, OLDEST_FIRST),
        (lambda kept: sorted(kept, key=lambda address: address * 7919 % 1009), 0, UNORDERED),
        (lambda _: [], 0, OUTLIVED),
        (reversed, 3, UNORDERED),  # the program goes on: a list that was emptied
    ],
)
def test_what_becomes_of_it_at_the_end(order: Any, more: int, fate: str | None) -> None:
    _, found, seen = ended(order, more=more)
    assert found == fate
    assert seen == (order is not None)


def test_a_variable_of_the_loop_that_is_not_replaced_shows_its_end() -> None:
    def last(*, goes: bool) -> str | None:
        run = Run(0)
        run.setup()
        held: list[int] = []

        def extra(_: int) -> None:
            run.new(MIB, MAIN, at(LEAK_LINE))
            held.append(
                run.new(4096, MAIN, at(30))
            )  # loss = ...: the one before goes once this one is there
            for address in held[:-1]:
                run.free(address)
            del held[:-1]

        for step in range(12):
            run.step(extra, step)
        if goes:
            run.free(held.pop())
        trace = run.trace()
        (leak,) = [leak for leak in leaks_of_trace(trace).leaks if leak.verdict != "not a problem"]
        return leak.verdict

    assert (last(goes=True), last(goes=False)) == ("likely", "possible")


@pytest.mark.parametrize("kept", [542, 380, 271, 162])
def test_the_end_of_a_pass_that_failed_is_no_leak_of_its_layers(kept: int) -> None:
    """recordings/oom_train, had its ring been so short: what repeats are the layers of the last
    forward pass.
    """
    value = pickle.loads(data_of("recordings/oom_train"))
    value["device_traces"] = [value["device_traces"][0][-kept:]]
    for notes in ([], value["external_annotations"]):
        report = leaks_of_trace(read(pickle.dumps(value | {"external_annotations": notes})))
        assert {leak.verdict for leak in report.leaks} <= {"not a problem"}


@pytest.mark.parametrize("name", ["gpt", "gpt_annotated", "leak_none_warmup", "graphs"])
@pytest.mark.parametrize("share", [0.6, 0.3, 0.1])
def test_the_last_part_of_a_run_does_not_leak_either(name: str, share: float) -> None:
    value = pickle.loads(data_of(f"recordings/{name}"))
    events = value["device_traces"][0]
    value |= {"device_traces": [events[-int(share * len(events)) :]], "external_annotations": []}
    assert {leak.verdict for leak in leaks_of_trace(read(pickle.dumps(value))).leaks} <= {
        "not a problem"
    }


def test_a_leak_whose_beginning_is_lost_is_only_possible_where_a_pattern_tells_steps() -> None:
    value = pickle.loads(data_of("recordings/oom_leak"))
    value["device_traces"] = [value["device_traces"][0][-700:]]
    (leak,) = [
        leak
        for leak in leaks_of_trace(read(pickle.dumps(value))).leaks
        if leak.verdict != "not a problem"
    ]
    assert (leak.verdict, leak.place and leak.place.line) == ("possible", 268)
    assert "does not include the start" in leak.reason
