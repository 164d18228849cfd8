"""Two copies of the weights: what loading or resuming puts beside the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category, deep_copy_rows, loading_rows
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import MIB, format_size

_LEAST_SHARE = 0.5
_LEAST_BYTES = 1 * MIB


def loaded_copies(scene: Scene) -> Iterator[Finding]:
    """Loaded tensors that were alive together with the parameters that they were copied into."""
    view = scene.view
    allocations = view.device.allocations
    stacks, stack = view.trace.stacks, allocations.stack
    is_loaded = loading_rows(stacks, stack) & ~deep_copy_rows(stacks, stack)
    loaded_rows = np.flatnonzero(is_loaded)
    if scene.bytes_of(loaded_rows) < _LEAST_BYTES:
        return
    fullest_event, _ = allocations.fullest(loaded_rows)
    is_alive, copied = _twins(view, is_loaded, fullest_event)
    parameter_bytes = int(allocations.requested_bytes[is_alive & ~is_loaded].sum())
    if copied < max(_LEAST_BYTES, _LEAST_SHARE * parameter_bytes):
        return
    peak_event = view.device.requested.peak_event
    _, copied_at_peak = _twins(view, is_loaded, peak_event)
    copies = np.flatnonzero(is_alive & is_loaded)
    sighting = (
        f"at event {fullest_event:,}, {len(copies):,} loaded tensors were in use together with "
        "parameters of the same sizes"
    )
    if not copied_at_peak:
        yield Finding(
            id="two_copies",
            verdict=Verdict.NOT_A_PROBLEM,
            title=f"Loading put a second copy on the GPU ({format_size(copied)}), which was "
            "freed before the peak",
            bytes=copied,
            place=_first_place(view, copies),
            evidence=(sighting, "this matters only if loading itself runs out of memory"),
            extent=Extent(fullest_event, _copied_rows(view, is_loaded, fullest_event)),
        )
        return
    size = format_size(copied_at_peak)
    yield Finding(
        id="two_copies",
        verdict=Verdict.LIKELY,
        title=f"Loading put a second copy on the GPU: {size} in addition to the first",
        bytes=copied_at_peak,
        place=_first_place(view, copies),
        evidence=(sighting, f"{size} of them were still there at the peak"),
        fix="torch.load(..., map_location='cpu', mmap=True), or load_state_dict(..., assign=True) "
        f"(peak {size} lower)",
        extent=Extent(peak_event, _copied_rows(view, is_loaded, peak_event)),
    )


def _first_place(view: Attribution, rows: NDArray[np.int64]) -> Place | None:
    frames = view.phases.frame[rows]
    with_line = frames[frames >= 0]
    return view.place(int(with_line[0])) if len(with_line) else None


def _twins(
    view: Attribution, is_loaded: NDArray[np.bool_], event: int
) -> tuple[NDArray[np.bool_], int]:
    """Loaded tensors and parameters alive right after an event, and the bytes that are among
    both.
    """
    allocations = view.device.allocations
    candidates = is_loaded | (view.categories.category == Category.PARAMETERS)
    is_alive = candidates & (allocations.born <= event) & (allocations.died > event)
    sizes = allocations.requested_bytes
    return is_alive, _common_bytes(sizes[is_alive & is_loaded], sizes[is_alive & ~is_loaded])


def _copied_rows(view: Attribution, is_loaded: NDArray[np.bool_], event: int) -> NDArray[np.int64]:
    """The loaded tensors alive right after an event that have a parameter of their size beside
    them.
    """
    is_alive, _ = _twins(view, is_loaded, event)
    sizes = view.device.allocations.requested_bytes
    parameters_of_size = Counter(sizes[is_alive & ~is_loaded].tolist())
    rows = []
    for row in np.flatnonzero(is_alive & is_loaded).tolist():
        size = int(sizes[row])
        if parameters_of_size[size]:
            parameters_of_size[size] -= 1
            rows.append(row)
    return np.array(rows, np.int64)


def _common_bytes(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Bytes of the sizes that two collections have in common, each as often as both have it."""
    left_sizes, left_counts = np.unique(left, return_counts=True)
    right_sizes, right_counts = np.unique(right, return_counts=True)
    common, in_left, in_right = np.intersect1d(left_sizes, right_sizes, return_indices=True)
    return int((common * np.minimum(left_counts[in_left], right_counts[in_right])).sum())
