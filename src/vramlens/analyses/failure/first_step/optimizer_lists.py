"""What an optimizer's call still asks for at least, where it works on all parameters at once.

PyTorch's foreach optimizers make a list of one tensor a parameter and keep it until the call is
done (torch/optim/adam.py: _multi_tensor_adam; _foreach_sqrt). The lists before it, state that was
made for the same parameters included, tell how long the one under way will be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import Phase
from vramlens.ground.allocator_sizes import MIN_BLOCK
from vramlens.trace import OutOfMemory

_FEWEST_MADE = 2
"""One tensor may be a temporary of one parameter, which goes before that of the next."""


def rest_of_list(view: Attribution, request: OutOfMemory) -> int:
    """The bytes of the optimizer's list under way that were still to come, the failed request
    included; 0 where it makes none.
    """
    in_call = _made_in_call(view, request)
    stacks = view.device.allocations.stack[in_call]
    sizes = view.device.allocations.requested_bytes[in_call]
    begins, list_so_far = _list_so_far(view, request, in_call)
    if len(list_so_far) < _FEWEST_MADE:
        return 0
    requested_sizes = np.append(sizes[list_so_far], request.size_bytes)
    earlier = np.arange(begins, list_so_far[0])
    lists = (sizes[earlier[stacks[earlier] == stack]] for stack in np.unique(stacks[earlier]))
    rests = [
        int(full[len(list_so_far) :].sum()) for full in lists if _begins_with(full, requested_sizes)
    ]
    return min(rests, default=0)


def size_of_list(view: Attribution, request: OutOfMemory) -> int:
    """The bytes of the optimizer's list under way that were there when a request for it failed."""
    in_call = _made_in_call(view, request)
    _, list_so_far = _list_so_far(view, request, in_call)
    return int(view.device.allocations.requested_bytes[in_call[list_so_far]].sum())


def _made_in_call(view: Attribution, request: OutOfMemory) -> NDArray[np.int64]:
    """What the optimizer has made since the last backward pass. What its constructor made is of all
    its groups, a call of one group after another.
    """
    allocations, ends = view.device.allocations, view.phases.span_end
    ends = ends[ends <= request.event]
    if not len(ends):
        return np.zeros(0, np.int64)
    is_in_call = (allocations.born >= ends[-1]) & (allocations.born < request.event)
    return np.flatnonzero(is_in_call & (view.phases.phase == Phase.OPTIMIZER))


def _list_so_far(
    view: Attribution, request: OutOfMemory, in_call: NDArray[np.int64]
) -> tuple[int, NDArray[np.int64]]:
    """Where the lists of a group begin among what a call made, and those of the list under way."""
    allocations = view.device.allocations
    of_same_stack = np.flatnonzero(allocations.stack[in_call] == request.stack)
    is_gone = allocations.died[in_call[of_same_stack]] < request.event
    begins = int(of_same_stack[is_gone][-1]) + 1 if is_gone.any() else 0
    return begins, of_same_stack[~is_gone & (of_same_stack >= begins)]


def _begins_with(full: NDArray[np.int64], part: NDArray[np.int64]) -> bool:
    """Whether a list of sizes begins with another, as the allocator rounds them."""
    if len(full) < len(part):
        return False
    both = (-(-sizes // MIN_BLOCK) for sizes in (full[: len(part)], part))
    return bool(np.equal(*both).all())
