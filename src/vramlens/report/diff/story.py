"""A diff in words: what the text, Markdown and HTML reports have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.analyses.compare.diff_findings import (
    headline,
    line_words,
    numbers_of_both,
    signed_size,
    told_apart,
)
from vramlens.report.leaks.story import program_words
from vramlens.report.wording import plain, quoted, visible
from vramlens.trace.stacks import base_name
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.compare.diff import Diff, LineChange

_MEANINGS = {"reserved": "shown, not judged"}
_LEAST_SHARE = 0.001
"""Lines whose change is a smaller share of all changes are summed up, not listed."""
_STEPS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of both runs; ``note`` says what it means, where it has to."""

    name: str
    before: str
    after: str
    change: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class LineRow:
    """One line that changed."""

    change: str
    words: str
    detail: str
    note: str


@dataclass(frozen=True, slots=True)
class DiffStory:
    """All words of a diff.

    Attributes:
        headline: the answer.
        sentences: what it has to be read with.
        figures, lines: the tables.
        rest: what of the lines is not listed, in one phrase; "" where all are.
        lines_title: over the lines.
        notes: how lines were aligned, where the peak is, what else changed.
        others: what else differs between the runs.
        next_why, next_command: the one next step.
    """

    headline: str
    sentences: tuple[str, ...]
    figures: tuple[FigureRow, ...]
    lines_title: str
    lines: tuple[LineRow, ...]
    rest: str
    notes: tuple[str, ...]
    others: tuple[str, ...]
    next_why: str
    next_command: str


def story_of(diff: Diff, top: int = 10) -> DiffStory:
    """The words; ``top`` is how many lines are listed."""
    total = sum(abs(line.change_bytes) for line in diff.by_line)
    telling = [line for line in diff.by_line if abs(line.change_bytes) >= _LEAST_SHARE * total][
        :top
    ]
    left = diff.by_line[len(telling) :]
    rest = ""
    if left:
        rest = f"… and {counted(len(left), 'more line')}, {signed_size(sum(line.change_bytes for line in left))} in all"
    title = "What is different" if diff.unrelated else "What changed"
    title += " at the peak, by line (requested bytes)"
    why, command = _next(diff)
    return DiffStory(
        headline=visible(headline(diff)),
        sentences=tuple(_sentences(diff)),
        figures=tuple(_figures(diff)),
        lines_title=title if telling else "",
        lines=tuple(_line(line) for line in telling),
        rest=rest,
        notes=tuple(_notes(diff)),
        others=tuple(visible(other.words) for other in diff.others),
        next_why=why,
        next_command=command,
    )


def _sentences(diff: Diff) -> Iterator[str]:
    """What stands below the headline: what is no exact figure, which request failed, growth
    where it is left out.
    """
    if diff.unrelated:
        yield numbers_of_both(diff)
    for side, run in (("before", diff.before), ("after", diff.after)):
        peak, missing = run.explanation.peak, run.explanation.recording.missing
        if peak is not None and "requested_bytes" not in peak.exact:
            why = (
                ": that recording is not whole"
                if missing
                else ": there was memory before its first event"
            )
            yield f"The peaks {side} are lower bounds{why}."
    failed, now = diff.before.failure, diff.after.failure
    if failed is not None and now is None:
        where = f" at {failed.place}" if failed.place is not None else ""
        size = failed.requested_bytes or failed.tried_bytes
        what = f"A request of {format_size(size)}" if size else "A request"
        steps = diff.after.explanation.steps.count
        lives = (
            f"; after, {counted(steps, 'step')} and no failure" if steps else "; after, no failure"
        )
        yield visible(f"{what} failed before{where}{lives}.")
        if diff.growth_before and diff.growth_after is not None and not diff.unrelated:
            yield f"Growth: {format_size(diff.growth_before)} a step before, {format_size(diff.growth_after)} after."


def _figures(diff: Diff) -> Iterator[FigureRow]:
    for name, counter in diff.counters.items():
        if name == "active":
            continue
        change = "none"
        if counter.change_bytes:
            share = 100 * counter.change_bytes / counter.before_bytes if counter.before_bytes else 0
            change = signed_size(counter.change_bytes) + (f" ({_percent(share)})" if share else "")
        note = _MEANINGS.get(name, "")
        if counter.noise_bytes is not None:
            noise = f"repeated runs differ by {format_size(counter.noise_bytes)}"
            note = f"{note}; {noise}" if note else noise
        yield FigureRow(
            f"peak {name}", *told_apart(counter.before_bytes, counter.after_bytes), change, note
        )
    if diff.growth_before or diff.growth_after:
        known = diff.growth_before is not None and diff.growth_after is not None
        more = (diff.growth_after or 0) - (diff.growth_before or 0)
        change = (signed_size(more) if more else "none") if known else ""
        yield FigureRow(
            "growth a step", _grown(diff.growth_before), _grown(diff.growth_after), change
        )


