"""The heap at one moment: who holds the requested bytes, by line, category, phase, module,
region and stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category, Certainty
from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.names import few_names
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame, Stacks


@dataclass(frozen=True, slots=True)
class LineBytes:
    """Bytes that one line of the user's asked for.

    Attributes:
        place: the line.
        bytes: requested bytes alive.
        allocations: how many.
        inferred_bytes: the part of ``bytes`` that the backward pass asked for on behalf of this
            line (likely).
        category: the category that most of them have.
        names: of the tensors that nearly all of the bytes are, largest first, where those are few
            and named.
    """

    place: Place
    bytes: int
    allocations: int
    inferred_bytes: int
    category: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CategoryBytes:
    """Bytes of one category, and the least certain verdict that a tenth of them or more rests
    on.
    """

    bytes: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StackBytes:
    """Bytes that one stack asked for.

    Attributes:
        stack: its id, NO_STACK for what was asked for without one.
        bytes: requested bytes alive.
        allocations: how many.
        stacks: where the frames of the id are.
    """

    stack: int
    bytes: int
    allocations: int
    stacks: Stacks = field(repr=False, compare=False)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames, innermost first; none without a stack."""
        return tuple(self.stacks.of(self.stack))


@dataclass(frozen=True, slots=True)
class Heap:
    """Requested bytes alive right after one event.

    Each of by_line + unattributed_bytes, by_category, by_phase, and by_module + what is outside
    modules sums to requested_bytes.

    Attributes:
        device, event, step: when; event -1 is before the recording, step None where steps are
            unknown.
        requested_bytes: all of them.
        by_line: largest first.
        by_category, by_phase, by_region: largest first.
        by_module: what each module asked for itself, without the modules inside it, by full path,
            largest first.
        by_stack: largest first.
        unattributed_bytes: without a user line.
        inferred_bytes: with the line of the forward pass they serve (likely).
        named_bytes: with a tensor's name, a module or a user line.
        by_code: by the innermost line outside of PyTorch's own plumbing, largest first.
        modules_below_line: of the largest of by_line, what each module asked for under it, by full
            path; empty where no module is known.
    """

    device: int
    event: int
    step: int | None
    requested_bytes: int
    by_line: tuple[LineBytes, ...]
    by_category: Mapping[str, CategoryBytes]
    by_phase: Mapping[str, int]
    by_module: Mapping[str, int]
    by_region: Mapping[str, int]
    by_stack: tuple[StackBytes, ...]
    unattributed_bytes: int
    inferred_bytes: int
    named_bytes: int = 0
    by_code: tuple[CodeBytes, ...] = ()
    modules_below_line: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Heap after event {self.event:,} of device {self.device}: {self.requested_bytes:,} bytes requested>"


def heap_at(view: Attribution, event: int) -> Heap:
    """The heap right after an event of a device; -1 is the moment before the first."""
    allocations = view.device.allocations
    rows = allocations.alive_after(event)
    sizes = allocations.requested_bytes[rows]
    frame, inferred = view.phases.frame[rows], view.phases.inferred[rows]
    category = view.categories.category[rows]
    strings = view.trace.stacks.strings
    by_line = _lines(view, rows, sizes)
    return Heap(
        device=view.device.device,
        event=event,
        step=view.step_of_run(event),
        requested_bytes=int(sizes.sum()),
        by_line=by_line,
        by_category=_categories(category, view.categories.certainty[rows], sizes),
        by_phase=_ranked(
            {Phase(p).name.lower(): n for p, n in _sums(view.phases.phase[rows], sizes).items()}
        ),
        by_module=_modules(view, rows, sizes),
        by_region=_ranked(
            {strings[r]: n for r, n in _sums(view.region[rows], sizes).items() if r >= 0}
        ),
        by_stack=_stacks(view, allocations.stack[rows], sizes),
        unattributed_bytes=int(sizes[frame < 0].sum()),
        inferred_bytes=int(sizes[inferred].sum()),
        named_bytes=named_bytes(view, rows),
        by_code=code_lines(view, rows, sizes),
        modules_below_line=_modules_below(view, rows, by_line[0].place) if by_line else {},
    )


def _modules(
    view: Attribution, rows: NDArray[np.int64], sizes: NDArray[np.int64]
) -> dict[str, int]:
    """Bytes by the path of the module that asked for them, largest first."""
    by_number = _sums(view.modules.module[rows], sizes)
    return _ranked({view.modules.paths[m]: size for m, size in by_number.items() if m != OUTSIDE})


