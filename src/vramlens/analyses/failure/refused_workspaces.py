"""Failed requests that end no program: workspaces that cuDNN was refused, and does without.

A convolution asks for the workspace of its fastest algorithm first, and for that of another where
it is refused (ATen/native/cudnn/Conv_v8.cpp: try_plans, which catches OutOfMemoryError).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from vramlens.trace import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.trace import DeviceTrace, Stacks

_CONVOLUTION = re.compile(r"(?:^|[^a-z])conv(?:\d|_|olution|\.py)[^/\\]*$")
"""The innermost frame's file, without its folders, or function; ``Module.to`` has a ``convert``."""


def convolving_stacks(stacks: Stacks) -> NDArray[np.bool_]:
    """By stack, whether its innermost frame is of a convolution."""
    marked = stacks.mark_frames(_CONVOLUTION)
    filled = np.diff(stacks.starts) > 0
    convolves = np.zeros(len(stacks), np.bool_)
    convolves[filled] = marked[stacks.frames[stacks.starts[:-1][filled]]]
    return convolves


def refused_workspaces(stacks: Stacks, device: DeviceTrace) -> int:
    """How many failed requests, the last not among them, were for workspaces: the call that asked, a
    convolution, asked again right before or after. A backward pass of it has no frames.
    """
    failed = device.out_of_memory
    if len(failed) < 2:
        return 0
    convolves = convolving_stacks(stacks)
    if not convolves.any():
        return 0
    may_be = np.append(convolves | (np.diff(stacks.starts) == 0), True)  # the last: without a stack
    events = device.events
    requests = np.flatnonzero(np.isin(events.action, (Action.ALLOC, Action.OOM)))
    stack = np.minimum(events.stack[requests].astype(np.int64), len(stacks))  # or NO_STACK
    # A workspace that was served is followed by others of the call: no sign of a refused one.
    is_failure = events.action[requests] == Action.OOM
    asks_again = stack[:-1] == stack[1:]
    again = np.append(asks_again, False) | np.append(False, asks_again & is_failure[:-1])
    is_refused = is_failure & again & may_be[stack]
    return int((is_refused & (requests < failed[-1].event)).sum())
