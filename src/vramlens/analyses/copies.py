"""Two copies of the weights: what loading or resuming puts beside the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution import Attribution
from vramlens.analyses.categories import Category, loading_rows
from vramlens.analyses.finding import Finding
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
    moment = _when_most(view, rows)
    alive = allocations.alive_after(moment)
    loaded = alive[loading[alive]]
    owned = alive[~loading[alive] & (view.categories.category[alive] == Category.PARAMETERS)]
    twice = _matched(allocations.requested_bytes[loaded], allocations.requested_bytes[owned])
    if twice < _LEAST_BYTES or twice < _LEAST_SHARE * int(allocations.requested_bytes[owned].sum()):
        return []
    peak = view.device.requested
    at_peak = int(view.device.requested_curve[moment]) >= peak.peak_bytes
    evidence = [
        f"at event {moment:,}, {len(loaded):,} loaded tensors had twins of the same size that were alive already"
    ]
    if not at_peak:
        evidence.append("this is not the run's peak: it matters where loading itself runs out of memory")
    frames = view.phases.frame[loaded]
    return [
        Finding(
            id="two_copies",
            verdict="likely",
            title=f"Loading put a second copy on the GPU: {format_size(twice)} beside what was there",
            bytes=twice,
            place=view.place(int(frames[frames >= 0][0])) if (frames >= 0).any() else None,
            evidence=tuple(evidence),
            fix=f"torch.load(..., map_location='cpu', mmap=True), or load_state_dict(..., assign=True) "
            f"({format_size(twice)} less while loading)",
        )
    ]


def _when_most(view: Attribution, rows: NDArray[np.int64]) -> int:
    """The event at which most bytes of some allocations are alive."""
    allocations = view.device.allocations
    when = np.concatenate((allocations.born[rows], allocations.died[rows]))
    sizes = allocations.requested_bytes[rows]
    order = np.argsort(when, kind="stable")
    return int(when[order[np.cumsum(np.concatenate((sizes, -sizes))[order]).argmax()]])


def _matched(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Bytes of the sizes that two collections have in common, each as often as both have it."""
    sizes, counts = np.unique(a, return_counts=True)
    others, other_counts = np.unique(b, return_counts=True)
    common, left, right = np.intersect1d(sizes, others, return_indices=True)
    return int((common * np.minimum(counts[left], other_counts[right])).sum())
