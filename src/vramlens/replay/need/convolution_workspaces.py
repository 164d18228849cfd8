"""Workspaces: what a program goes on without where memory runs out, because cuDNN tries another
algorithm.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from vramlens.trace import NO_STACK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.analyses.attribution.attribution import Attribution

_CONVOLUTION = re.compile(r"(?:^|[^a-z])conv(?:\d|_|olution|\.py)[^/\\]*$")
"""The innermost frame's file, without its folders, or function; ``Module.to`` has a ``convert``."""


def dispensable_rows(view: Attribution, freed_at_once: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """By allocation, whether it is a convolution's workspace, as far as its stack tells.

    What is freed at once may as well be a tensor, which a program dies without. The innermost frame
    says which; the backward pass has none, so there all count that are freed at once, if the
    program convolves at all.
    """
    stacks, allocations = view.trace.stacks, view.device.allocations
    marked = stacks.mark_frames(_CONVOLUTION)
    filled = np.diff(stacks.starts) > 0
    convolves = np.zeros(len(stacks), np.bool_)
    convolves[filled] = marked[stacks.frames[stacks.starts[:-1][filled]]]
    if not convolves.any():
        return np.zeros_like(freed_at_once)
    has_stack = allocations.stack != NO_STACK
    by_row = np.ones(len(allocations), np.bool_)
    by_row[has_stack] = (
        convolves[allocations.stack[has_stack]] | ~filled[allocations.stack[has_stack]]
    )
    return np.asarray(freed_at_once * by_row[: len(freed_at_once)], np.uint8)
