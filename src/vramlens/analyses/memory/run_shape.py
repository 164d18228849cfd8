"""The run's shape: the peak of each step, and one sentence on how the highest one comes about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import Phase
from vramlens.trace import Action
from vramlens.units import format_size

_PHASES = {
    Phase.FORWARD: "the forward pass",
    Phase.BACKWARD: "the backward pass",
    Phase.OPTIMIZER: "the optimizer step",
    Phase.EVALUATION: "evaluation",
}


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """Requested bytes by step.

    Attributes:
        peak_bytes: the highest within each step.
        start_bytes: when it begins.
        own_bytes: what it adds at its peak to what was there when it began.
    """

    peak_bytes: tuple[int, ...]
    start_bytes: tuple[int, ...]
    own_bytes: tuple[int, ...]


def step_peaks(view: Attribution) -> StepPeaks:
    """The requested bytes of every step."""
    if not len(view.steps):
        return StepPeaks((), (), ())
    device = view.device
    curve = device.requested_curve
    starts = view.steps.starts
    before = np.where(starts > 0, curve[starts - 1], device.requested.base_bytes)
    peaks = np.maximum(np.maximum.reduceat(curve, starts), before)
    return StepPeaks(
        tuple(peaks.tolist()), tuple(before.tolist()), tuple((peaks - before).tolist())
    )


def shape_of(view: Attribution, peaks: StepPeaks) -> str | None:
    """One sentence: which step reaches the peak, in which phase and at which line, and where it
    falls again; None without steps of the run.
    """
    event = view.device.requested.peak_event
    step = view.step_of_run(event)
    if step is None:
        return None
    rows = np.flatnonzero(view.device.allocations.born == event)
    if not len(rows):
        return None
    row = int(rows[0])
    phase = Phase(int(view.phases.phase[row]))
    sizes = format_size(peaks.start_bytes[step]), format_size(peaks.peak_bytes[step])
    falls = _falls_in(
        view, event, int(view.steps.ends[step]), peaks.start_bytes[step], peaks.peak_bytes[step]
    )
    return (
        f"Step {step} goes from {sizes[0]} to {sizes[1]}{_where(view, row)}{_fall(phase, falls)}."
    )


def _where(view: Attribution, row: int) -> str:
    """In which phase a row was requested, and at which line."""
    phase = _PHASES.get(Phase(int(view.phases.phase[row])))
    place = view.place(int(view.phases.frame[row]))
    if place is None:
        return "" if phase is None else f" in {phase}"
    likely = "likely " if view.phases.inferred[row] else ""
    return f" at {place}" if phase is None else f" in {phase} ({likely}{place})"


def _fall(phase: Phase, falls: Phase | None) -> str:
    if falls is None:
        return ""
    return ", and drops before it ends" if falls == phase else f", then drops in {_PHASES[falls]}"


def _falls_in(
    view: Attribution, peak: int, end: int, start_bytes: int, peak_bytes: int
) -> Phase | None:
    """The phase in which half of the step's rise is gone again; None where it stays."""
    device = view.device
    below = np.flatnonzero(device.requested_curve[peak:end] <= (start_bytes + peak_bytes) // 2)
    if not len(below):
        return None
    event = peak + int(below[0])
    births = np.flatnonzero(device.events.action[:event] == Action.ALLOC)
    rows = device.allocation_of_event[births[-1:]]
    if not len(rows):
        return None
    phase = Phase(int(view.phases.phase[rows[0]]))
    return phase if phase in _PHASES else None
