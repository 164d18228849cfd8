"""What a run has of what a budget limits: its peaks, its growth, and what each part of the
program held.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.budget.budget_file import CARD
from vramlens.analyses.compare.compared_run import Run, most_held
from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.growth import ENOUGH_STEPS, steps_missing
from vramlens.units import counted

FAILURES = ("out_of_memory",)
DIED = "the run ended out of memory"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run has of one thing.

    Attributes:
        value: None where the recording cannot tell.
        why: why it cannot tell, or what the value does not cover; "" else.
        is_lower_bound: whether the run may have had more.
    """

    value: float | None
    why: str = ""
    is_lower_bound: bool = False


def measured(run: Run, path: tuple[str, ...]) -> Measurement:
    """What a run has of what a limit is about."""
    if path == CARD:
        return Measurement(None, "only a prediction shows that: vramlens check SCRIPT --predict")
    if path[0] in _ROWS_OF:
        value, why = _part(run.view, path[0], path[1])
        return Measurement(None, why) if value is None else _of_window(run, value)
    if path[0].startswith("peak_"):
        return _peak(run, path[0])
    if path[0] == "growth_per_step":
        return _growth(run)
    if path[0] == "alloc_retries":
        return _retries(run)
    if path == FAILURES:
        return _failures(run)
    fragmentation = run.explanation.fragmentation
    if fragmentation is None or not fragmentation.reserved_bytes:
        return Measurement(None, "no memory was reserved")
    return _of_window(run, fragmentation.free_bytes / fragmentation.reserved_bytes)


def _retries(run: Run) -> Measurement:
    """What the allocator counted; else one for each failed request: it fails only after a retry
    (``malloc`` in PyTorch's CUDACachingAllocator.cpp).
    """
    if run.retries is not None:
        return Measurement(run.retries)
    why = "a PyTorch snapshot does not count retries; a recording of vramlens run does"
    failed_requests = len(run.view.device.out_of_memory)
    if not failed_requests:
        return Measurement(None, why)
    return Measurement(failed_requests, f"a lower bound: {why}", is_lower_bound=True)


def ended_by_failure(run: Run) -> bool:
    """Whether the program died of out of memory, on whichever device."""
    ending = run.explanation.recording.meta.ending or ""
    return run.failure is not None or ending.startswith("OutOfMemoryError")


def _of_window(run: Run, value: float) -> Measurement:
    """A value that events show, and what part of the run these are.

    A recording that was begun late on purpose holds all that it was asked for. Of one whose events
    were overwritten, or cut short, the run may have had more.
    """
    peak, recording = run.explanation.peak, run.explanation.recording
    if peak is None or "requested_bytes" in peak.exact:
        return Measurement(value)
    if run.is_whole_window:
        return Measurement(value, "since recording began")
    return Measurement(
        value,
        "a lower bound" + (f" (not recorded: {recording.missing[0]})" if recording.missing else ""),
        True,
    )


def _peak(run: Run, name: str) -> Measurement:
    """A peak; where events are lost the allocator's own counter may know a higher one."""
    if run.explanation.peak is None:
        return Measurement(None, "the recording is empty")
    kind = name.removeprefix("peak_")
    measurement = _of_window(run, getattr(run.explanation.peak, f"{kind}_bytes"))
    counter = _counter(run, f"{kind}_bytes.all.peak")
    if (
        measurement.value is None
        or not measurement.is_lower_bound
        or counter is None
        or counter <= measurement.value
    ):
        return measurement
    return Measurement(counter, measurement.why, True)


def _counter(run: Run, name: str) -> int | None:
    """One of the allocator's own counters at the end of the recording; None where it is not
    known.
    """
    count = run.view.trace.meta.device(run.device).stats.get(name)
    return None if count is None else int(count)


