"""Attribution: for every allocation of a device its step, phase, user line, category, region,
name and module.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Categories, categories_of
from vramlens.analyses.attribution.modules import Modules, modules_of
from vramlens.analyses.attribution.names import Names, names_of
from vramlens.analyses.attribution.phases import Phases, phases_of
from vramlens.analyses.attribution.repeated_modules import lie_in_one_pass
from vramlens.analyses.attribution.steps import Steps, steps_of
from vramlens.analyses.attribution.training import Training, training_of
from vramlens.analyses.finding import Place
from vramlens.trace import DeviceTrace, Trace
from vramlens.trace.storage_facts import AllocationFacts

# PyTorch's own marks, and a profiler's: they name no region of the user's.
_NOT_REGIONS = re.compile(
    r"^(?:Optimizer\.|ProfilerStep#|vramlens\.step|autograd::|nccl:|gloo:|c10d::)"
)
NO_REGION = -1


@dataclass(frozen=True, eq=False)
class Attribution:
    """What the analyses agree on about one device; one row an allocation.

    Attributes:
        trace, device: what it is about.
        steps, phases, categories, names, modules: see those modules.
        step: the step in which each allocation was born; -1 before the recording.
        region: text id of the innermost region; -1 where there is none.
        training: whether the recording shows training.
    """

    trace: Trace
    device: DeviceTrace
    steps: Steps
    phases: Phases
    categories: Categories
    step: NDArray[np.int64]
    region: NDArray[np.int64]
    names: Names
    modules: Modules
    training: Training

    @cached_property
    def has_run_steps(self) -> bool:
        """Whether there are steps, and they are those of the run: not the layers or turns of one pass,
        which no sentence may call steps.
        """
        return len(self.steps) > 0 and not lie_in_one_pass(self)

    def step_of_run(self, event: int) -> int | None:
        """The run's step that an event is in; None before the recording, and where there are no steps."""
        if event < 0 or not self.has_run_steps:
            return None
        return int(self.steps.of(np.array([event]))[0])

    def place(self, frame: int) -> Place | None:
        """The line of a frame id; None for -1."""
        if frame < 0:
            return None
        frame_facts = self.trace.stacks.frame(frame)
        return Place(frame_facts.file, frame_facts.line, frame_facts.function)

    def place_of_block(self, row: int) -> Place | None:
        """The user line that requested an allocation."""
        return self.place(int(self.phases.frame[row]))

    def place_of_stack(self, stack: int) -> Place | None:
        """The user line of a stack."""
        has_stack = 0 <= stack < len(self.trace.stacks)
        return self.place(int(self.trace.stacks.user_frame[stack])) if has_stack else None


def attribute(trace: Trace, device: DeviceTrace) -> Attribution:
    """Attributes every allocation of a device."""
    steps = steps_of(trace, device)
    names = names_of(trace, device)
    modules = modules_of(trace, device, names)
    facts = trace.facts.get(device.device)
    if facts is None:
        phases = phases_of(trace, device, steps)
        training = training_of(trace, device, phases, names, modules)
        categories = categories_of(trace, device, steps, phases, names, training, modules)
    else:
        phases, categories = _from_facts(facts)
        training = Training.UNKNOWN
    return Attribution(
        trace=trace,
        device=device,
        steps=steps,
        phases=phases,
        categories=categories,
        step=steps.of(device.allocations.born),
        region=regions_of(trace, device),
        names=names,
        modules=modules,
        training=training,
    )


def _from_facts(facts: AllocationFacts) -> tuple[Phases, Categories]:
    """Phases and categories as a profiler's trace says them: it shows no backward pass as one."""
    none = np.zeros(0, np.int64)
    phases = Phases(
        phase=facts.phase,
        frame=facts.frame,
        inferred=facts.inferred,
        span=np.full(len(facts.phase), -1, np.int64),
        span_start=none,
        span_last=none,
        span_end=none,
    )
    return phases, Categories(facts.category, facts.certainty)


def regions_of(trace: Trace, device: DeviceTrace) -> NDArray[np.int64]:
    """The innermost region in which each allocation was asked for: a text id, NO_REGION where there
    is none.

    Regions are marks in time, set by any thread of the process; on another thread's allocations
    they are a guess.
    """
    notes = trace.annotations
    chosen = _marks_of_regions(trace, device)
    born = device.allocations.born
    region = np.full(len(born), NO_REGION, np.int64)
    if not len(chosen) or not len(device.events):
        return region
    chosen = chosen[np.argsort(notes.time_us[chosen], kind="stable")]
    innermost = _innermost_after(notes.name[chosen].tolist(), notes.starts[chosen].tolist())
    recorded = born >= 0
    when = device.clock_us[born[recorded]]
    region[recorded] = innermost[np.searchsorted(notes.time_us[chosen], when, side="right")]
    return region


def _marks_of_regions(trace: Trace, device: DeviceTrace) -> NDArray[np.int64]:
    notes = trace.annotations
    chosen = np.flatnonzero(np.isin(notes.device, (device.device, -1)))
    names = {i: trace.stacks.strings[i] for i in np.unique(notes.name[chosen]).tolist()}
    region_names = [i for i, name in names.items() if name and not _NOT_REGIONS.match(name)]
    return chosen[np.isin(notes.name[chosen], region_names)]


def _innermost_after(names: Sequence[int], starts: Sequence[bool]) -> NDArray[np.int64]:
    """The innermost open region before the first mark and after each."""
    # The innermost is last; a closed one goes when it comes to the top.
    open_regions: list[int] = []
    closed_below: Counter[int] = Counter()
    open_count: Counter[int] = Counter()
    innermost = np.full(len(names) + 1, NO_REGION, np.int64)
    for place, (name, is_start) in enumerate(zip(names, starts, strict=True), 1):
        if is_start:
            open_regions.append(name)
            open_count[name] += 1
        elif open_count[name]:  # the latest of that name; regions of two threads may cross
            open_count[name] -= 1
            closed_below[name] += 1
        while open_regions and closed_below[open_regions[-1]]:
            closed_below[open_regions.pop()] -= 1
        innermost[place] = open_regions[-1] if open_regions else NO_REGION
    return innermost
