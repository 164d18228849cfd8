"""Whether a failed request was the end of the program, or whether it went on."""

from __future__ import annotations

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.steps import mark_ends_us, optimizer_stacks
from vramlens.trace import NO_STACK, Action, DeviceTrace, OutOfMemory, Trace

_PART_OF_A_STEP = 0.5
_PART_OF_ALL = 0.05
_LEAST_SHARE_OF_BYTES = 0.01
"""Of all requested bytes: printing a tensor asks for less."""
_STEP_MARKS = ("vramlens.step", "Optimizer.step#")


def went_on(view: Attribution, request: OutOfMemory) -> bool:
    """Whether the program went on after a failed request.

    What ends a program asks for memory, too: handlers, a report, a last checkpoint. So that it went
    on is told by what an end does not do: the same call tries again (cuDNN takes another algorithm,
    a guard a smaller batch), a step ends, an optimizer works, or half a step's work follows; where
    no steps are known, a twentieth of all requests.
    """
    device, trace = view.device, view.trace
    births = np.flatnonzero(device.events.action == Action.ALLOC)
    after = births[births > request.event]
    if not len(after):
        return False
    stacks = device.events.stack[after]
    if request.stack != NO_STACK and stacks[0] == request.stack:
        return True
    if _step_ended_after(trace, device, request.event):
        return True
    if optimizer_stacks(trace.stacks)[stacks[stacks != NO_STACK]].any():
        return True
    earlier = view.steps.starts_until(request.event)
    if len(earlier) > 1:
        usual = float(np.median(np.diff(np.searchsorted(births, earlier))))
        return len(after) >= _PART_OF_A_STEP * usual
    sizes = device.events.size
    is_more_than_printing = sizes[after].sum() > _LEAST_SHARE_OF_BYTES * sizes[births].sum()
    return bool(is_more_than_printing) and len(after) > _PART_OF_ALL * len(births)


def _step_ended_after(trace: Trace, device: DeviceTrace, event: int) -> bool:
    if not len(device.clock_us):
        return False
    ends = mark_ends_us(trace, device, _STEP_MARKS)
    return bool((ends > int(device.clock_us[event])).any())
