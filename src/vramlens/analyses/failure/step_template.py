"""The earlier step that a failed step repeats: which of its requests were made again, and which
were still to come.

Requests of one stack, in one module, come in one order: the third request of a stack in one step
repeats the third of that stack in another. Memory that only the backward pass asks for has no
stack; its module's mark stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.failure.first_step.forward_progress import blocks_of_pass, passes_of_step
from vramlens.analyses.failure.likeness.paired_requests import Pairs, with_likest_sizes
from vramlens.analyses.failure.step_evidence import are_steps
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.ground.allocator_sizes import MIN_BLOCK
from vramlens.trace import NO_STACK, OutOfMemory

_MOST_CANDIDATES = 24
_LEAST_MATCHED = 0.7
"""Of the requests that the failed step had made: with fewer in common it is another kind of
step.
"""
_GIVEN_BACK = 0.7
"""A step that is one gives back most of what it asks for; a layer of a forward pass keeps it."""
_TWO_AND_THE_FAILED = 3
_LOOK_BACK, _LOOK_AHEAD = 8, 200
_ALMOST_ALL = 0.98
_MOST_TO_PAIR = 3000
_RANK_BITS = 32


@dataclass(frozen=True, eq=False)
class EventSpan:
    """A run of events that may repeat: a step, or one forward and backward pass.

    Attributes:
        start, end: its first event, and the one after its last.
        rows: the allocations born in it, by birth.
        keys: by row, what tells which request of the span it is.
    """

    start: int
    end: int
    rows: NDArray[np.int64]
    keys: NDArray[np.int64]

    @property
    def kinds(self) -> NDArray[np.int64]:
        """By row, which stack and module asked for it."""
        return self.keys >> _RANK_BITS

    @cached_property
    def row_of(self) -> dict[int, int]:
        """The allocation by its key."""
        return dict(zip(self.keys.tolist(), self.rows.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Template:
    """The earlier span that the failed one repeats.

    Attributes:
        spans: all spans up to the failed one, which is the last.
        number: of the template among them.
        partner: by row of the template, the failed span's allocation that repeats it; -1 where
            there is none.
        position: which row of the template the failed request repeats.
        matched: the share of the failed span's requests that have a partner.
        whole_steps: whether the spans are steps, with their optimizer; else passes inside the first
            step.
        is_part: whether the spans are only passes, or blocks of one, of which nobody knows how many
            follow.
    """

    spans: tuple[EventSpan, ...]
    number: int
    partner: NDArray[np.int64]
    position: int
    matched: float
    whole_steps: bool
    is_part: bool = False

    @property
    def span(self) -> EventSpan:
        """The template itself."""
        return self.spans[self.number]

    @property
    def failed(self) -> EventSpan:
        """The span that failed."""
        return self.spans[-1]

    @property
    def pairs(self) -> Pairs:
        """The template's allocations that the failed span repeats, and those that repeat them."""
        places = np.flatnonzero(self.partner >= 0)
        return self.span.rows[places], self.partner[places]


def template_of(view: Attribution, request: OutOfMemory) -> Template | None:
    """The earlier step that a failed one repeats; None where none does."""
    starts, whole_steps = _starts(view, request.event)
    if len(starts) < 2:
        return None
    spans = tuple(_spans(view, [*starts, request.event]))
    candidates = [n for n in range(len(spans) - 1) if len(spans[n].rows)]
    if len(candidates) > _MOST_CANDIDATES:
        candidates = [*candidates[:2], *candidates[2 - _MOST_CANDIDATES :]]
    return _likest(view, spans, candidates, request, whole_steps=whole_steps)


def template_of_part(view: Attribution, request: OutOfMemory) -> Template | None:
    """The earlier pass of the same step, or block of the same pass, that the one under way repeats to
    its end; None where none does.

    It says how much is needed at least. The first of them also builds what lasts, so that it needs
    two before.
    """
    passes = passes_of_step(view, request.event)
    blocks = blocks_of_pass(view, passes[-1]) if passes else []
    for rows_by_part, by_module in ((passes, True), (blocks, False)):
        if len(rows_by_part) < _TWO_AND_THE_FAILED:
            continue
        starts = [int(view.device.allocations.born[rows[0]]) for rows in rows_by_part]
        full_spans = list(_spans(view, [*starts, request.event], by_module=by_module))
        last_rows = [int(rows[-1]) for rows in rows_by_part[:-1]]
        spans = (*map(_until, full_spans[:-1], last_rows), full_spans[-1])
        candidates = list(range(1, len(spans) - 1))[-_MOST_CANDIDATES:]
        template = _likest(view, spans, candidates, request, whole_steps=False)
        if template is not None and template.matched >= _ALMOST_ALL:
            return replace(template, is_part=True)
    return None


