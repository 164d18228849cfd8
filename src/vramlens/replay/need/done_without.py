"""What a step that failed does without when it is continued without its limit: the releases that a
refused request made, and the workspaces in whose place cuDNN tries another algorithm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vramlens.analyses.failure.refused_workspaces import convolving_stacks
from vramlens.replay.requests import INSIDE_A_REQUEST
from vramlens.trace import NO_STACK, Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.trace import DeviceTrace

_RELEASES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_GROWTH = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)


def retry_releases(device: DeviceTrace, limit_bytes: int | None) -> NDArray[np.int64]:
    """The events by which the allocator gave its free segments back for a retry.

    Either the request failed anyway, or what it then took would not have fitted beside what
    was reserved before (CUDACachingAllocator.cpp: malloc, release_cached_blocks). What a program's
    own ``empty_cache`` gave back before a request that did fit is none of them.

    Args:
        limit_bytes: what may be reserved; None where that is not known.
    """
    action = device.events.action
    releases = np.flatnonzero(np.isin(action, _RELEASES))
    outer = np.append(np.flatnonzero(~np.isin(action, INSIDE_A_REQUEST)), len(action))
    number = np.searchsorted(outer, releases)  # of the event that ends what the release is part of
    end = outer[number]
    action_at_end = np.append(action, Action.SNAPSHOT)[end]
    is_retry = action_at_end == Action.OOM
    if limit_bytes is not None:
        before = np.append(device.reserved.base_bytes, device.reserved_curve[outer[:-1]])[number]
        growth = np.where(np.isin(action, _GROWTH), device.events.size.astype(np.int64), 0)
        until = np.append(0, np.cumsum(growth))
        grown_bytes = until[end] - until[releases]
        is_retry |= (action_at_end == Action.ALLOC) & (before + grown_bytes > limit_bytes)
    retries: NDArray[np.int64] = releases[is_retry]
    return retries


def dispensable_rows(view: Attribution, freed_at_once: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """By allocation, whether it is a convolution's workspace, as far as its stack tells.

    What is freed at once may as well be a tensor, which a program dies without. The innermost frame
    says which; the backward pass has none, so there all count that are freed at once, if the
    program convolves at all.
    """
    stacks, allocations = view.trace.stacks, view.device.allocations
    filled = np.diff(stacks.starts) > 0
    convolves = convolving_stacks(stacks)
    if not convolves.any():
        return np.zeros_like(freed_at_once)
    has_stack = allocations.stack != NO_STACK
    by_row = np.ones(len(allocations), np.bool_)
    by_row[has_stack] = (
        convolves[allocations.stack[has_stack]] | ~filled[allocations.stack[has_stack]]
    )
    return np.asarray(freed_at_once * by_row[: len(freed_at_once)], np.uint8)
