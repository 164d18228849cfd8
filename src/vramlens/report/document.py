"""A document: an answer in parts, before it is fitted to a screen, an issue or a page.

A part says what it is and what goes first where there is little room; ``text``, ``markdown`` and
``html`` say how it looks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, Flag, auto
from typing import Any

from vramlens.units import format_size

TO_DO = "What to do"
NO_HELP = "What will not help"


class Form(Flag):
    """The forms of an answer that a part belongs to."""

    TEXT = auto()
    MARKDOWN = auto()
    HTML = auto()
    ALL = TEXT | MARKDOWN | HTML


class LastColumn(Enum):
    """How a table's last column finds its room on a screen."""

    WRAPPED = auto()
    CUT = auto()
    CUT_INSIDE = auto()
    AS_A_NAME = auto()
    AS_IT_IS = auto()


@dataclass(frozen=True, slots=True)
class Cut:
    """One thing that goes where there is little room.

    Attributes:
        step: when: of all cuts in a document, those of the lowest step are made first.
        changes: the fields of the part, and what they become.
    """

    step: int
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a document.

    Attributes:
        forms: the forms that have it.
        cuts: what goes first, in the order of their steps.
        shown: False once it has gone.
    """

    forms: Form = Form.ALL
    cuts: tuple[Cut, ...] = ()
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Blank(Part):
    """An empty line on a screen; never the first nor the last, and never two in a row."""

    forms: Form = field(default=Form.TEXT, kw_only=True)


class Tone(Enum):
    """Whether a heading is good news, bad news or an open question."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Heading(Part):
    """The answer (level 1) or the title of a part (2, and 3 where it has a rank in Markdown).

    Attributes:
        badge: stands before it in Markdown.
        tone: colours it on a screen.
    """

    text: str
    level: int = 1
    badge: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Sentences(Part):
    """Sentences, each on lines of its own on a screen.

    Attributes:
        label: stands before each: ``Fix: ``.
        hang: of a sentence's further lines, in cells; None is below its first word.
        is_paragraph: they are one paragraph in Markdown.
        is_aside: they are about what stands above them.
        style: of the screen's lines.
        brief: what a screen shows in their place where ``is_brief``.
    """

    texts: tuple[str, ...]
    label: str = ""
    hang: int | None = field(default=None, kw_only=True)
    is_paragraph: bool = field(default=False, kw_only=True)
    is_aside: bool = field(default=False, kw_only=True)
    style: str = field(default="", kw_only=True)
    brief: tuple[str, ...] = field(default=(), kw_only=True)
    is_brief: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Items(Part):
    """A list; indented on a screen, with bullets elsewhere.

    Attributes:
        mark: what an item's first line begins with on a screen.
        hang: of an item's further lines, in cells.
        title: what stands over it in Markdown, in the same block.
        top: how many are shown on a screen; None is all.
        all_by: the option that shows all.
    """

    texts: tuple[str, ...]
    mark: str = field(default="  ", kw_only=True)
    hang: int = field(default=2, kw_only=True)
    top: int | None = field(default=None, kw_only=True)
    all_by: str = field(default="", kw_only=True)
    title: str = field(default="", kw_only=True)
    style: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, what it is, and beside or below that what it was and where.

    Attributes:
        bytes: the figure itself where it is a size; its bar on a page has a sign.
        is_said: whether the answer's first sentences name it already.
    """

    text: str
    words: str
    detail: str = ""
    note: str = ""
    bytes: int = 0
    is_said: bool = False


def size_figure(size_bytes: int, words: str) -> Figure:
    """The figure of a size."""
    return Figure(format_size(size_bytes), words, bytes=size_bytes)


@dataclass(frozen=True, slots=True)
class Figures(Part):
    """Figures aligned to the right, each before its words.

    Attributes:
        names: of the four columns in Markdown.
        has_said: whether a screen shows those that were said already.
    """

    rows: tuple[Figure, ...]
    names: tuple[str, ...] = ("", "", "", "")
    has_said: bool = field(default=True, kw_only=True)

    def screen_rows(self) -> tuple[Figure, ...]:
        """The rows that a screen shows."""
        return tuple(row for row in self.rows if self.has_said or not row.is_said)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        is_right: its cells are aligned to the right.
        width: what it has at least; ``narrow_width`` where the screen is narrow.
        least: down to which width its cells are cut in their middle; None: they never are.
    """

    name: str
    is_right: bool = True
    width: int = field(default=0, kw_only=True)
    narrow_width: int | None = field(default=None, kw_only=True)
    least: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Table(Part):
    """Rows under named columns.

    Attributes:
        columns: all of them; the last has words of any length.
        rows: their cells, the most important first.
        last: how the last column finds its room.
        title: what the table shows; on a screen it names the last column.
        noun: what a row is, for what is left out.
        top: how many rows are shown; None is all.
        heights: of rows that are moments: fewer of them are the highest of as many parts.
        empty: why there are no rows.
        note: what needs saying about all of them.
        left_out: how many rows are not there, below the second column.
        hang: of the last column's further lines, in cells; None is below the second column.
        last_room: the cells that the last column is worth, before another is cut.
        legend: words of cells, and what each means; told below the table where a row that is shown
            has the word.
        narrow: what stands in its place on a screen of less than ``least_width`` cells.
        margin: before the first column.
        header_style: of the line that names the columns.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    last: LastColumn
    title: str = field(default="", kw_only=True)
    noun: str = field(default="", kw_only=True)
    top: int | None = field(default=None, kw_only=True)
    heights: tuple[int, ...] = field(default=(), kw_only=True)
    empty: str = field(default="", kw_only=True)
    note: str = field(default="", kw_only=True)
    left_out: str = field(default="", kw_only=True)
    hang: int | None = field(default=None, kw_only=True)
    last_room: int = field(default=0, kw_only=True)
    legend: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    narrow: Table | None = field(default=None, kw_only=True)
    least_width: int = field(default=0, kw_only=True)
    margin: str = field(default="  ", kw_only=True)
    header_style: str = field(default="dim", kw_only=True)

    def top_rows(self) -> tuple[tuple[str, ...], ...]:
        """The rows that are shown."""
        count = len(self.rows) if self.top is None else self.top
        if not self.heights or count >= len(self.rows):
            return self.rows[:count]
        bounds = [len(self.rows) * part // count for part in range(count + 1)]
        return tuple(
            self.rows[max(range(first, last), key=lambda row: self.heights[row])]
            for first, last in itertools.pairwise(bounds)
        )

    def meanings(self) -> Iterator[str]:
        """Yields what the words mean that rows shown have."""
        cells = [cell for row in self.top_rows() for cell in row]
        return (meaning for word, meaning in self.legend if any(word in cell for cell in cells))


@dataclass(frozen=True, slots=True)
class Claim:
    """Something to change: what is so, what that rests on, what to do.

    Attributes:
        brief: what to do where it stands alone.
    """

    title: str
    evidence: tuple[str, ...]
    fix: str
    brief: str = ""


@dataclass(frozen=True, slots=True)
class Claims(Part):
    """What to do, numbered; and below it what will not help.

    Attributes:
        all_by: the option that shows all.
        top: how many are shown on a screen; None is all.
        has_titles: what is so is shown on a screen; else what to do alone.
        has_evidence: what they rest on is shown on a screen.
        refuted: what will not help; ``refuted_top`` of it is shown on a screen.
    """

    claims: tuple[Claim, ...]
    all_by: str
    top: int | None = None
    has_titles: bool = True
    has_evidence: bool = True
    refuted: tuple[str, ...] = ()
    refuted_top: int | None = None


@dataclass(frozen=True, slots=True)
class Drawing(Part):
    """Bars of the heights of values, a labelled row each.

    Attributes:
        rows: a label and its values, from 0 to ``full``.
        most_columns: more values than these share columns, of which the highest counts.
    """

    rows: tuple[tuple[str, tuple[int, ...]], ...]
    full: int
    most_columns: int
    forms: Form = field(default=Form.TEXT, kw_only=True)


@dataclass(frozen=True, slots=True)
class Command(Part):
    """Lines to paste, and why: of the one next step, none where ``why`` says it all.

    Attributes:
        why: what it brings, with the bytes to expect; ends without a full stop.
        is_broken: a command too wide for the screen goes on after a backslash.
        is_next: whether it is the next step, not a command that ran.
    """

    why: str
    lines: tuple[str, ...]
    is_broken: bool = False
    is_next: bool = field(default=True, kw_only=True)

    @property
    def title(self) -> str:
        """Why, as it stands above the lines, without a full stop."""
        return f"Next, {self.why}" if self.is_next else self.why


class Fit(Enum):
    """Where an answer is cut to what one screen has room for."""

    NOWHERE = auto()
    TERMINALS = auto()
    EVERYWHERE = auto()


@dataclass(frozen=True, slots=True)
class Document:
    """An answer.

    Attributes:
        fit: where it is cut, unless all of it is asked for.
    """

    parts: tuple[Part, ...]
    fit: Fit = Fit.NOWHERE

    def in_form(self, form: Form) -> list[Part]:
        """The parts that are shown in a form."""
        return [part for part in self.parts if part.shown and form in part.forms]

    def cut_steps(self) -> list[int]:
        """The steps of all cuts, the first to be made first."""
        return sorted({cut.step for part in self.parts for cut in part.cuts})

    def after_cut(self, step: int) -> Document:
        """The document without what goes at a step."""
        return replace(self, parts=tuple(_after_cut(part, step) for part in self.parts))


def _after_cut(part: Part, step: int) -> Part:
    for cut in part.cuts:
        if cut.step == step:
            part = replace(part, **cut.changes)
    return part


def cut_whole(step: int) -> tuple[Cut, ...]:
    """The cut of a part that goes as a whole."""
    return (Cut(step, {"shown": False}),)


def alternatives(variants: Sequence[Sequence[Part]]) -> Iterator[Part]:
    """Yields variants of which each takes the place of the one before where there is less room."""
    last_step = len(variants) - 1
    for step, variant in enumerate(variants):
        comes = (Cut(step, {"shown": True}),) if step else ()
        goes = cut_whole(step + 1) if step < last_step else ()
        for part in variant:
            yield replace(part, shown=not step, cuts=(*comes, *goes, *part.cuts))
