"""A call that makes more than is often needed, in the expression that failed or in the lines that hold most."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    MUCH,
    ExpressionUse,
    use_of_expression,
)
from vramlens.analyses.findings.faults.expressions.uses.gradient_uses import (
    use_of_node,
    use_of_statement,
)
from vramlens.analyses.findings.faults.expressions.uses.largest_number import use_of_largest_number
from vramlens.analyses.findings.faults.expressions.uses.library_uses import use_of_library
from vramlens.analyses.findings.faults.expressions.uses.math_attention import use_of_math_attention
from vramlens.analyses.findings.faults.expressions.uses.operand_uses import (
    use_of_equal_rows,
    use_of_sum,
)
from vramlens.analyses.findings.faults.expressions.uses.promoted_copy import use_of_promotion
from vramlens.analyses.findings.faults.expressions.uses.shuffled_rows import use_of_shuffle
from vramlens.analyses.findings.faults.unnamed_entries import MANY_NAMED, with_unnamed_entries
from vramlens.analyses.findings.usage import rows_of_lines
from vramlens.analyses.memory.heap import LineBytes
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import PACKAGES, Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame
from vramlens.units import MIB, counted, format_size

_LEAST_OF_REPEATED = 0.01
"""Of what is in use, from which on what follows on a repeated tensor is large because of it: labels are
repeated, too.
"""
_FEWEST_ENTRIES = 8
"""Of a store: fewer are what a step has at once."""
_OF_PARAMETERS = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
_OF_MODULE = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]")
_OF_TORCH = re.compile(rf"[/\\]torch[/\\](?!.*{PACKAGES})|^<")
_LONGEST = 60
"""Letters of the expression that are shown."""


@after_failure
def costly_expression(scene: Scene) -> Iterator[Finding]:
    """The call that memory ran out in, if it asked for much at once and something else may do; or the
    calls whose results are much of what is in use, where that is as much.
    """
    both = [*_kept_results(scene), *_failed_call(scene)]
    if both:  # of as many bytes what is kept is the first: the request that failed is made of it
        yield max(both, key=lambda finding: finding.size_bytes // MIB)


def _failed_call(scene: Scene) -> Iterator[Finding]:
    """The expression, or the operation of a backward pass, that memory ran out in."""
    request, failed_use = scene.ending_request, use_at_the_end(scene)
    if failed_use is None:
        return
    subject, use = failed_use
    place = scene.failed_place
    of_line = [line for line in scene.advice_heap.by_line if line.place == place]
    alike_lines = of_line if use.stays or use.makes_several else []
    asked_bytes = request.size_bytes + use.makes_several * _bytes_of(of_line)
    if asked_bytes < MUCH * scene.wanted_bytes:
        return
    if use.if_larger and not _is_larger(scene, use, request.size_bytes, place):
        return
    size_bytes = request.size_bytes + _bytes_of(alike_lines)
    yield Finding(
        id="costly_expression",
        verdict=Verdict.LIKELY,
        title=f"{subject} {use.reading}: {format_size(request.size_bytes)} at once",
        bytes=size_bytes,
        place=place,
        evidence=("memory ran out in it",),
        fix=f"{use.fix} (up to {format_size(size_bytes)} less)",
        recurs=_bytes_of(alike_lines) >= request.size_bytes,
    )


def _kept_results(scene: Scene) -> Iterator[Finding]:
    """The lines whose calls made the most of what is in use, if that is much."""
    heap = scene.advice_heap
    lines_of: defaultdict[ExpressionUse, list[LineBytes]] = defaultdict(list)
    entries = _entries_by_line(scene)
    for line in heap.by_line:
        use = use_of_expression(scene.source_of(line.place))
        is_much = use is not None and use.stays and _is_too_much(scene, use, line)
        if (
            use is not None
            and is_much
            and not _is_kept_in_store(line, entries)
            and not _is_of_another_call(scene, use, line)
        ):
            lines_of[use].append(line)
    if not lines_of:
        return
    use, lines = max(lines_of.items(), key=lambda entry: _bytes_of(entry[1], entry[0]))
    size_bytes = _bytes_of(lines, use)
    text = scene.source_of(lines[0].place)
    followed = ""
    is_much = size_bytes >= _LEAST_OF_REPEATED * heap.requested_bytes
    if is_much and use.spreads is not None and use.spreads.search(text):
        following_bytes = _bytes_of_following(scene, lines)
        size_bytes += following_bytes
        followed = ", with what is computed from it" if following_bytes else ""
    if size_bytes < use.least_share * heap.requested_bytes:
        return
    more = f" (and {counted(len(lines) - 1, 'line')} like it)" if len(lines) > 1 else ""
    yield Finding(
        id="costly_expression",
        verdict=Verdict.LIKELY,
        title=f"{shown(text)}{more} {use.reading}: {scene.part_of_heap(size_bytes)}{followed}",
        bytes=size_bytes,
        place=lines[0].place,
        evidence=("that is in use when the request fails",),
        fix=f"{use.fix} (up to {format_size(size_bytes)} less)",
        recurs=all(line.allocations > 1 for line in lines),
    )


def _bytes_of_following(scene: Scene, lines: Sequence[LineBytes]) -> int:
    """What was made after the results of lines with as many rows, or as many bytes; what other such calls
    made is theirs.
    """
    view, sizes = scene.view, scene.device.allocations.requested_bytes
    places = {line.place for line in lines}
    other_places = {
        line.place
        for line in scene.advice_heap.by_line
        if use_of_expression(scene.source_of(line.place))
    }
    rows = scene.advice_rows.tolist()
    place_of = {row: view.place_of_block(row) for row in rows}
    results = [row for row in rows if place_of[row] in places]
    counts = {_row_count(scene, row) for row in results} - {0}
    result_sizes = set(sizes[results].tolist())
    following = [
        row
        for row in rows
        if row > min(results, default=row)
        and place_of[row] not in other_places
        and view.categories.category[row] not in _OF_PARAMETERS
        and (int(sizes[row]) in result_sizes or _row_count(scene, row) in counts)
    ]
    return scene.bytes_of(following)


def _row_count(scene: Scene, row: int) -> int:
    """The first size of a tensor; 0 where nobody knows."""
    shape = scene.advice_shapes.get(row)
    return shape.sizes[0] if shape is not None and shape.sizes else 0


def _is_too_much(scene: Scene, use: ExpressionUse, line: LineBytes) -> bool:
    if use.for_graph and line.category != "activations":
        return False
    one_bytes = _bytes_of([line], use) // line.allocations
    return not use.if_larger or _is_larger(scene, use, one_bytes, line.place)


def _is_kept_in_store(line: LineBytes, entries: Mapping[Place | None, list[int]]) -> bool:
    """Whether a list, dict or cache of the program keeps most of what a line made: that it is kept is the fault.

    Args:
        entries: the bytes of each entry of these, by the line that made it.
    """
    kept_bytes = entries.get(line.place, [])
    return len(kept_bytes) >= _FEWEST_ENTRIES and 2 * sum(kept_bytes) > line.bytes


def _is_of_another_call(scene: Scene, use: ExpressionUse, line: LineBytes) -> bool:
    """Whether a library or a module made most of a line's bytes, in another call than the costly one: that stands
    among the arguments of ``model.generate(prompts.repeat_interleave(n))`` or ``merge(torch.cat(maps))``.
    """
    call = use.call.search(scene.source_of(line.place))
    allocations = scene.device.allocations
    rows = rows_of_lines(scene, {line.place})
    stacks, stack_of_row = np.unique(allocations.stack[rows], return_inverse=True)
    bytes_of_stack = np.bincount(stack_of_row, weights=allocations.requested_bytes[rows])
    other_bytes = sum(
        size_bytes
        for stack, size_bytes in zip(stacks.tolist(), bytes_of_stack.tolist(), strict=True)
        if _is_other_call(scene.trace.stacks.of(stack), line, "" if call is None else call[0])
    )
    return bool(2 * other_bytes > line.bytes)


def _is_other_call(frames: Sequence[Frame], line: LineBytes, call: str) -> bool:
    """Whether what a line called in a stack is a library's or a module's, and not the call that is meant."""
    inner = [*takewhile(lambda frame: (frame.file, frame.line) != _where(line), frames)]
    is_called = any(frame.function in call for frame in inner)
    return not is_called and any(_is_of_other_code(frame.file) for frame in inner)


def _is_of_other_code(file: str) -> bool:
    return _OF_MODULE.search(file) is not None or not _OF_TORCH.search(file)


def _where(line: LineBytes) -> tuple[str, int]:
    return line.place.file, line.place.line


def _entries_by_line(scene: Scene) -> dict[Place | None, list[int]]:
    """The bytes of what lists, dicts and caches of the program keep, by the line that made it."""
    names, sizes = scene.view.names, scene.device.allocations.requested_bytes
    named = [row for row in scene.program_rows.tolist() if "[" in names.name(row)]
    rows = np.array(named, np.int64)
    if len(rows) >= MANY_NAMED:
        rows = with_unnamed_entries(scene, rows)
    entries: defaultdict[Place | None, list[int]] = defaultdict(list)
    for row in rows.tolist():
        entries[scene.view.place_of_block(row)].append(int(sizes[row]))
    return entries


def _is_larger(scene: Scene, use: ExpressionUse, size_bytes: int, place: Place | None) -> bool:
    """Whether what a line made is so many times as large as all that was there before it: then rows are in it
    more than once.
    """
    rows = scene.advice_rows
    large_rows = rows[scene.device.allocations.requested_bytes[rows] * use.if_larger > size_bytes]
    return not len(large_rows) or scene.view.place_of_block(int(large_rows[0])) == place


def _bytes_of(lines: Iterable[LineBytes], use: ExpressionUse | None = None) -> int:
    """What lines asked for themselves, and their backward passes where these count."""
    if use is not None and use.in_backward:
        return sum(line.bytes for line in lines)
    return sum(line.bytes - line.inferred_bytes for line in lines)


def use_at_the_end(scene: Scene) -> tuple[str, ExpressionUse] | None:
    """What memory ran out in, as answers show it, and what that makes more of than may be needed; None where
    it says nothing.
    """
    expression, node = scene.ending_expression, scene.ending_node
    statement = scene.source_of(scene.failed_place)
    uses = (
        (shown(expression), use_of_library(scene)),
        (shown(expression), use_of_equal_rows(scene)),
        (shown(expression), use_of_shuffle(scene)),
        (shown(expression), use_of_promotion(scene)),
        (shown(expression), use_of_largest_number(scene)),
        (shown(expression), use_of_math_attention(scene)),
        (shown(expression), use_of_sum(scene, of_flags=False)),
        (shown(expression), use_of_expression(expression)),
        (shown(expression), use_of_sum(scene, of_flags=True)),
        (shown(statement), use_of_statement(statement, expression=expression, node=node)),
        (node, use_of_node(node)),
    )
    return next(((subject, use) for subject, use in uses if use is not None), None)


def shown(expression: str) -> str:
    """An expression as answers show it: its begin, where it is long."""
    return expression if len(expression) <= _LONGEST else f"{expression[: _LONGEST - 1]}…"
