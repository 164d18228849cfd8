"""The memory of all that a line of the program calls, itself included: who called the lines that
hold it, and for whom segments were reserved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.finding import Place
from vramlens.ranks.rank_summary import FrameUse
from vramlens.trace import NO_STACK

_MOST_FRAMES = 400


def frame_uses(view: Attribution) -> tuple[FrameUse, ...]:
    """The use of each frame of the user's code, the one with most bytes first."""
    callers = _callers(view)
    if not len(callers.stack):
        return ()
    device = view.device
    allocations, segments = device.allocations, device.segments
    at_peak = allocations.alive_after(device.requested.peak_event)
    reserved = segments.alive_after(device.reserved.peak_event)
    reserved = reserved[segments.born[reserved] >= 0]
    asked_by = device.events.stack[segments.born[reserved]]
    total_bytes = callers.bytes_of(allocations.stack, allocations.requested_bytes)
    at_peak_bytes = callers.bytes_of(
        allocations.stack[at_peak], allocations.requested_bytes[at_peak]
    )
    reserved_bytes = callers.bytes_of(asked_by, segments.size_bytes[reserved])
    largest = np.argsort(-total_bytes, kind="stable")[:_MOST_FRAMES]
    return tuple(
        FrameUse(
            place=callers.places[i],
            depth=int(callers.depths[i]),
            total_bytes=int(total_bytes[i]),
            at_peak_bytes=int(at_peak_bytes[i]),
            reserved_bytes=int(reserved_bytes[i]),
        )
        for i in largest.tolist()
    )


@dataclass(frozen=True, eq=False)
class _Callers:
    """The frames of the user's code in all stacks: one row a stack and place in it.

    Attributes:
        stack: by row, which.
        number: by row, the place's.
        places: by number.
        depths: by number, how many such frames are outside of it, where it is deepest.
        stacks: how many stacks there are.
    """

    stack: NDArray[np.int64]
    number: NDArray[np.int64]
    places: list[Place]
    depths: NDArray[np.int64]
    stacks: int

    def bytes_of(self, stack: NDArray[np.uint32], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum of some sizes, by the places in the stack of each."""
        has_stack = stack != NO_STACK
        by_stack = np.bincount(stack[has_stack], weights=sizes[has_stack], minlength=self.stacks)
        sums = np.bincount(self.number, by_stack[self.stack], minlength=len(self.places))
        return sums.astype(np.int64)


def _callers(view: Attribution) -> _Callers:
    stacks = view.trace.stacks
    rows = np.flatnonzero(stacks.user_frames[stacks.frames])
    stack = np.searchsorted(stacks.starts, rows, side="right") - 1
    frames, frame_of_row = np.unique(stacks.frames[rows], return_inverse=True)
    # Frames are interned by more than what a person sees: one number a place.
    of_frames = [view.place(frame) for frame in frames.tolist()]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(of_frames))}
    number_of_frame = np.array([numbers[place] for place in of_frames], np.int64)
    number = number_of_frame[frame_of_row.reshape(-1)]
    depths = np.zeros(len(numbers), np.int64)
    np.maximum.at(depths, number, _depths(stack))
    pairs = np.unique(stack * max(1, len(numbers)) + number)  # one that calls itself counts once
    return _Callers(
        stack=pairs // max(1, len(numbers)),
        number=pairs % max(1, len(numbers)),
        places=[place for place in numbers if place is not None],
        depths=depths,
        stacks=len(stacks),
    )


def _depths(stack: NDArray[np.int64]) -> NDArray[np.int64]:
    """By row, how many rows of the same stack come after it: frames outside of it."""
    ends = np.searchsorted(stack, stack, side="right")
    return np.asarray(ends - 1 - np.arange(len(stack)))
