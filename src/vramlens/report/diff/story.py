"""The story of a diff: the answer, the figures, the lines, what else differs, what is next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.analyses.compare.diff_findings import (
    different_work,
    headline,
    is_headed_by_work,
    line_words,
    numbers_of_both,
    problem_words,
    signed_size,
    told_apart,
)
from vramlens.analyses.compare.job_change import job_headline
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
    Last,
    Part,
    Sentences,
    Table,
)
from vramlens.report.html import html_of
from vramlens.report.leaks.story import program_words
from vramlens.report.markdown import markdown_of
from vramlens.report.text import DIM, print_document
from vramlens.report.wording import and_more, plain, quoted, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.compare.diff_answer import CounterChange, Diff, LineChange
    from vramlens.analyses.compare.growth_changes import GrowthChange
    from vramlens.analyses.finding import Finding

_FIGURE_NAMES = ("change", "line", "", "")
_MEANINGS = {"reserved": "info only"}
_LEAST_SHARE = 0.001
"""Lines whose change is a smaller share of all changes are summed up, not listed."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of both runs; ``note`` says what it means, where it has to."""

    name: str
    before: str
    after: str
    change: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class DiffStory:
    """All words of a diff.

    Attributes:
        headline: the answer.
        sentences: what it has to be read with.
        came, went: the problems that the run after has now, and no longer has.
        came_title, went_title: over these.
        growth: the lines whose growth is another now.
        figures, lines: the tables.
        left_out: what of the lines is not listed, in one phrase; none where all are.
        lines_title: over the lines.
        notes: how lines were aligned, where the peak is, what else changed.
        differences: what else differs between the runs.
        next_why, next_command: the one next step.
    """

    headline: str
    sentences: tuple[str, ...]
    came: tuple[str, ...]
    went: tuple[str, ...]
    came_title: str
    went_title: str
    growth: tuple[Figure, ...]
    figures: tuple[FigureRow, ...]
    lines_title: str
    lines: tuple[Figure, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    differences: tuple[str, ...]
    next_why: str
    next_command: str


def render_diff(diff: Diff, console: Console, top: int = 10) -> None:
    """Prints a diff."""
    print_document(diff_document(diff, top), console)


def diff_to_markdown(diff: Diff, top: int = 10) -> str:
    """The diff as Markdown, ``top`` lines of it."""
    return markdown_of(diff_document(diff, top))


def diff_to_html(diff: Diff, top: int = 10) -> str:
    """The diff as one HTML page, ``top`` lines of it."""
    title = headline(diff) if diff.job is None else job_headline(diff.job)
    return html_of(diff_document(diff, top), visible(title))


def diff_document(diff: Diff, top: int = 10) -> Document:
    """The story in parts, ``top`` lines of it."""
    story = story_of(diff, top)
    parts: list[Part] = [] if diff.job is None else list(job_parts(diff.job))
    parts += [
        Heading(story.headline, level=1 if diff.job is None else 3),
        Sentences(story.sentences, is_paragraph=True),
        *_problem_parts(story.came_title, story.came),
        *_problem_parts(story.went_title, story.went),
    ]
    if story.growth:
        title = Heading("Changed growth, by line (bytes per step)", level=2)
        parts += [Blank(), title, Figures(story.growth, _FIGURE_NAMES)]
    parts += [Blank(), _figure_table(story.figures)]
    if story.lines:
        title = Heading(story.lines_title, level=2)
        parts += [Blank(), title, Figures(story.lines, _FIGURE_NAMES)]
    parts += [
        Sentences(story.left_out, is_aside=True),
        Items(story.notes, style=DIM),
    ]
    if story.differences:
        title = Heading("Other differences", level=2)
        parts += [Blank(), title, Items(story.differences, hang=4)]
    sources = (f"Before: {diff.before.source}", f"After: {diff.after.source}")
    parts += [
        Blank(),
        Command(story.next_why, (story.next_command,)),
        Sentences(sources, is_aside=True, forms=Form.HTML),
    ]
    return Document(tuple(parts))


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


def _figure_table(figures: tuple[FigureRow, ...]) -> Table:
    columns = (
        Column("", is_right=False),
        Column("before"),
        Column("after"),
        Column("change"),
        Column("", is_right=False),
    )
    rows = tuple((row.name, row.before, row.after, row.change, row.note) for row in figures)
    return Table(columns, rows, Last.WRAPPED)


def story_of(diff: Diff, top: int = 10) -> DiffStory:
    """The words; ``top`` is how many lines are listed."""
    total = sum(abs(line.change_bytes) for line in diff.by_line)
    telling = [line for line in diff.by_line if abs(line.change_bytes) >= _LEAST_SHARE * total]
    listed = telling[:top]
    title = "Different" if diff.unrelated else "Changed"
    why, command = _next(diff)
    return DiffStory(
        headline=visible(headline(diff)),
        sentences=tuple(_sentences(diff)),
        came=tuple(map(_came_words, diff.came)),
        went=tuple(visible(problem_words(problem)) for problem in diff.went),
        came_title=_came_title(diff),
        went_title=_went_title(diff),
        growth=tuple(map(_growth_line, diff.growth_by_line[:top])),
        figures=tuple(_figures(diff)),
        lines_title=f"{title} at the peak, by line (requested bytes)" if listed else "",
        lines=tuple(map(_line, listed)),
        left_out=_left_out(diff.by_line[len(listed) :], len(telling), len(listed)),
        notes=tuple(notes_of(diff)),
        differences=tuple(visible(other.words) for other in diff.others),
        next_why=why,
        next_command=command,
    )


def _left_out(lines: tuple[LineChange, ...], telling: int, listed: int) -> tuple[str, ...]:
    if not lines:
        return ()
    change = signed_size(sum(line.change_bytes for line in lines))
    option = f"--top {telling}" if telling > listed else "--json"
    return (and_more(len(lines), "line", option, detail=f"{change} in total"),)


def _sentences(diff: Diff) -> Iterator[str]:
    """What stands below the headline: what is no exact figure, which request failed, growth
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


def _figures(diff: Diff) -> Iterator[FigureRow]:
    for name, counter in diff.counters.items():
        if name != "active":
            yield _counter(name, counter)
    if diff.growth_before or diff.growth_after:
        yield FigureRow(
            name="growth/step",
            before=_growth_words(diff.growth_before),
            after=_growth_words(diff.growth_after),
            change=_growth_change(diff),
        )


def _counter(name: str, counter: CounterChange) -> FigureRow:
    change = signed_size(counter.change_bytes) if counter.change_bytes else "none"
    notes = [_MEANINGS.get(name, "")]
    if counter.change_bytes and counter.before_bytes:
        notes.insert(0, _percent(100 * counter.change_bytes / counter.before_bytes))
    if counter.noise_bytes is not None:
        notes.append(f"repeated runs differ by {format_size(counter.noise_bytes)}")
    before, after = told_apart(counter.before_bytes, counter.after_bytes)
    note = "; ".join(filter(None, notes))
    return FigureRow(name=f"peak {name}", before=before, after=after, change=change, note=note)


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
    return format_size(size_bytes) if size_bytes else "none"


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
    record = f"vramlens run -o longer.vram {program_words(diff.after.explanation.recording)}"
    if _tells_no_change(diff):
        why = "record a run from before the change and compare it with this one"
        return why, f"vramlens diff BEFORE.vram {after}"
    if diff.after.failure is not None:
        return "find out why it runs out of memory", f"vramlens explain {after}"
    if diff.growth_after:
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


def _tells_no_change(diff: Diff) -> bool:
    return diff.same_file or (diff.unrelated and diff.after.failure is None)


def _ends_earlier_without_failure(diff: Diff) -> bool:
    before, after = diff.before.explanation.steps.count, diff.after.explanation.steps.count
    return diff.before.failure is not None and after < before
