"""Findings on copies to the GPU in a profiler's trace: from pageable memory, and twice the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.profile.explained_profile import Profile
from vramlens.analyses.profile.operator_tables import OperatorTables
from vramlens.analyses.profile.overview import ProfilerStep, steps_at
from vramlens.ground.verdict import Verdict
from vramlens.trace.profile import NONE, Kind
from vramlens.units import counted, format_duration

_PAGEABLE, _TO_DEVICE = "Pageable -> Device", "HtoD"
_LEAST_SHARE = 0.01
"""Of the wall time: shorter copies are not worth a change."""
_LEAST_STEPS = 2


def copy_findings(profile: Profile) -> Iterator[Finding]:
    """Yields what could be copied faster, or not at all."""
    yield from _pageable(profile)
    yield from _repeated(profile)


def _copies(tables: OperatorTables, part_of_name: str) -> NDArray[np.int64]:
    """Indices into the device work: copies whose name says where from and to."""
    spans, names = tables.trace.spans, tables.trace.names
    is_named = np.array([part_of_name in name for name in names], np.bool_)
    rows = tables.work.rows
    return np.flatnonzero((spans.kind[rows] == Kind.COPY) & is_named[spans.name[rows]])


def _pageable(profile: Profile) -> Iterator[Finding]:
    tables = profile.tables
    copies = _copies(tables, _PAGEABLE)
    spans = tables.trace.spans
    rows = tables.work.rows[copies]
    lasted = spans.end_ns[rows] - spans.start_ns[rows]
    total_ns = int(lasted.sum())
    if total_ns < _LEAST_SHARE * profile.wall_ns:
        return
    places = Counter[Place | None]()
    for place, ns in zip(_places(tables, copies), lasted.tolist(), strict=True):
        places[place] += ns
    named = [place for place, _ in places.most_common() if place is not None]
    yield Finding(
        id="profile_pageable_copies",
        verdict=Verdict.PROVEN,
        title=f"{counted(len(rows), 'copy', 'copies')} to the GPU from pageable memory take"
        f" {format_duration(total_ns)}, {100 * total_ns / profile.wall_ns:.0f}% of the time",
        place=named[0] if named else None,
        evidence=("the driver copies pageable memory through a buffer, and the CPU waits for it",),
        fix="`DataLoader(..., pin_memory=True)` or `tensor.pin_memory()`, and"
        " `.to(device, non_blocking=True)`",
    )


def _repeated(profile: Profile) -> Iterator[Finding]:
    """What one function copies to the GPU twice a step, in one shape, in nearly all steps."""
    tables = profile.tables
    copies = _copies(tables, _TO_DEVICE)
    operators = tables.work.operator[copies]
    if len(profile.steps) < _LEAST_STEPS or not len(copies):
        return
    counts = _copies_by_step(tables, copies, operators, profile.steps)
    twice = Counter((place, shapes) for (_, place, shapes), count in counts.items() if count > 1)
    enough = max(_LEAST_STEPS, len(profile.steps) - 1)
    for (place, shapes), in_steps in twice.most_common(3):
        if in_steps < enough:
            return
        text = tables.trace.shapes[shapes]
        yield Finding(
            id="profile_repeated_copies",
            verdict=Verdict.POSSIBLE,
            title=f"one function copies shapes {text} to the GPU more than once a step, in"
            f" {in_steps} steps",
            place=place,
            evidence=("the trace does not say whether it is the same tensor each time",),
            fix="move a tensor once, `x = x.to(device)`, and go on with the result; keep what does"
            " not change on the GPU",
        )


def _copies_by_step(
    tables: OperatorTables,
    copies: NDArray[np.int64],
    operators: NDArray[np.int64],
    profile_steps: tuple[ProfilerStep, ...],
) -> Counter[tuple[int, Place, int]]:
    """The number of copies that one function made of one shape, by step, function and shape."""
    spans = tables.trace.spans
    times = np.where(operators >= 0, spans.start_ns[operators], 0)
    steps = steps_at(times, profile_steps).tolist()
    counts = Counter[tuple[int, Place, int]]()
    columns = zip(steps, operators.tolist(), _places(tables, copies), strict=True)
    for step, operator, place in columns:
        shapes = int(spans.shapes[operator]) if operator >= 0 else NONE
        if step >= 0 and place is not None and shapes != NONE:
            counts[step, place, shapes] += 1
    return counts


def _places(tables: OperatorTables, copies: NDArray[np.int64]) -> list[Place | None]:
    """The user's function behind each copy."""
    spans, work = tables.trace.spans, tables.work
    source = np.where(work.operator[copies] >= 0, work.operator[copies], work.launch[copies])
    is_known = source >= 0
    user = np.full(len(copies), NONE, np.int64)
    rows = source[is_known]
    user[is_known] = tables.lines.at(spans.thread[rows], spans.start_ns[rows])
    return [tables.lines.place(row) for row in user.tolist()]
