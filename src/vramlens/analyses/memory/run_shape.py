"""The run's shape: the peak of each step, and one sentence on how the highest one comes about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import Phase
from vramlens.trace import Action
from vramlens.units import format_size


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
    falls again.
    """
    event = view.device.requested.peak_event
    if not len(view.steps) or event < 0:
        return None
    step = int(view.steps.of(np.array([event]))[0])
    rows = np.flatnonzero(view.device.allocations.born == event)
    if not len(rows):
        return None
    row = int(rows[0])
    phase = Phase(int(view.phases.phase[row])).name.lower()
    place = view.place(int(view.phases.frame[row]))
    text = (
        f"Step {step} goes from {format_size(peaks.start_bytes[step])} to "
        f"{format_size(peaks.peak_bytes[step])}"
    )
    text += f" in {phase}" if phase in ("forward", "backward", "optimizer", "evaluation") else ""
    if place is not None:
        text += f" at {place}" + (" (likely)" if view.phases.inferred[row] else "")
    falls = _falls_in(
        view, event, int(view.steps.ends[step]), peaks.start_bytes[step], peaks.peak_bytes[step]
    )
    if falls is not None:
        text += f", then drops in {falls}" if falls != phase else ", then drops in the same phase"
    return text + "."


def _falls_in(
    view: Attribution, peak: int, end: int, start_bytes: int, peak_bytes: int
) -> str | None:
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
    return phase.name.lower() if phase not in (Phase.OTHER, Phase.UNKNOWN) else None
