"""The curve of a what-if against the same programs recorded under those settings, and where it
ends.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from support.recordings import data_of, read
from vramlens.replay import Proven, WhatIf, prove
from vramlens.replay.what_if import ask, question
from vramlens.trace import Action
from vramlens.units import MIB

EXPANDABLE = "expandable_segments:True"


@cache
def proven(name: str) -> Proven:
    trace = read(data_of(name))
    return prove(trace, trace.devices[0])


def asked(name: str, conf: str | None, cap_bytes: int | None = None) -> WhatIf:
    found = proven(name)
    (row,) = ask(found, [question(found, conf, cap_bytes)], quick=True, curves=True)
    return row


def requests(found: Proven) -> np.ndarray:
    return np.flatnonzero(np.isin(found.device.events.action, (Action.ALLOC, Action.OOM)))


@pytest.mark.parametrize("name", ["recordings/gpt_varlen", "recordings/oom_train"])
def test_it_is_the_curve_that_was_recorded_under_those_settings(name: str) -> None:
    """Two recordings of one program: the n-th request of one is the n-th of the other."""
    mine, real = proven(name), proven(f"{name}_expandable")
    row = asked(name, EXPANDABLE)
    asks, asked_really = requests(mine), requests(real)
    assert (mine.device.events.size[asks] == real.device.events.size[asked_really]).all()
    assert row.curve is not None
    assert (row.curve.after(asks) == real.device.reserved_curve[asked_really]).all()
    assert (row.curve.after(asks) != mine.device.reserved_curve[asks]).any()
    if real.device.out_of_memory:
        (at,) = np.flatnonzero(asks == row.curve.died_event)
        assert asked_really[at] == real.device.out_of_memory[-1].event


def test_what_was_recorded_is_its_own_curve() -> None:
    row = asked("recordings/oom_train", None)
    device = proven("recordings/oom_train").device
    assert row.curve is not None
    assert (row.curve.after(np.arange(len(device.events))) == device.reserved_curve).all()
    assert len(row.curve.event) < 0.1 * len(device.events)  # changes alone
    assert row.curve.died_event == device.out_of_memory[-1].event


def test_it_ends_where_the_program_would_have_died() -> None:
    cap = 2048 * MIB
    row = asked("recordings/gpt_varlen", EXPANDABLE, cap)
    assert row.oom
    assert row.curve is not None
    died = row.curve.died_event
    assert died == row.oom_event
    assert row.curve.event[-1] <= died < len(proven("recordings/gpt_varlen").device.events) - 1
    assert row.curve.reserved_bytes.max() == row.peak_reserved_bytes <= cap


def test_it_goes_on_to_the_end_where_the_program_gets_past_its_failure() -> None:
    row = asked("recordings/oom_train", EXPANDABLE, 2**40)
    assert row.past_failure
    assert row.curve is not None
    assert row.curve.died_event is None


def test_the_most_within_an_event_is_kept() -> None:
    """A request may give segments back one by one before it is served: both ends of that are
    there.
    """
    curve = asked(
        "recordings/gpt_varlen", "garbage_collection_threshold:0.6,max_split_size_mb:64", 6000 * MIB
    ).curve
    assert curve is not None
    twice = np.flatnonzero(np.diff(curve.event) == 0)
    assert len(twice)
    assert (np.diff(curve.event) >= 0).all()
    assert (curve.reserved_bytes[twice] > curve.reserved_bytes[twice + 1]).all()


def test_none_is_made_unless_it_is_asked_for() -> None:
    found = proven("recordings/gpt_varlen")
    assert [
        row.curve
        for row in ask(found, [question(found, conf) for conf in (None, EXPANDABLE)], quick=True)
    ] == [None] * 2
