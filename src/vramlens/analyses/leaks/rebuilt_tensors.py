"""Tensors that are made anew, larger, in every step: ``x = torch.cat((x, y))``.

No block of theirs lives for long, but what they hold grows.
"""

from __future__ import annotations

import re

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.leaks.cohorts import moment_of
from vramlens.analyses.leaks.rate import rate_of
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import MIB, counted, format_size

_FEWEST_STEPS = 10
_LEAST_BYTES = MIB
_LEAST_SHARE = 0.01
_COVERED = 0.9
_MOST_STACKS = 100
_GENERATES = re.compile(
    r"generat|decod|kv_?cache|key_?value|past_key|cache_utils|attention|attn", re.IGNORECASE
)
"""Files and functions that make one token after another, and the keys and values that attention
keeps of them.
"""


def rebuilt_larger(view: Attribution, event: int | None = None) -> list[RecordedLeak]:
    """What one line replaces by something larger in every step: possible leaks, for such may well
    be meant.

    Args:
        event: judge right after this event; by default when the last step begins.
    """
    steps, device = view.steps, view.device
    if len(steps) <= _FEWEST_STEPS:
        return []
    moment, last = moment_of(view, event)
    allocations = device.allocations
    least_bytes = max(_LEAST_BYTES, _LEAST_SHARE * device.requested.peak_bytes)
    alive = np.flatnonzero(
        (view.step >= last - 2)
        & (view.step < last)
        & (allocations.free_requested > moment)
        & (allocations.requested_bytes >= least_bytes)
        & (allocations.stack != NO_STACK)
    )
    leaks = []
    stacks = np.unique(allocations.stack[alive])[:_MOST_STACKS]
    theirs = np.flatnonzero(
        np.isin(allocations.stack, stacks) & (view.step >= 0) & (view.step < last)
    )
    for stack in stacks.tolist():
        rows = theirs[allocations.stack[theirs] == stack]
        largest = np.zeros(last, np.int64)
        np.maximum.at(largest, view.step[rows], allocations.requested_bytes[rows])
        at = np.flatnonzero(largest)
        sizes = largest[at]
        if len(at) < _FEWEST_STEPS or len(at) < _COVERED * (last - int(at[0])):
            continue
        rises = np.diff(sizes)
        if (rises < 0).any() or (rises > 0).mean() < _COVERED:
            continue
        rate = rate_of(np.diff(sizes))
        alive_rows = rows[(allocations.free_requested[rows] > moment)]
        fix, fix_share = _fix_and_share(view, stack)
        leaks.append(
            RecordedLeak(
                verdict=Verdict.POSSIBLE,
                kind=None,
                place=view.place_of_stack(stack),
                bytes_per_step=round(rate.bytes),
                bytes=int(sizes[-1]),
                steps=len(at),
                fix=fix,
                fix_share=fix_share,
                low=round(rate.low),
                high=round(rate.high),
                taken_per_step=round(rate.bytes),
                allocations_per_step=1.0,
                storages=len(alive_rows),
                stacks=1,
                device=device.device,
                reason="it may be intended to grow, as a KV cache does until the text ends",
                evidence=(
                    "one tensor is created again, larger, in each of "
                    f"{counted(len(at), 'step')}: from"
                    f" {format_size(int(sizes[0]))} to {format_size(int(sizes[-1]))}",
                ),
                rows=alive_rows,
            )
        )
    return leaks


def _fix_and_share(view: Attribution, stack: int) -> tuple[str, float]:
    """What to do, and how much that frees: a cache that attention reads in each step cannot go to
    the CPU, and its growth is what it is for.
    """
    stacks = view.trace.stacks
    names = [f"{frame.file}:{frame.function}" for frame in stacks.of(stack)]
    if not any(_GENERATES.search(name) for name in names):
        return (
            "collect the parts in a list on the CPU (`parts.append(part.cpu())`) and join them "
            "once, or limit its length and allocate it once"
        ), 1.0
    if any("transformers" in name for name in names):
        return (
            "it grows until the text ends: limit it with `max_new_tokens`, or allocate it once with"
            ' `cache_implementation="static"`'
        ), 0.0
    return (
        "it grows until the text ends: limit the length of the text, or allocate it once for that "
        "length and write into it"
    ), 0.0
