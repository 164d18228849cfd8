"""Lines of one function in two versions of it: which is which, by what they call and ask for,
and by their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.analyses.compare.compared_run import CodeLine
from vramlens.analyses.finding import Place

CALLS, SIZES = 2.0, 1.0
"""What speaks for two lines being one: the share of their calls, and of their sizes, that both
have.
"""
_SAME_NUMBER = 0.5
"""The same for two lines that call different things and stand at one number: the weakest sign."""
_TIE = 1e-4
"""Of pairs that are equally alike, the one at the same number is preferred; it never outweighs
another pair.
"""
_MOST_PAIRS = 40_000
"""Of more pairs (a generated function of many lines, edited in many places) the number alone
decides.
"""


def align_lines(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> dict[Place, Place]:
    """The pairs of one function's lines, in order, that together are most alike.

    Args:
        before, after: the lines of one function, in order.
    """
    unedited = _unedited(before, after)
    if unedited is not None:
        return unedited
    head, tail = _untouched(before, after)
    rows, columns = len(before) - tail, len(after) - tail
    align = _at_one_number if (rows - head) * (columns - head) > _MOST_PAIRS else _most_alike
    pairs = [(i, i) for i in range(head)]
    pairs += ((head + i, head + j) for i, j in align(before[head:rows], after[head:columns]))
    pairs += ((rows + i, columns + i) for i in range(tail))
    pairs += _edited(pairs, before, after)
    return {before[i].place: after[j].place for i, j in pairs}


def _unedited(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> dict[Place, Place] | None:
    """The pairs of a function that is where it was, or was moved as a whole, or by blank lines;
    None of one that was edited.
    """
    numbers = {line.place.line: line.place for line in after}
    if [line.place.line for line in before] == list(numbers):
        return {line.place: numbers[line.place.line] for line in before}
    if len(before) == len(after) and all(map(_same, before, after)):
        return {old.place: new.place for old, new in zip(before, after, strict=True)}
    return None


def likeness(old: CodeLine, new: CodeLine) -> float:
    """How alike two lines are, to CALLS + SIZES; 0 where they cannot be the same: one calls what
    the other does not.
    """
    if old.place.line == new.place.line and not _calls_alike(old, new):
        return _SAME_NUMBER + SIZES * _overlap(old.sizes, new.sizes)
    return _calls_alike(old, new)


def _calls_alike(old: CodeLine, new: CodeLine) -> float:
    """The same, wherever they stand."""
    calls = _overlap(old.calls, new.calls)
    return CALLS * calls + SIZES * _overlap(old.sizes, new.sizes) if calls else 0.0


def _same(old: CodeLine, new: CodeLine) -> bool:
    return old.calls == new.calls and old.sizes == new.sizes


def _untouched(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> tuple[int, int]:
    """How many lines before an edit are just as they were, and how many behind it moved by as
    much as the last one.
    """
    fewest_lines = min(len(before), len(after))
    head = tail = 0
    while (
        head < fewest_lines
        and _same(before[head], after[head])
        and before[head].place.line == after[head].place.line
    ):
        head += 1
    moved = after[-1].place.line - before[-1].place.line if fewest_lines else 0
    while tail < fewest_lines - head:
        old, new = before[-1 - tail], after[-1 - tail]
        if not _same(old, new) or new.place.line - old.place.line != moved:
            break
        tail += 1
    return head, tail


def _at_one_number(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> list[tuple[int, int]]:
    places = {line.place.line: j for j, line in enumerate(after)}
    return [(i, places[old.place.line]) for i, old in enumerate(before) if old.place.line in places]


def _most_alike(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> list[tuple[int, int]]:
    """The pairs in order whose likeness sums to most."""
    alike = _likenesses(before, after)
    best = _best_sums(alike, len(after))
    pairs, i, j = [], 0, 0
    while i < len(before) and j < len(after):
        if alike[i][j] and best[i][j] == best[i + 1][j + 1] + alike[i][j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _likenesses(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> list[list[float]]:
    weights_by_kind: dict[tuple[frozenset[str], frozenset[int]], list[float]] = {}
    alike = []
    for old in before:  # many lines of a function call and ask for the same
        kind = (old.calls, old.sizes)
        if kind not in weights_by_kind:
            weights_by_kind[kind] = [_calls_alike(old, new) for new in after]
        alike.append(
            [
                _with_number(old, new, weight)
                for new, weight in zip(after, weights_by_kind[kind], strict=True)
            ]
        )
    return alike


def _best_sums(alike: Sequence[Sequence[float]], columns: int) -> list[list[float]]:
    """The most that pairs in order can sum to, of the lines from each row and column on."""
    best = [[0.0] * (columns + 1) for _ in range(len(alike) + 1)]
    for i in range(len(alike) - 1, -1, -1):
        row, below, weights = best[i], best[i + 1], alike[i]
        for j in range(columns - 1, -1, -1):
            best_sum = below[j] if below[j] > row[j + 1] else row[j + 1]
            weight = weights[j]
            if weight and below[j + 1] + weight > best_sum:
                best_sum = below[j + 1] + weight
            row[j] = best_sum
    return best


def _with_number(old: CodeLine, new: CodeLine, alike: float) -> float:
    """How alike two lines are, and a little more at the same number; there, even if they call
    different things.
    """
    if old.place.line != new.place.line:
        return alike
    return (alike or likeness(old, new)) + _TIE


def _edited(
    pairs: Sequence[tuple[int, int]], before: Sequence[CodeLine], after: Sequence[CodeLine]
) -> list[tuple[int, int]]:
    """Lines that call something else now, at the number to which the line above or below them
    moved.
    """
    edited_pairs = []
    for (i, j), (next_i, next_j) in zip(
        [(-1, -1), *pairs], [*pairs, (len(before), len(after))], strict=True
    ):
        moves = [
            after[b].place.line - before[a].place.line
            for a, b in ((i, j), (next_i, next_j))
            if 0 <= a < len(before)
        ]
        free = {after[b].place.line: b for b in range(j + 1, next_j)}
        at = j
        for a in range(i + 1, next_i):
            targets = [
                free[number] for move in moves if (number := before[a].place.line + move) in free
            ]
            if targets and targets[0] > at:
                at = targets[0]
                edited_pairs.append((a, at))
    return edited_pairs


def _overlap(
    left: frozenset[str] | frozenset[int], right: frozenset[str] | frozenset[int]
) -> float:
    """The share that two sets have in common; 1 where both are empty."""
    if not left and not right:
        return 1.0
    return len(left & right) / len(left | right)
