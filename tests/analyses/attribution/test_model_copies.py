"""Whether what steps leave behind are copies of a model that nothing uses."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.model_copies import are_unused_copies, has_copy_of_step
from vramlens.analyses.leaks.growth import leaks_at
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace
from vramlens.ground.verdict import Verdict


@cache
def view_of(name: str) -> Attribution:
    return load(DATA / "failures" / f"{name}.vram").attribution()


def copies() -> NDArray[np.int64]:
    view = view_of("snapshots_kept.cap90")
    kept = leaks_at(view, view.device.out_of_memory[-1].event)[0].rows
    assert kept is not None
    return kept


def test_copies_are_told_by_the_sizes_of_all_parameters() -> None:
    view, rows = view_of("snapshots_kept.cap90"), copies()
    assert are_unused_copies(view, rows)
    assert not are_unused_copies(view, rows[1:])  # the first lacks its largest matrix
    assert not are_unused_copies(view, rows[:0])


def test_the_copy_of_the_step_under_way_counts_where_it_is_whole() -> None:
    view, event = (
        view_of("snapshots_kept.cap90"),
        view_of("snapshots_kept.cap90").device.out_of_memory[-1].event,
    )
    last = int(view.steps.of(np.array([event]))[0])
    assert has_copy_of_step(view, copies(), last, event)
    assert not has_copy_of_step(view, copies(), last - 1, event)
    last_copy = np.flatnonzero(view.step == last)[0]
    assert not has_copy_of_step(
        view, copies(), last, int(view.device.allocations.born[last_copy + 2])
    )


def test_copies_that_ran_are_no_spare_copies() -> None:
    """Clients of a federated round, members of an ensemble: they are trained or used."""
    view, rows = view_of("snapshots_kept.cap90"), copies()
    module = view.modules.module.copy()
    module[rows] = module[np.flatnonzero(view.modules.marked)[0]]
    assert not are_unused_copies(replace(view, modules=replace(view.modules, module=module)), rows)
    unmarked = replace(view.modules, marked=np.zeros_like(view.modules.marked))
    assert not are_unused_copies(replace(view, modules=unmarked), rows)


def growing(name: str) -> list[RecordedLeak]:
    trace = load(DATA / "copies" / f"{name}.vram")
    return [leak for leak in leaks_of_trace(trace).leaks if leak.verdict != Verdict.NOT_A_PROBLEM]


def test_clones_of_a_state_dict_are_copies_of_the_model() -> None:
    """Seven of them, every fifth step, in a dict."""
    (leak,) = growing("state_clones")
    assert (leak.verdict, leak.every_steps, leak.steps) == (Verdict.LIKELY, 5, 7)
    assert "keep the copies of the model" in (leak.fix or "")


@pytest.mark.parametrize("name", ["best_state", "trained_copies"])
def test_a_copy_that_is_replaced_and_copies_that_are_trained_are_no_leak(name: str) -> None:
    """The best state so far, renewed every third step; the clients of a federated round."""
    assert growing(name) == []
    oom = load(DATA / "copies" / f"{name}.vram").explain().oom
    assert oom is not None
    assert oom.cause != "leak"