def _until(span: EventSpan, last: int) -> EventSpan:
    """A span up to one of its rows."""
    count = int(np.searchsorted(span.rows, last, side="right"))
    return replace(span, rows=span.rows[:count], keys=span.keys[:count])


def _likest(
    view: Attribution,
    spans: tuple[EventSpan, ...],
    candidates: Sequence[int],
    request: OutOfMemory,
    *,
    whole_steps: bool,
) -> Template | None:
    """The candidate that is most like the failed span, the latest of several; None of none."""
    best: tuple[float, int, Template] | None = None
    for number in candidates:
        template = _aligned(view, spans, number, request, whole_steps=whole_steps)
        if template is None:
            continue
        worth = (_likeness(view, template), number, template)
        if best is None or worth[:2] > best[:2]:
            best = worth
    return best[2] if best is not None else None


def _starts(view: Attribution, event: int) -> tuple[list[int], bool]:
    """Where the spans before a failure begin, and whether they are whole steps."""
    steps = [int(start) for start in view.steps.starts if start < event]
    if len(steps) > 1 and view.steps.source != PATTERN:
        return steps, True
    if len(steps) > 1 and are_steps(view):
        return (steps, not len(view.phases.span_start)) if _give_back(view, steps) else ([], False)
    ends = [int(end) for end in view.phases.span_end if end < event]
    return [0, *ends] if ends else [], False


def _give_back(view: Attribution, starts: list[int]) -> bool:
    """Whether what repeats gives back what it asks for: steps do, layers and tokens of one
    forward do not.
    """
    allocations = view.device.allocations
    born = (allocations.born >= starts[0]) & (allocations.born < starts[-1])
    number = np.searchsorted(starts, allocations.born[born], side="right")
    following = np.append(starts, len(view.device.events))[np.minimum(number + 1, len(starts))]
    sizes = allocations.requested_bytes[born]
    gone = allocations.died[born] < following
    late = number > 1  # the first builds what stays
    return bool(sizes[gone & late].sum() >= _GIVEN_BACK * max(1, sizes[late].sum()))


def _spans(
    view: Attribution, bounds: Sequence[int], *, by_module: bool = True
) -> Iterator[EventSpan]:
    allocations = view.device.allocations
    # A workspace is made once and kept: among requests without a stack it would shift all that
    # follow it.
    workspace = (view.categories.category == Category.WORKSPACE) & (allocations.died >= bounds[-1])
    workspace &= allocations.born < bounds[-2]
    module = view.modules.module + 1 if by_module else 0
    kind = (allocations.stack.astype(np.int64) << 21) + 2 * module + workspace
    _, kind = np.unique(kind, return_inverse=True)
    kind = kind.reshape(-1).astype(np.int64)
    edges = np.searchsorted(allocations.born, bounds)
    for start, end, first, last in zip(bounds, bounds[1:], edges, edges[1:], strict=False):
        rows = np.arange(first, last, dtype=np.int64)
        yield EventSpan(start, end, rows, _keys(kind[first:last]))


