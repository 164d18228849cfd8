"""Memory that a line replaces, and of which more remains at the end of each step: ``x = torch.cat((x, y))``,
the key-value caches of a server's conversations.

Each block may live for a short time only: what the line holds at the ends of steps says whether it
grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.leaks.certainty import (
    RESULT,
    SIGN,
    fills_memory,
    most_by_pattern,
    verdict_of_steps,
)
from vramlens.analyses.leaks.cohorts import moment_of
from vramlens.analyses.leaks.rate import rate_of
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.rhythm import Rhythm, rhythm_of
from vramlens.ground.verdict import Verdict, least_sure
from vramlens.trace import NO_STACK
from vramlens.units import MIB, counted, format_size

_FEWEST_STEPS = 10
_LEAST_BYTES = MIB
_LEAST_SHARE = 0.01
_RISING = 0.9
"""Of the steps: so many have to end with more than the one before."""
_FALLEN = 0.05
"""Of what was added: more than that given up on the way is a store that is cleared now and then."""
_SETTLED_STEPS = 2
_SETTLED = 0.25
"""Of what a line holds: so much that the latest steps did not replace is no single text that grows."""
_MOST_LINES = 100
_BUILT_ONCE = (Category.OPTIMIZER_STATE, Category.WORKSPACE, Category.PARAMETERS)
_GENERATES = re.compile(
    r"generat|decod|kv_?cache|key_?value|past_key|cache_utils|attention|attn", re.IGNORECASE
)
"""Files and functions that make one token after another, and the keys and values that attention
keeps of them.
"""


@dataclass(frozen=True, eq=False)
class RenewedLine:
    """What a line holds from step to step in blocks that it replaces.

    Attributes:
        frame: the line.
        rows: its allocations that are alive when judged.
        held_bytes: by step, what of it was alive at the step's end, from the first that left some.
        settled_bytes: of what is alive when judged, what nothing replaced for two steps or more.
    """

    frame: int
    rows: NDArray[np.int64]
    held_bytes: NDArray[np.int64]
    settled_bytes: int

    @property
    def bytes(self) -> int:
        """What it holds when judged."""
        return int(self.held_bytes[-1])

    @property
    def accumulates(self) -> bool:
        """Whether much of it stays untouched, beside what steps renew: a text that grows is replaced
        as a whole.
        """
        return self.settled_bytes >= _SETTLED * self.bytes

    @property
    def rhythm(self) -> Rhythm | None:
        """In which steps it grew; None where it does not grow on and on."""
        if len(self.held_bytes) < _FEWEST_STEPS:
            return None
        changes = np.diff(self.held_bytes)
        added, fallen = int(changes[changes > 0].sum()), -int(changes[changes < 0].sum())
        if (changes > 0).mean() < _RISING or fallen > _FALLEN * added:
            return None
        rhythm = rhythm_of(np.maximum(changes, 0), 0)
        return rhythm if isinstance(rhythm, Rhythm) and rhythm.steady else None


def rebuilt_larger(view: Attribution, event: int | None = None) -> list[RecordedLeak]:
    """What lines hold more of at the end of each step, in blocks that they replace.

    Args:
        event: judge right after this event; by default when the last step begins.
    """
    if len(view.steps) <= _FEWEST_STEPS:
        return []
    moment, last = moment_of(view, event)
    failed = any(request.event == event for request in view.device.out_of_memory)
    leaks = (_leak_of(view, line, failed=failed) for line in _renewed_lines(view, moment, last))
    return [leak for leak in leaks if leak is not None]


def _renewed_lines(view: Attribution, moment: int, last: int) -> Iterator[RenewedLine]:
    """The lines that hold enough when judged, and replace some of it from step to step."""
    allocations, frames = view.device.allocations, view.phases.frame
    ends = np.minimum(view.steps.of(allocations.free_requested), last)
    ends[allocations.free_requested > moment] = last
    outlived = (view.step >= 0) & (view.step < last) & (ends > view.step)
    outlived &= (allocations.stack != NO_STACK) & (frames >= 0)
    rows = np.flatnonzero(outlived & ~np.isin(view.categories.category, _BUILT_ONCE))
    sizes = allocations.requested_bytes
    alive = rows[ends[rows] == last]
    alive_bytes = np.bincount(frames[alive], weights=sizes[alive])
    least_bytes = max(_LEAST_BYTES, _LEAST_SHARE * view.device.requested.peak_bytes)
    large = np.flatnonzero(alive_bytes >= least_bytes)
    for frame in large[np.argsort(-alive_bytes[large], kind="stable")][:_MOST_LINES].tolist():
        of_line = rows[frames[rows] == frame]
        of_line_alive = of_line[ends[of_line] == last]
        born, gone = view.step[of_line], ends[of_line]
        if not _are_replaced_by_larger(view, of_line, gone, last):
            continue
        changes = np.bincount(born, weights=sizes[of_line], minlength=last + 1)
        changes -= np.bincount(gone, weights=sizes[of_line], minlength=last + 1)
        settled = of_line_alive[view.step[of_line_alive] < last - _SETTLED_STEPS]
        yield RenewedLine(
            frame=frame,
            rows=of_line_alive,
            held_bytes=np.cumsum(changes)[int(born.min()) : last].astype(np.int64),
            settled_bytes=int(sizes[settled].sum()),
        )


def _are_replaced_by_larger(
    view: Attribution, rows: NDArray[np.int64], gone: NDArray[np.int64], last: int
) -> bool:
    """Whether what steps gave back made room for something larger of the same stack: the blocks of
    a ring are all alike.

    Args:
        rows: allocations that outlived the step they were born in.
        gone: the step that each was given back in.
        last: the step that judges.
    """
    is_replaced = gone < last
    if not is_replaced.any():
        return False
    sizes = view.device.allocations.requested_bytes[rows]
    stack = view.device.allocations.stack[rows].astype(np.int64) * last
    keys, key_of_row = np.unique(stack + view.step[rows], return_inverse=True)
    largest = np.zeros(len(keys), np.int64)
    np.maximum.at(largest, key_of_row.reshape(-1), sizes)
    keys_when_gone = stack[is_replaced] + gone[is_replaced]
    place = np.minimum(np.searchsorted(keys, keys_when_gone), len(keys) - 1)
    is_larger = (keys[place] == keys_when_gone) & (largest[place] > sizes[is_replaced])
    return bool(is_larger.mean() >= _RISING)


def _leak_of(view: Attribution, line: RenewedLine, *, failed: bool) -> RecordedLeak | None:
    """The growth of a line, as certain as it is; None where it does not grow on and on."""
    rhythm = line.rhythm
    if rhythm is None:
        return None
    verdict, reason = _certainty(view, line, rhythm, failed=failed)
    rate = rate_of(np.maximum(np.diff(line.held_bytes), 0))
    fix, fix_share = _fix_and_share(view, line)
    stacks = np.unique(view.device.allocations.stack[line.rows])
    return RecordedLeak(
        verdict=verdict,
        kind=None,
        place=view.place(line.frame),
        bytes_per_step=round(rate.bytes),
        bytes=line.bytes,
        steps=len(line.held_bytes),
        fix=fix,
        fix_share=fix_share,
        low=round(rate.low),
        high=round(rate.high),
        taken_per_step=round(rate.bytes),
        allocations_per_step=len(line.rows) / len(line.held_bytes),
        storages=len(line.rows),
        stacks=len(stacks),
        device=view.device.device,
        reason=reason,
        evidence=tuple(_sentences(line)),
        rows=line.rows,
    )


def _certainty(
    view: Attribution, line: RenewedLine, rhythm: Rhythm, *, failed: bool
) -> tuple[Verdict, str]:
    """How certain a leak it is, and why it is no more."""
    if not line.accumulates:
        return (
            Verdict.POSSIBLE,
            "it may be intended to grow, as a KV cache does until the text ends",
        )
    filled = failed and fills_memory(view, line.bytes)
    by_steps, _ = verdict_of_steps(rhythm, SIGN if filled else RESULT)
    # What older texts left is not waiting for the end of one text: no doubt about tokens.
    by_pattern, doubt = most_by_pattern(view, None, graph=filled, filled=filled)
    verdicts = (by_steps or Verdict.POSSIBLE, by_pattern)
    verdict = least_sure(verdicts)
    usual = "a store that is limited and not full yet looks the same"
    return verdict, doubt if verdict == by_pattern != Verdict.PROVEN else usual


def _sentences(line: RenewedLine) -> Iterator[str]:
    """What it rests on."""
    first, last = format_size(int(line.held_bytes[0])), format_size(line.bytes)
    steps = counted(len(line.held_bytes), "step")
    yield (
        "this line replaces its blocks by larger ones, and holds more at the end of each of"
        f" {steps}: from {first} to {last}"
    )
    if line.accumulates:
        settled = format_size(line.settled_bytes)
        yield f"{settled} of that was not replaced in the last {_SETTLED_STEPS} steps"


def _fix_and_share(view: Attribution, line: RenewedLine) -> tuple[str, float]:
    """What to do, and how much that frees: a cache that attention reads in each step cannot go to
    the CPU, and its growth is what it is for.
    """
    stacks = view.trace.stacks
    largest = line.rows[view.device.allocations.requested_bytes[line.rows].argmax()]
    frames = stacks.of(int(view.device.allocations.stack[largest]))
    names = [f"{frame.file}:{frame.function}" for frame in frames]
    if not any(_GENERATES.search(name) for name in names):
        return (
            "collect the parts in a list on the CPU (`parts.append(part.cpu())`) and join them "
            "once, or limit its length and allocate it once"
        ), 1.0
    if line.accumulates:
        return (
            "drop the key-value caches of texts that have ended, limit how many are kept (the one "
            "that was used least recently goes first), or move those that wait to the CPU"
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