def _growth(run: Run) -> Measurement:
    """What the steps leave behind; known by the same number of steps as ``vramlens leaks``
    needs.
    """
    steps = run.explanation.steps.count
    recorded = f"{counted(steps, 'step')} recorded"
    if run.growth:
        return Measurement(run.growth)
    missing = steps_missing(steps - 1)
    if missing is not None and ended_by_failure(run):
        return Measurement(None, f"{recorded} before memory ran out, too few to show growth")
    if missing is not None:
        return Measurement(None, f"{recorded}; {counted(missing, 'more step')} would show growth")
    if run.growth_at_most:
        more = max((leak.needs_steps or 0 for leak in run.explanation.leaks), default=0)
        telling = "vramlens run --leaks shows what keeps it"
        if ended_by_failure(run):
            telling = "memory ran out before it was certain"
        elif more:
            telling = f"{counted(more, 'more step')} would show whether it continues"
        return Measurement(None, f"{recorded}; something grows, and {telling}")
    return Measurement(
        0, f"{recorded}; more than {ENOUGH_STEPS} make it certain" if steps <= ENOUGH_STEPS else ""
    )


def _failures(run: Run) -> Measurement:
    failed = len(run.view.device.out_of_memory)
    if ended_by_failure(run):
        return Measurement(max(failed, 1), DIED)
    measurement = _of_window(run, failed)
    counter = _counter(run, "num_ooms") if measurement.is_lower_bound else None
    return measurement if counter is None else Measurement(max(failed, counter))


def _part(view: Attribution, part: str, name: str) -> tuple[int | None, str]:
    """The most that a module, line, category or phase held at any time."""
    rows, why = _ROWS_OF[part](view, name)
    if rows is None:
        return None, why
    return int(most_held(view.device, np.where(rows, 0, -1), 1)[0]), ""


_Rows = tuple[NDArray[np.bool_] | None, str]
"""One flag an allocation; None, with the reason, where the recording has no such part."""


def _rows_of_category(view: Attribution, name: str) -> _Rows:
    return _rows_of_kind(view.categories.category, Category, "category", name)


def _rows_of_phase(view: Attribution, name: str) -> _Rows:
    return _rows_of_kind(view.phases.phase, Phase, "phase", name)


def _rows_of_kind(column: NDArray[np.integer], kinds: type[IntEnum], part: str, name: str) -> _Rows:
    numbers = {kind.name.lower(): int(kind) for kind in kinds}
    if name not in numbers:
        return None, f"there is no {part} {name!r}; there are: {', '.join(numbers)}"
    return np.asarray(column == numbers[name]), ""


def _rows_of_module(view: Attribution, name: str) -> _Rows:
    paths = view.modules.paths
    if not paths:
        return (
            None,
            "the recording contains no module names; vramlens run and vramlens.record add them",
        )
    pattern = module_pattern(name)
    modules = [number for number, path in enumerate(paths) if pattern.match(path)]
    if not modules:
        return None, f"the recording has no module {name!r}{_near(name, paths)}"
    return np.isin(view.modules.module, modules), ""


def _rows_of_line(view: Attribution, name: str) -> _Rows:
    places = {frame: view.place(frame) for frame in np.unique(view.phases.frame).tolist()}
    lines = {frame: place for frame, place in places.items() if place is not None}
    frames = [frame for frame, place in lines.items() if is_line(place, name)]
    if not frames:
        names = dict.fromkeys(f"{place.file}:{place.line}" for place in lines.values())
        return None, f"the recording has no line {name!r}{_near(name, tuple(names))}"
    return np.isin(view.phases.frame, frames), ""


_ROWS_OF: Mapping[str, Callable[[Attribution, str], _Rows]] = {
    "module": _rows_of_module,
    "line": _rows_of_line,
    "category": _rows_of_category,
    "phase": _rows_of_phase,
}


def module_pattern(name: str) -> re.Pattern[str]:
    """A module and all inside it; ``*`` is any one name."""
    parts = [r"[^.]+" if part == "*" else re.escape(part) for part in name.split(".")]
    return re.compile(r"\.".join(parts) + r"(?:\.|$)")


def is_line(place: Place, name: str) -> bool:
    """Whether a line is meant by ``train.py:44``, ``train.py:forward`` or ``train.py``; folders
    may be left out.
    """
    file, _colon, line_or_function = name.partition(":")
    path, suffix = place.file.replace("\\", "/"), file.replace("\\", "/")
    if path != suffix and not path.endswith(f"/{suffix}"):
        return False
    return not line_or_function or line_or_function in (str(place.line), place.function)


def _near(name: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, names, 1, 0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f" (it has {', '.join(map(repr, names[:3]))}, …)" if names else ""
