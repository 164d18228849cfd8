"""What has to be known beside the changed lines: alignment, other moments, steps, repeated runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramlens.analyses.compare.diff_findings import line_words, signed_size
from vramlens.report.wording import visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.compare.diff_answer import Diff

_STEPS_SHOWN = 3
_LEAST_SHARE = 0.001
"""Of the peak: a smaller change at another moment goes unsaid."""


def notes_of(diff: Diff) -> Iterator[str]:
    """Yields the notes below the changed lines."""
    yield from _moment_of_peak(diff)
    if diff.unattributed_bytes and diff.by_line:
        yield f"{signed_size(diff.unattributed_bytes)} have no line in your code."
    yield from _elsewhere(diff)
    if not diff.unrelated:
        yield from _steps(diff)
    if diff.moved_lines:
        yield (
            f"{counted(diff.moved_lines, 'line')} of {diff.aligned_lines:,} moved between the "
            "runs. They were matched by function and order (likely, not proven)."
        )
    befores, afters = len(diff.befores), len(diff.afters)
    if max(befores, afters) > 1:
        yield (
            f"Of {counted(befores, 'run')} before and {afters:,} after, the ones with the median "
            "peak are shown. A change counts only if the ranges of both sides do not overlap."
        )


def _moment_of_peak(diff: Diff) -> Iterator[str]:
    """Some lines rose and others fell: the peaks may not be comparable."""
    before, after = diff.before.explanation.peak, diff.after.explanation.peak
    if before is None or after is None or not (before.shape and after.shape):
        return
    signs = {line.change_bytes > 0 for line in diff.by_line}
    if len(signs) == 2 and before.shape != after.shape:
        yield visible(
            f"The peak may be at a different moment. Before: {before.shape} After: {after.shape}"
        )


def _elsewhere(diff: Diff) -> Iterator[str]:
    if not diff.elsewhere:
        return
    line = diff.elsewhere[0]
    peak = max(diff.before.requested_bytes, diff.after.requested_bytes)
    if abs(line.most_change_bytes) < _LEAST_SHARE * peak:
        return
    more = len(diff.elsewhere) - 1
    more_lines = f", and {counted(more, 'more line')}" if more else ""
    change = signed_size(line.most_change_bytes)
    yield visible(f"Largest change outside the peak: {change} at {line_words(line)}{more_lines}.")


def _steps(diff: Diff) -> Iterator[str]:
    """Which steps changed, where that is not all of them alike."""
    changes = _changes_by_step(diff)
    changed = {step: change for step, change in changes.items() if change}
    if not changed or len(changes) < 2:
        return
    sizes = set(changed.values())
    if len(changed) == len(changes) and len(sizes) == 1:
        yield f"Every step's peak: {signed_size(sizes.pop())} requested."
    elif len(changed) <= _STEPS_SHOWN < len(changes):
        words = ", ".join(f"step {step} {signed_size(change)}" for step, change in changed.items())
        yield f"Only the peaks of these steps changed: {words}."
    else:
        yield _range_of(sizes, f"{len(changed):,} of {counted(len(changes), 'step')}")


def _range_of(sizes: set[int], steps: str) -> str:
    """By how much the peaks of some steps changed."""
    if min(sizes) < 0 < max(sizes):
        return f"The peaks of {steps} changed, by {signed_size(min(sizes))} to {signed_size(max(sizes))}."
    change = "higher" if max(sizes) > 0 else "lower"
    ends = sorted(map(abs, sizes))
    by = " to ".join(dict.fromkeys((format_size(ends[0]), format_size(ends[-1]))))
    return f"The peaks of {steps} are {change}, by {by}."


def _changes_by_step(diff: Diff) -> dict[int, int]:
    """By how many bytes the peak of each step changed that both runs have."""
    return {
        row.step: row.after_bytes - row.before_bytes
        for row in diff.by_step
        if row.before_bytes is not None and row.after_bytes is not None
    }