def _percent(share: float) -> str:
    """A change in percent, with its sign unless it rounds to nothing: ``-1.5 %``, ``0.0 %``."""
    return f"{share:+.1f} %" if abs(share) >= 0.05 else "0.0 %"


def _grown(size_bytes: int | None) -> str:
    """What a step leaves behind."""
    return "too few steps" if size_bytes is None else format_size(size_bytes) if size_bytes else "0"


def _line(line: LineChange) -> LineRow:
    notes = []
    if line.was is not None:
        notes.append(f"was {base_name(line.was.file)}:{line.was.line}")
    if line.inner is not None:
        notes.append(f"through {line.inner}")
    if line.category:
        notes.append(plain(line.category))
    return LineRow(
        signed_size(line.change_bytes),
        visible(line_words(line)),
        "{} before, {} after".format(*told_apart(line.before_bytes, line.after_bytes)),
        visible("; ".join(notes)),
    )


def _notes(diff: Diff) -> Iterator[str]:
    old, new = diff.before.explanation.peak, diff.after.explanation.peak
    signs = {line.change_bytes > 0 for line in diff.by_line}
    if (
        old is not None
        and new is not None
        and len(signs) == 2
        and old.shape
        and new.shape
        and old.shape != new.shape
    ):
        yield visible(f"The peak may be at another moment. Before: {old.shape} After: {new.shape}")
    if diff.unattributed_bytes and diff.by_line:
        yield f"{signed_size(diff.unattributed_bytes)} have no line of yours."
    if diff.elsewhere:
        line = diff.elsewhere[0]
        yield visible(
            f"Not at the peak, but at most: {signed_size(line.most_change_bytes)} at {line_words(line)}"
            + (
                f", and {counted(len(diff.elsewhere) - 1, 'more line')}"
                if len(diff.elsewhere) > 1
                else ""
            )
            + "."
        )
    if not diff.unrelated:
        yield from _step_words(diff)
    if diff.moved_lines:
        yield (
            f"{counted(diff.moved_lines, 'line')} of {diff.aligned_lines:,} moved between the runs: aligned by function"
            " and order, which is likely, not proven."
        )
    runs = len(diff.befores), len(diff.afters)
    if max(runs) > 1:
        yield (
            f"Of {counted(runs[0], 'run')} before and {runs[1]:,} after, those with the median peak are shown; a change"
            " counts where no run of one side lies within the other side's range."
        )


def _step_words(diff: Diff) -> Iterator[str]:
    """Which steps changed, where that is not all of them alike."""
    both = [
        (row.step, row.after_bytes - row.before_bytes)
        for row in diff.by_step
        if row.before_bytes is not None and row.after_bytes is not None
    ]
    changed = [(step, change) for step, change in both if change]
    if not changed or len(both) < 2:
        return
    sizes = {change for _step, change in changed}
    if len(changed) == len(both) and len(sizes) == 1:
        yield f"Every step's peak: {signed_size(sizes.pop())} requested."
    elif len(changed) <= _STEPS_SHOWN < len(both):
        words = ", ".join(f"step {step} {signed_size(change)}" for step, change in changed)
        yield f"Only these steps' peaks changed: {words}."
    else:
        low, high = min(sizes), max(sizes)
        yield (
            f"The peaks of {len(changed):,} of {counted(len(both), 'step')} changed, by {signed_size(low)} to"
            f" {signed_size(high)}."
        )


def _next(diff: Diff) -> tuple[str, str]:
    """What to do with the answer."""
    after = quoted(diff.after.source)
    record = f"vramlens run -o longer.vram {program_words(diff.after.explanation.recording)}"
    rise = diff.peak_change
    if diff.same_file or (diff.unrelated and diff.after.failure is None):
        what = "a recording from before the change, to compare this one with"
        return what, f"vramlens diff BEFORE.vram {after}"
    if diff.after.failure is not None:
        return "why it runs out of memory", f"vramlens explain {after}"
    if diff.growth_after:
        return f"what keeps the {format_size(diff.growth_after)} a step", f"vramlens leaks {after}"
    if diff.growth_before and diff.growth_after is None:
        return "record more steps, to see whether the growth is gone", record
    if rise is not None and rise.change_bytes > 0:
        return (
            f"who holds the {format_size(rise.change_bytes)} more",
            f"vramlens explain {after} --by stack",
        )
    if (
        diff.before.failure is not None
        and diff.after.explanation.steps.count < diff.before.explanation.steps.count
    ):
        return "record more steps, to see that it does not fail", record
    kept = format_size(diff.counters["allocated"].after_bytes)
    return (
        f"keep it at {kept}, in every pull request",
        f"vramlens check {after} --budget vram.toml --update",
    )
