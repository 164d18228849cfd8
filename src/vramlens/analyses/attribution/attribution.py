"""Attribution: for every allocation of a device its step, phase, user line, category, region,
name and module.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Categories, categories_of
from vramlens.analyses.attribution.modules import Modules, modules_of
from vramlens.analyses.attribution.names import Names, names_of
from vramlens.analyses.attribution.phases import Phases, phases_of
from vramlens.analyses.attribution.regions import regions_of
from vramlens.analyses.attribution.steps import Steps, steps_of
from vramlens.analyses.attribution.training import Training, training_of
from vramlens.analyses.finding import Place
from vramlens.trace import DeviceTrace, Trace
from vramlens.trace.storage_facts import AllocationFacts


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

    def place(self, frame: int) -> Place | None:
        """The line of a frame id; None for -1."""
        if frame < 0:
            return None
        frame_facts = self.trace.stacks.frame(frame)
        return Place(frame_facts.file, frame_facts.line, frame_facts.function)

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
