"""Two copies of the weights: what loading or resuming puts beside the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category, loading_rows
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.units import MIB, format_size

_LEAST_SHARE = 0.5
_LEAST_BYTES = 1 * MIB


def loaded_copies(view: Attribution) -> list[Finding]:
    """Loaded tensors that were alive together with the parameters that they were copied into."""
    allocations = view.device.allocations
    loading = loading_rows(view.trace.stacks, allocations.stack)
    rows = np.flatnonzero(loading)
    if int(allocations.requested_bytes[rows].sum()) < _LEAST_BYTES:
        return []
    moment, _ = allocations.fullest(rows)
    alive, twice = _twins(view, loading, moment)
    if twice < _LEAST_BYTES or twice < _LEAST_SHARE * int(
        allocations.requested_bytes[alive & ~loading].sum()
    ):
        return []
    kept = _twins(view, loading, view.device.requested.peak_event)[1]
    loaded = np.flatnonzero(alive & loading)
    seen = f"at event {moment:,}, {len(loaded):,} loaded tensors were alive beside parameters of the same sizes"
    frames = view.phases.frame[loaded]
    place = view.place(int(frames[frames >= 0][0])) if (frames >= 0).any() else None
    if not kept:
        return [
            Finding(
                id="two_copies",
                verdict=Verdict.NOT_A_PROBLEM,
                title=f"Loading put a second copy on the GPU, {format_size(twice)}; it was gone before the peak",
                bytes=twice,
                place=place,
                evidence=(seen, "it matters only where loading itself runs out of memory"),
            )
        ]
    return [
        Finding(
            id="two_copies",
            verdict=Verdict.LIKELY,
            title=f"Loading put a second copy on the GPU: {format_size(kept)} beside what was there",
            bytes=kept,
            place=place,
            evidence=(seen, f"{format_size(kept)} of them were still there at the peak"),
            fix="torch.load(..., map_location='cpu', mmap=True), or load_state_dict(..., assign=True) "
            f"(peak {format_size(kept)} lower)",
        )
    ]


def _twins(
    view: Attribution, loading: NDArray[np.bool_], event: int
) -> tuple[NDArray[np.bool_], int]:
    """Loaded tensors and parameters alive right after an event, and the bytes that are among
    both.
    """
    allocations = view.device.allocations
    chosen = loading | (view.categories.category == Category.PARAMETERS)
    alive = chosen & (allocations.born <= event) & (allocations.died > event)
    sizes = allocations.requested_bytes
    return alive, _matched(sizes[alive & loading], sizes[alive & ~loading])


def _matched(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Bytes of the sizes that two collections have in common, each as often as both have it."""
    sizes, counts = np.unique(a, return_counts=True)
    others, other_counts = np.unique(b, return_counts=True)
    common, left, right = np.intersect1d(sizes, others, return_indices=True)
    return int((common * np.minimum(counts[left], other_counts[right])).sum())
