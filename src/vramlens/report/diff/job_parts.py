"""The parts of a diff that are about a whole job: what sets ranks apart now, and each rank's peak."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from vramlens.analyses.compare.diff_findings import problem_words, signed_size, told_apart
from vramlens.analyses.compare.job_change import job_headline
from vramlens.report.document import (
    Blank,
    Column,
    Heading,
    Items,
    LastColumn,
    Part,
    Sentences,
    Table,
)
from vramlens.report.wording import and_more, visible
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.compare.job_change import JobChange, RankChange, RankState
    from vramlens.analyses.finding import Finding

_MOST_ROWS = 8


def job_parts(job: JobChange) -> Iterator[Part]:
    """Yields the answer about the job, and what leads over to one rank's lines."""
    yield Heading(visible(job_headline(job)))
    yield from _findings("New among the ranks", job.came)
    yield from _findings("Gone among the ranks", job.went)
    yield Blank()
    yield _table(job)
    yield Sentences(tuple(map(visible, job.notes)), "note: ")
    yield Blank()
    yield Heading(f"Rank {job.rank}, line by line", level=2)


def _findings(title: str, findings: tuple[Finding, ...]) -> Iterator[Part]:
    if findings:
        yield Blank()
        yield Heading(title, level=2)
        yield Items(tuple(visible(problem_words(finding)) for finding in findings), hang=4)


def _table(job: JobChange) -> Table:
    by_change = sorted(
        job.ranks,
        key=lambda change: (
            change.rank != job.rank,
            change.rank not in job.lost,
            not change.fails_now,
            -abs(change.change_bytes),
            change.rank,
        ),
    )
    rows = tuple(_row(change) for change in sorted(by_change[:_MOST_ROWS], key=attrgetter("rank")))
    columns = (
        Column("rank", width=5),
        Column("before"),
        Column("after"),
        Column("change"),
        Column("", is_right=False),
    )
    left_out = ""
    if len(by_change) > len(rows):
        unlisted = len(by_change) - len(rows)
        left_out = and_more(unlisted, "rank", "--json", detail="which changed less")
    return Table(columns, rows, LastColumn.AS_IT_IS, left_out=left_out)


def _row(change: RankChange) -> tuple[str, ...]:
    remarks = []
    if change.fails_now:
        remarks.append("runs out of memory now")
    if change.more_growth_bytes:
        remarks.append(f"grows {format_size(change.more_growth_bytes)} more per step")
    before, after = _sizes(change)
    words = signed_size(change.change_bytes) if change.change_bytes else "none"
    if change.before is None or change.after is None:
        words = ""
    return str(change.rank), before, after, words, "; ".join(remarks)


def _sizes(change: RankChange) -> tuple[str, str]:
    if change.before is None or change.after is None:
        return _size(change.before), _size(change.after)
    return told_apart(change.before.requested_bytes, change.after.requested_bytes)


def _size(state: RankState | None) -> str:
    return "no file" if state is None else format_size(state.requested_bytes)