def _keys(kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """By row, its kind and how many of that kind came before it."""
    order = np.argsort(kind, kind="stable")
    ordered = kind[order]
    first = np.searchsorted(ordered, ordered, side="left")
    rank = np.empty(len(kind), np.int64)
    rank[order] = np.arange(len(kind)) - first
    return (kind << _RANK_BITS) + rank


def _aligned(
    view: Attribution,
    spans: tuple[EventSpan, ...],
    number: int,
    request: OutOfMemory,
    *,
    whole_steps: bool,
) -> Template | None:
    """A candidate with what the failed span has in common with it; None where that is too
    little.
    """
    span, failed = spans[number], spans[-1]
    _, theirs, ours = np.intersect1d(
        span.keys, failed.keys, assume_unique=True, return_indices=True
    )
    matched = len(ours) / len(failed.rows) if len(failed.rows) else 1.0
    if matched < _LEAST_MATCHED:
        return None
    pairs = _by_size_without_stacks(view, span, failed, (theirs, ours))
    theirs, ours = _by_likest_sizes(view, span, failed, pairs)
    partner = np.full(len(span.rows), -1, np.int64)
    partner[theirs] = failed.rows[ours]
    latest = np.sort(theirs[np.argsort(ours)][-_LOOK_BACK:])
    after = int(latest[-1]) + 1 if len(latest) else 0
    position = _position(view, span, request, after)
    if position is None:
        return None
    partner[position:] = -1
    return Template(
        spans=spans,
        number=number,
        partner=partner,
        position=position,
        matched=matched,
        whole_steps=whole_steps,
    )


def _by_size_without_stacks(
    view: Attribution, span: EventSpan, failed: EventSpan, pairs: Pairs
) -> Pairs:
    """The pairs, those without a stack by their sizes' order where that pairs more of the same
    size.

    One request more or less (another algorithm's workspace) would shift all that follow it.
    """
    theirs, ours = pairs
    allocations = view.device.allocations
    bare = np.flatnonzero(_has_no_frames(view, failed.rows))
    bare_theirs = np.flatnonzero(_has_no_frames(view, span.rows))
    paired = _has_no_frames(view, failed.rows[ours])
    sizes = allocations.requested_bytes
    equal_pairs = int((sizes[span.rows[theirs[paired]]] == sizes[failed.rows[ours[paired]]]).sum())
    if equal_pairs >= _ALMOST_ALL * len(bare) or max(len(bare), len(bare_theirs)) > _MOST_TO_PAIR:
        return pairs
    if not _are_mostly_equal(sizes[span.rows[theirs[~paired]]], sizes[failed.rows[ours[~paired]]]):
        return pairs  # of another batch: what is as large now is another request
    matcher = SequenceMatcher(
        None, sizes[span.rows[bare_theirs]].tolist(), sizes[failed.rows[bare]].tolist(), False
    )
    blocks = matcher.get_matching_blocks()
    if sum(block.size for block in blocks) <= max(equal_pairs, len(bare) // 2):
        return pairs
    more = [np.arange(block.size) for block in blocks]
    their_rows = np.concatenate(
        [bare_theirs[block.a + run] for block, run in zip(blocks, more, strict=True)]
    )
    our_rows = np.concatenate(
        [bare[block.b + run] for block, run in zip(blocks, more, strict=True)]
    )
    return np.append(theirs[~paired], their_rows), np.append(ours[~paired], our_rows)


def _by_likest_sizes(view: Attribution, span: EventSpan, failed: EventSpan, pairs: Pairs) -> Pairs:
    """The pairs, those of one stack by the likeness of their sizes where order contradicts it.

    What has no stack is a whole backward pass, in which some requests do grow far more than others.
    """
    sizes, is_bare = view.device.allocations.requested_bytes, _has_no_frames(view, failed.rows)
    return with_likest_sizes(
        sizes[span.rows],
        sizes[failed.rows],
        span.kinds,
        np.where(is_bare, -1, failed.kinds),
        pairs,
    )


def _are_mostly_equal(theirs: NDArray[np.int64], ours: NDArray[np.int64]) -> bool:
    """Whether most bytes of some pairs are of the same size; true of no pairs."""
    return bool(2 * theirs[theirs == ours].sum() >= theirs.sum())


def _has_no_frames(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether nothing of the stack is known: autograd's threads, and what C++ libraries ask for."""
    stacks, stack = view.trace.stacks, view.device.allocations.stack[rows]
    empty = np.append(np.diff(stacks.starts) == 0, True)
    return np.asarray(empty[np.minimum(stack, len(stacks))])


def _position(view: Attribution, span: EventSpan, request: OutOfMemory, after: int) -> int | None:
    """Which row of a span the failed request repeats, near the one that follows what was
    matched.
    """
    allocations = view.device.allocations
    near = span.rows[after : after + _LOOK_AHEAD]
    stacks = allocations.stack[near]
    same_stack = np.flatnonzero(
        stacks == (request.stack if request.stack < len(view.trace.stacks) else NO_STACK)
    )
    if not len(same_stack):
        later = np.flatnonzero(allocations.stack[span.rows[after:]] == request.stack)
        return after + int(later[0]) if len(later) and request.stack != NO_STACK else None
    sizes = -(-allocations.requested_bytes[near[same_stack]] // MIN_BLOCK) * MIN_BLOCK
    equal = same_stack[sizes == request.size_bytes]
    return after + int(equal[0] if len(equal) else same_stack[0])


def _likeness(view: Attribution, template: Template) -> float:
    """How much a candidate is like the failed span: the same requests, of like sizes, and no more of
    them.
    """
    sizes = view.device.allocations.requested_bytes
    theirs, ours = (sizes[rows] for rows in template.pairs)
    missing = 1 - len(ours) / max(1, template.position)
    alike = float(np.minimum(theirs, ours).sum() / max(1, np.maximum(theirs, ours).sum()))
    return float(round(template.matched - 0.5 * missing + alike, 2))
