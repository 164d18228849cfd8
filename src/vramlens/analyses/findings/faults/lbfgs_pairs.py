"""The history of torch.optim.LBFGS: pairs of vectors as large as all its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_STEP = re.compile(r"torch[/\\]optim[/\\]lbfgs\.py:step$")
"""Where the vectors are made: y = flat_grad.sub(prev_flat_grad), s = d.mul(t); each line of it makes one
part of every pair.
"""
_LEAST_SHARE = 0.25
"""Of what is in use, as of the optimizer state of others."""
_FEWEST_PAIRS, _MOST_PAIRS = 3, 20
"""Between 3 and 20 pairs are enough as a rule (Nocedal and Wright, Numerical Optimization, 7.2)."""
_ROOM_USED = 0.5
"""Of the room for pairs: the rest is for holes between blocks, and for steps that need more."""
_PAIRS_IN_PASSING = 1
"""The newest pair is made before the oldest is dropped."""


@after_failure
def lbfgs_history(scene: Scene) -> Iterator[Finding]:
    """The pairs of vectors that torch.optim.LBFGS keeps when memory runs out, if they are much of what
    is in use, and enough of fewer fit.
    """
    history, heap = _history_of(scene), scene.advice_heap
    if history is None or history.size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return
    now_bytes = heap.requested_bytes - history.size_bytes + scene.ending_request.size_bytes
    other_bytes = max(_most_beside(scene, history), now_bytes)
    fitting = (heap.requested_bytes - other_bytes) // history.pair_bytes - _PAIRS_IN_PASSING
    advised = min(max(int(fitting * _ROOM_USED), _FEWEST_PAIRS), _MOST_PAIRS)
    if fitting < _FEWEST_PAIRS or advised >= history.pairs:
        return
    saved_bytes = (history.pairs - advised) * history.pair_bytes
    yield Finding(
        id="lbfgs_history",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(history.size_bytes)} are {history.pairs} pairs of vectors that"
        " torch.optim.LBFGS keeps of its iterations",
        bytes=saved_bytes,
        place=scene.view.place_of_block(int(history.rows[-1])),
        evidence=(
            f"a pair is twice as large as its parameters ({format_size(history.pair_bytes)})",
            "none was dropped so far: each iteration adds one, up to history_size (100 by default)"
            if history.grows
            else "it keeps history_size pairs (100 by default)",
        ),
        fix=f"pass history_size={advised} to LBFGS ({format_size(saved_bytes)} less): {fitting}"
        f" pairs fit beside the {format_size(other_bytes)} that the rest took at most, and"
        f" {advised} leave room for what else grows; with fewer pairs it may take more iterations",
        extent=scene.extent(history.rows),
    )


@dataclass(frozen=True, eq=False)
class _History:
    """The pairs that an optimizer keeps.

    Attributes:
        rows: the allocations of the pairs that are alive.
        ever: those of all pairs.
        pairs, pair_bytes: how many are alive, and what each takes.
        grows: whether none was dropped.
    """

    rows: NDArray[np.int64]
    ever: NDArray[np.int64]
    pairs: int
    pair_bytes: int
    grows: bool

    @property
    def size_bytes(self) -> int:
        """What the pairs take that are alive."""
        return self.pairs * self.pair_bytes


def _history_of(scene: Scene) -> _History | None:
    """The history that takes most; None where no two lines of LBFGS keep vectors."""
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    in_step = stacks.mark_frames(_STEP)
    with_stack = np.flatnonzero(allocations.stack != NO_STACK)
    stack = allocations.stack[with_stack]
    filled = stacks.starts[stack] < stacks.starts[stack.astype(np.int64) + 1]
    rows = with_stack[filled]
    line = stacks.frames[stacks.starts[stack[filled]]].astype(np.int64)
    rows, line = rows[in_step[line]], line[in_step[line]]
    is_alive = np.isin(rows, scene.advice_rows)
    if not is_alive.any():
        return None
    sizes = allocations.requested_bytes[rows]
    alive_sizes, total = np.unique(sizes[is_alive], return_inverse=True)
    vector_bytes = int(alive_sizes[np.argmax(np.bincount(total) * alive_sizes)])
    is_vector = sizes == vector_bytes
    counts = np.bincount(line[is_vector & is_alive])
    first, second = np.argsort(counts)[::-1][:2].tolist() if len(counts) > 1 else (0, 0)
    if first == second:
        return None
    is_of_pairs = is_vector & np.isin(line, (first, second))
    return _History(
        rows=rows[is_of_pairs & is_alive],
        ever=rows[is_of_pairs],
        pairs=int(counts[second]),
        pair_bytes=2 * vector_bytes,
        grows=bool(is_alive[is_of_pairs].all()),
    )


def _most_beside(scene: Scene, history: _History) -> int:
    """The most that was in use beside the pairs since the first of them."""
    allocations, curve = scene.device.allocations, scene.device.requested_curve
    change = np.zeros(len(curve) + 1, np.int64)
    sizes = allocations.requested_bytes[history.ever]
    np.add.at(change, allocations.born[history.ever], sizes)
    np.add.at(change, np.minimum(allocations.died[history.ever], len(curve)), -sizes)
    beside = curve - np.cumsum(change)[:-1]
    return int(beside[int(allocations.born[history.ever].min()) :].max())