def _modules_below(view: Attribution, rows: NDArray[np.int64], line: Place) -> dict[str, int]:
    """Bytes by module of the allocations that one line of the user's stands for."""
    frames = np.unique(view.phases.frame[rows])
    frames_of_line = [
        frame for frame in frames.tolist() if frame >= 0 and view.place(frame) == line
    ]
    below = rows[np.isin(view.phases.frame[rows], frames_of_line)]
    return _modules(view, below, view.device.allocations.requested_bytes[below])


def named_bytes(view: Attribution, rows: NDArray[np.int64]) -> int:
    """How many requested bytes of some allocations have a tensor's name, a module or a user
    line.
    """
    is_named = (
        view.names.named[rows]
        | (view.modules.module[rows] != OUTSIDE)
        | (view.phases.frame[rows] >= 0)
    )
    return int(view.device.allocations.requested_bytes[rows[is_named]].sum())


def _sums(keys: NDArray[np.integer], sizes: NDArray[np.int64]) -> dict[int, int]:
    kinds, kind_of_row = np.unique(keys, return_inverse=True)
    totals = np.zeros(len(kinds), np.int64)
    np.add.at(totals, kind_of_row, sizes)
    return dict(zip(kinds.tolist(), totals.tolist(), strict=True))


def _ranked(totals: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def _lines(
    view: Attribution, alive: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[LineBytes, ...]:
    frame, inferred = view.phases.frame[alive], view.phases.inferred[alive]
    category = view.categories.category[alive]
    # Frames are interned by file, line and function, but may differ in further fields: join them by
    # place.
    place_of = {f: view.place(f) for f in np.unique(frame).tolist() if f >= 0}
    places = {place: i for i, place in enumerate(dict.fromkeys(place_of.values()))}
    number = {f: places[place] for f, place in place_of.items()}
    rows = np.flatnonzero(frame >= 0)
    kinds, kind_of_row = np.unique(frame[rows], return_inverse=True)
    line = np.array([number[f] for f in kinds.tolist()], np.int64)[kind_of_row]
    totals, counts = np.zeros((2, len(places)), np.int64)
    lent = np.zeros(len(places), np.int64)
    shares = np.zeros((len(places), len(Category)), np.int64)
    np.add.at(totals, line, sizes[rows])
    np.add.at(counts, line, 1)
    np.add.at(lent, line, np.where(inferred[rows], sizes[rows], 0))
    np.add.at(shares, (line, category[rows]), sizes[rows])
    named = [
        few_names(view.names, alive[rows_of_line], sizes[rows_of_line])
        for rows_of_line in _by_line(view, rows, line, len(places))
    ]
    line_rows = [
        LineBytes(
            place=place,
            bytes=int(totals[i]),
            allocations=int(counts[i]),
            inferred_bytes=int(lent[i]),
            category=Category(int(shares[i].argmax())).name.lower(),
            names=named[i] if named else (),
        )
        for place, i in places.items()
        if place is not None
    ]
    return tuple(sorted(line_rows, key=lambda row: (-row.bytes, str(row.place))))


def _by_line(
    view: Attribution, rows: NDArray[np.int64], line: NDArray[np.int64], lines: int
) -> list[NDArray[np.int64]]:
    """The rows of each line; none at all where the recording names no tensors."""
    if not view.names.tensors or not lines:
        return []
    order = np.argsort(line, kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(line, minlength=lines))[:-1])


def _categories(
    category: NDArray[np.uint8], certainty: NDArray[np.uint8], sizes: NDArray[np.int64]
) -> dict[str, CategoryBytes]:
    categories = {}
    for kind, total in sorted(_sums(category, sizes).items(), key=lambda item: -item[1]):
        shares = _sums(certainty[category == kind], sizes[category == kind])
        weighty = [grade for grade, part in shares.items() if part * 10 >= total]
        categories[Category(kind).name.lower()] = CategoryBytes(
            total, Verdict(Certainty(max(weighty)).name.lower())
        )
    return categories


def _stacks(
    view: Attribution, stack: NDArray[np.uint32], sizes: NDArray[np.int64]
) -> tuple[StackBytes, ...]:
    counts = _sums(stack, np.ones_like(sizes))
    totals = sorted(_sums(stack, sizes).items(), key=lambda item: (-item[1], item[0]))
    return tuple(StackBytes(key, total, counts[key], view.trace.stacks) for key, total in totals)


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
