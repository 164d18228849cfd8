"""The bytes by line of code: below a line of the user's that calls a library, the library's own
line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Place

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution


@dataclass(frozen=True, slots=True)
class CodeBytes:
    """Bytes that one line of code asked for.

    Attributes:
        place: the innermost line outside of PyTorch's own plumbing; the user's or a library's.
        caller: the user's line that it was asked for under; None where there is none.
        bytes: requested bytes alive.
        allocations: how many.
    """

    place: Place
    caller: Place | None
    bytes: int
    allocations: int


def code_lines(
    view: Attribution, rows: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[CodeBytes, ...]:
    """The bytes of some allocations by line of code, largest first; what the backward pass asked
    for, by the user's.
    """
    stacks = view.trace.stacks
    stack, caller = view.device.allocations.stack[rows], view.phases.frame[rows]
    frame = np.append(stacks.code_frame, -1)[np.minimum(stack, len(stacks))]
    frame = np.where((frame < 0) | view.phases.inferred[rows], caller, frame)
    with_frame = np.flatnonzero(frame >= 0)
    pairs, pair_of_row = np.unique(
        np.stack((frame[with_frame], caller[with_frame])), axis=1, return_inverse=True
    )
    totals = np.bincount(
        pair_of_row.reshape(-1), weights=sizes[with_frame], minlength=pairs.shape[1]
    ).astype(np.int64)
    counts = np.bincount(pair_of_row.reshape(-1), minlength=pairs.shape[1])
    joined: dict[tuple[Place, Place | None], tuple[int, int]] = {}
    for (code, user), total, count in zip(
        pairs.T.tolist(), totals.tolist(), counts.tolist(), strict=True
    ):
        place = view.place(code)
        assert place is not None
        key = (place, view.place(user))
        before = joined.get(key, (0, 0))
        joined[key] = before[0] + total, before[1] + count
    rows_of_code = [
        CodeBytes(place, user, total, count) for (place, user), (total, count) in joined.items()
    ]
    return tuple(sorted(rows_of_code, key=lambda row: (-row.bytes, str(row.place))))
