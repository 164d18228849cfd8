"""Since when the call of a line has run that the failed request was made in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.scene import Scene
from vramlens.trace import NO_STACK, Frame


def begin_of_call(scene: Scene, frame: Frame) -> int:
    """The event since which all requests were made in a line's call; -1 where that is the recording's
    first.

    Args:
        frame: of the failed request's stack.
    """
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    is_before = (allocations.born < scene.advice_event) & (allocations.stack != NO_STACK)
    is_outside = is_before & ~stacks.through(flags_of_frame(scene, frame), allocations.stack)
    return int(allocations.born[is_outside].max(initial=-1))


def flags_of_frame(scene: Scene, frame: Frame) -> NDArray[np.bool_]:
    """One flag a frame id: whether it is that frame of the failed request."""
    stacks, stack = scene.trace.stacks, scene.ending_request.stack
    ids = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
    flags = np.zeros(len(stacks.user_frames), np.bool_)
    flags[[number for number in ids.tolist() if stacks.frame(number) == frame]] = True
    return flags
