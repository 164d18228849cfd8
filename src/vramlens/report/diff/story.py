"""The story of a diff: the answer, the figures, the lines, what else differs, what is next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramlens.analyses.compare.diff_findings import (
    different_work,
    headline,
    is_headed_by_work,
    is_small_growth,
    line_words,
    numbers_of_both,
    problem_words,
    signed_size,
    told_apart,
)
from vramlens.analyses.compare.growth_changes import run_growth
from vramlens.analyses.leaks.growth import ENOUGH_STEPS
from vramlens.ground.place import base_name
from vramlens.report.diff.diff_notes import notes_of
from vramlens.report.diff.job_parts import job_parts
from vramlens.report.document import (
    Blank,
    Column,
    Command,
    Document,
    Figure,
    Figures,
    Form,
    Heading,
    Items,
    LastColumn,
    Part,
    Sentences,
    Table,
)
from vramlens.report.leaks.story import predict_again, program_words
from vramlens.report.text import DIM
from vramlens.report.wording import and_more, plain, quoted, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.compare.diff_answer import CounterChange, Diff, LineChange
    from vramlens.analyses.compare.growth_changes import GrowthChange
    from vramlens.analyses.explanation import Explanation
    from vramlens.analyses.finding import Finding

_FIGURE_NAMES = ("change", "line", "", "")
_MEANINGS = {"reserved": "info only"}
_LEAST_SHARE = 0.001
"""Lines whose change is a smaller share of all changes are summed up, not listed."""


def diff_document(diff: Diff, top: int = 10) -> Document:
    """The answer in parts, ``top`` lines of it."""
    why, command = _next(diff)
    parts: list[Part] = [] if diff.job is None else list(job_parts(diff.job))
    parts += [
        Heading(visible(headline(diff)), level=1 if diff.job is None else 3),
        Sentences(tuple(sentences(diff)), is_paragraph=True),
        *_problem_parts(_came_title(diff), tuple(map(_came_words, diff.came))),
        *_problem_parts(
            _went_title(diff), tuple(visible(problem_words(problem)) for problem in diff.went)
        ),
    ]
    growth, figures = list(_growth_parts(diff, top)), [Blank(), _figure_table(diff)]
    lines = list(_line_parts(diff, top))
    parts += [*figures, *lines, *growth] if is_small_growth(diff) else [*growth, *figures, *lines]
    parts.append(Items(tuple(notes_of(diff)), style=DIM))
    if diff.others:
        title = Heading("Other differences", level=2)
        differences = tuple(visible(other.words) for other in diff.others)
        parts += [Blank(), title, Items(differences, hang=4)]
    sources = (f"Before: {diff.before.source}", f"After: {diff.after.source}")
    parts += [
        Blank(),
        Command(why, (command,)),
        Sentences(sources, is_aside=True, forms=Form.HTML),
    ]
    return Document(tuple(parts))


def _growth_parts(diff: Diff, top: int) -> Iterator[Part]:
    """Yields the lines whose growth changed, ``top`` of them."""
    if diff.growth_by_line:
        yield Blank()
        yield Heading("Changed growth, by line (bytes per step)", level=2)
        yield Figures(tuple(map(_growth_line, diff.growth_by_line[:top])), _FIGURE_NAMES)


def _line_parts(diff: Diff, top: int) -> Iterator[Part]:
    """Yields the lines that changed, ``top`` of those that tell something; of the others how many
    there are.
    """
    total = sum(abs(line.change_bytes) for line in diff.by_line)
    telling = [line for line in diff.by_line if abs(line.change_bytes) >= _LEAST_SHARE * total]
    listed = telling[:top]
    if listed:
        title = "Different" if diff.unrelated else "Changed"
        yield Blank()
        yield Heading(f"{title} at the peak, by line (requested bytes)", level=2)
        yield Figures(tuple(map(_line, listed)), _FIGURE_NAMES)
    unlisted = diff.by_line[len(listed) :]
    if unlisted:
        change = signed_size(sum(line.change_bytes for line in unlisted))
        option = f"--top {len(telling)}" if len(telling) > len(listed) else "--json"
        left_out = and_more(len(unlisted), "line", option, detail=f"{change} in total")
        yield Sentences((left_out,), is_aside=True)


def _problem_parts(title: str, problems: tuple[str, ...]) -> Iterator[Part]:
    if problems:
        yield Blank()
        yield Heading(title, level=2)
        yield Items(problems, hang=4)


def _came_title(diff: Diff) -> str:
    if diff.before.failure is not None:
        return "Seen only in the later run (may not be new: the earlier run failed first)"
    return "New problems"


def _went_title(diff: Diff) -> str:
    if diff.after.failure is not None:
        return "Seen only in the earlier run (may not be gone: the later run failed first)"
    return "Gone"


def _came_words(problem: Finding) -> str:
    """A problem that is new, and what to do about it."""
    words = problem_words(problem)
    return visible(f"{words}. Fix: {problem.fix}" if problem.fix else words)


def _growth_line(growth: GrowthChange) -> Figure:
    before, after = (_growth_words(size) for size in (growth.before_bytes, growth.after_bytes))
    return Figure(
        text=signed_size(growth.change_bytes),
        words=visible(str(growth.place or "no recorded line")),
        detail=f"{before} before, {after} after",
        bytes=growth.change_bytes,
    )


def _figure_table(diff: Diff) -> Table:
    """The figures of both runs: name, before, after, change, and what it means where it has to be
    said.
    """
    columns = (
        Column("", is_right=False),
        Column("before"),
        Column("after"),
        Column("change"),
        Column("", is_right=False),
    )
    return Table(columns, tuple(_figures(diff)), LastColumn.WRAPPED)


def sentences(diff: Diff) -> Iterator[str]:
    """What stands below the headline: what is not an exact figure, which request failed, growth
    where it is left out.
    """
    if diff.unrelated:
        yield numbers_of_both(diff)
    if diff.workload and not is_headed_by_work(diff):
        yield visible(different_work(diff))
    yield from _lower_bounds(diff)
    if diff.before.failure is not None and diff.after.failure is None:
        yield _gone_failure(diff)
        if diff.growth_before and diff.growth_after is not None and not diff.unrelated:
            before, after = format_size(diff.growth_before), format_size(diff.growth_after)
            yield f"Growth: {before} per step before, {after} after."
    yield from _stopped_at_failure(diff)


def _stopped_at_failure(diff: Diff) -> Iterator[str]:
    """Yields what the peaks mean where only one of the runs failed."""
    runs = (("earlier", diff.before), ("later", diff.after))
    failed = [name for name, run in runs if run.failure is not None]
    if len(failed) == 1:
        yield f"The {failed[0]} run needed more than its peak shows, because it stopped there."


def _lower_bounds(diff: Diff) -> Iterator[str]:
    for name, run in (("earlier", diff.before), ("later", diff.after)):
        peak = run.explanation.peak
        if peak is not None and "requested_bytes" not in peak.exact:
            why = "memory was already in use before its first event"
            if run.explanation.recording.missing:
                why = "that recording is incomplete"
            yield f"The peaks of the {name} run are lower bounds: {why}."


def _gone_failure(diff: Diff) -> str:
    """Which request failed before, and what is known of the run after."""
    failure = diff.before.failure
    assert failure is not None
    where = f" at {failure.place}" if failure.place is not None else ""
    size = failure.requested_bytes or failure.tried_bytes
    request = f"A request of {format_size(size)}" if size else "A request"
    steps = diff.after.explanation.steps.count
    ending = f"{counted(steps, 'step')} and no failure" if steps else "no failure"
    return visible(f"{request} failed before{where}. After: {ending}.")


def _figures(diff: Diff) -> Iterator[tuple[str, ...]]:
    for name, counter in diff.counters.items():
        if name != "active":
            yield _counter(name, counter)
    growth = run_growth(diff)
    if growth is not None and not growth.is_certain:
        change = signed_size(growth.after_bytes - growth.before_bytes)
        before, after = _growth_words(growth.before_bytes), _growth_words(growth.after_bytes)
        yield "growth/step", before, after, change, "not certain to be a leak"
    elif diff.growth_before or diff.growth_after:
        before, after = _growth_words(diff.growth_before), _growth_words(diff.growth_after)
        yield "growth/step", before, after, _growth_change(diff), ""


def _counter(name: str, counter: CounterChange) -> tuple[str, ...]:
    change = signed_size(counter.change_bytes) if counter.change_bytes else "none"
    notes = [_MEANINGS.get(name, "")]
    if counter.change_bytes and counter.before_bytes:
        notes.insert(0, _percent(100 * counter.change_bytes / counter.before_bytes))
    if counter.noise_bytes is not None:
        notes.append(f"repeated runs differ by {format_size(counter.noise_bytes)}")
    before, after = told_apart(counter.before_bytes, counter.after_bytes)
    return f"peak {name}", before, after, change, "; ".join(filter(None, notes))


def _growth_change(diff: Diff) -> str:
    if diff.growth_before is None or diff.growth_after is None:
        return ""
    change = diff.growth_after - diff.growth_before
    return signed_size(change) if change else "none"


def _percent(share: float) -> str:
    """A change in percent, with its sign unless it rounds to nothing: ``-1.5%``, ``0.0%``."""
    return f"{share:+.1f}%" if abs(share) >= 0.05 else "0.0%"


def _growth_words(size_bytes: int | None) -> str:
    """What a step leaves behind."""
    if size_bytes is None:
        return "too few steps"
    return format_size(size_bytes) if size_bytes else "0"


def _line(line: LineChange) -> Figure:
    notes = []
    if line.was is not None:
        notes.append(f"was {base_name(line.was.file)}:{line.was.line}")
    if line.inner is not None:
        notes.append(f"through {line.inner}")
    if line.category:
        notes.append(plain(line.category))
    before, after = told_apart(line.before_bytes, line.after_bytes)
    return Figure(
        text=signed_size(line.change_bytes),
        words=visible(line_words(line)),
        detail=f"{before} before, {after} after",
        note=visible("; ".join(notes)),
        bytes=line.change_bytes,
    )


def _next(diff: Diff) -> tuple[str, str]:
    """Why, and the command: what to do with the answer."""
    after = quoted(diff.after.source)
    record = _longer_recording(diff.after.explanation)
    if _tells_no_change(diff):
        why = "record a run from before the change and compare it with this one"
        return why, f"vramlens diff BEFORE.vram {after}"
    if diff.after.failure is not None:
        return "find out why it runs out of memory", f"vramlens explain {after}"
    if diff.growth_after and not is_small_growth(diff):
        return (
            f"see what each step leaves behind ({format_size(diff.growth_after)})",
            f"vramlens leaks {after}",
        )
    if diff.growth_before and diff.growth_after is None:
        return "record more steps to see whether the growth is gone", record
    rise = diff.peak_change
    if rise is not None and rise.change_bytes > 0:
        why = f"see what uses the additional {format_size(rise.change_bytes)}"
        return why, f"vramlens explain {after} --by stack"
    if _ends_earlier_without_failure(diff):
        return "record more steps to make sure that it does not fail", record
    peak = format_size(diff.counters["allocated"].after_bytes)
    command = f"vramlens check {after} --budget vram.toml --update"
    return f"enforce this limit of {peak} in every pull request", command


def _longer_recording(explanation: Explanation) -> str:
    """The command that records, or predicts, more steps of the run after."""
    meta = explanation.recording.meta
    if meta.is_prediction:
        return predict_again(meta.command, max(2 * explanation.steps.count, ENOUGH_STEPS))
    return f"vramlens run -o longer.vram {program_words(explanation.recording)}"


def _tells_no_change(diff: Diff) -> bool:
    return diff.same_file or (diff.unrelated and diff.after.failure is None)


def _ends_earlier_without_failure(diff: Diff) -> bool:
    before, after = diff.before.explanation.steps.count, diff.after.explanation.steps.count
    return diff.before.failure is not None and after < before
