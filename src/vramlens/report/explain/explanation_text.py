"""An explanation as text for a terminal: the answer first, then the evidence, then what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from vramlens.ground.verdict import Verdict
from vramlens.report.document import Tone
from vramlens.report.explain.holder_tables import DEFAULT_TOP, HolderList, Row
from vramlens.report.explain.story import CountedFigure, FindingClaim, Story, story_of
from vramlens.report.layout import Layout, left, right
from vramlens.report.screen import layout_of, room_of, show
from vramlens.report.text import TONES
from vramlens.report.wording import capitalized, place_name, quoted, share, with_stake
from vramlens.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.explanation import Explanation

_FRAMES = 12
_WIDTH_FOR_COUNTS = 70
_WIDE = 100
_NOTE = 16
_TITLE = "bold"


def render(
    explanation: Explanation,
    console: Console,
    by: str = "line",
    top: int | None = None,
    *,
    whole: bool = False,
) -> None:
    """Prints an explanation.

    Args:
        by: what the memory is grouped by: line, module, category, phase, region or stack.
        top: how many rows to show; by default 10, and after a failure as many as 24 lines, or a
            larger terminal, have room for.
        whole: show everything after a failure, however many lines it takes; so does naming ``top``.
    """
    layout = layout_of(console)
    room = None if whole or top is not None else room_of(console)
    show(console, _Report(story_of(explanation, by), layout).lines(top, room))


@dataclass(frozen=True, slots=True)
class _Detail:
    """How much of each part is shown."""

    rows: int
    frames: int
    claims: int = 99
    titles: bool = True
    evidence: bool = True
    meanings: bool = True
    refuted: int = 99
    notes: int = 99
    unknown: int = 99
    growth: int = 99
    ledger: bool = True
    whole_device: bool = True
    origin: bool = True
    steps: bool = True
    header: bool = True
    blanks: int = 2


def _details(*, wide: bool) -> Iterator[_Detail]:
    """From all to little: what matters least in a failure goes first, who holds the memory and what
    to do last.

    Args:
        wide: columns that lie far apart need their headings; where they are close the units beside
            the numbers do.
    """
    headings = {"header": 0}
    most = DEFAULT_TOP
    detail = _Detail(most, frames=_FRAMES)
    yield detail
    changes: tuple[dict[str, int], ...] = (
        {"origin": 0},
        {"whole_device": 0},
        {"frames": 4},
        {"evidence": 0},
        {"claims": 3, "refuted": 3, "notes": 2, "unknown": 2, "growth": 2},
        {"steps": 0},
        {"notes": 0},
        {"meanings": 0},
        {"rows": min(most, 6), "frames": 2},
        {"unknown": 1, "growth": 1},
        {"titles": 0},
        {"rows": min(most, 4), "frames": 1},
        {"unknown": 0, "claims": 2, "refuted": 2},
        {"blanks": 1},
        {"refuted": 1},
        {"rows": min(most, 3)},
        {"blanks": 0},
        *([] if wide else [headings]),
        {"rows": min(most, 2)},
        {"refuted": 0},
        {"claims": 1},
        *([headings] if wide else []),
        {"growth": 0},
        {"ledger": 0},
        {"rows": 1},
    )
    for change in changes:
        detail = replace(detail, **change)  # type: ignore[arg-type]
        yield detail


class _Report:
    """One story, laid out."""

    def __init__(self, story: Story, layout: Layout) -> None:
        self.story, self.layout = story, layout

    def lines(self, top: int | None, room: int | None) -> list[Text]:
        """All lines; those of a failure fit into ``room`` lines, where there is such a limit."""
        if not self.story.failed or room is None:
            return self._composed(_Detail(DEFAULT_TOP if top is None else top, frames=_FRAMES))
        shown: list[Text] = []
        for detail in _details(wide=self.layout.width >= _WIDE):
            shown = self._composed(detail)
            if len(shown) <= room:
                break
        return shown

    def _composed(self, detail: _Detail) -> list[Text]:
        story, layout = self.story, self.layout
        headline_style = TONES[Tone.BAD] if story.failed else _TITLE
        opening = [Text(line, style=headline_style) for line in layout.wrap(story.headline)]
        opening += self._each(
            (" ".join(story.sentences),) if story.failed and story.sentences else story.sentences
        )
        figures = self._texts(self._figures(story.figures))
        sections = [
            [*opening, *figures] if detail.blanks < 2 else opening,
            figures if detail.blanks > 1 else [],
            self._each(story.origin) if detail.origin else [],
            self._held(detail),
            self._ledger(detail),
            self._claims(detail),
            []
            if story.failed
            else self._listed("What will not help", story.refuted, detail.refuted),
            self._listed("Also", story.notes, detail.notes),
            self._listed("Grows with every step", story.growth, detail.growth),
            self._texts(layout.wrap(story.steps)) if story.steps and detail.steps else [],
            self._listed("Not known", story.unknown, detail.unknown),
            self._next(),
        ]
        lines: list[Text] = []
        for section in filter(None, sections):
            if lines and detail.blanks:
                lines.append(Text(""))
            lines += section
        return lines

    def _texts(self, lines: list[str]) -> list[Text]:
        return [Text(line) for line in lines]

    def _each(self, sentences: tuple[str, ...]) -> list[Text]:
        return [Text(line) for sentence in sentences for line in self.layout.wrap(sentence)]

    def _figures(self, figures: tuple[CountedFigure, ...]) -> list[str]:
        sizes = right([format_size(figure.size_bytes) for figure in figures])
        return [
            line
            for size, figure in zip(sizes, figures, strict=True)
            for line in self.layout.wrap(figure.words, first=f"  {size}  ")
        ]

    def _held(self, detail: _Detail) -> list[Text]:
        table = self.story.table
        if table is None:
            return []
        title = [
            Text(line, style=_TITLE)
            for line in self.layout.wrap(f"{self.story.table_title}, by {table.by}")
        ]
        if table.empty:
            return [*title, *self._texts(self.layout.wrap(table.empty, first="  "))]
        return [*title, *self._texts(_table_lines(table.cut(detail.rows), self.layout, detail))]

    def _ledger(self, detail: _Detail) -> list[Text]:
        if not self.story.ledger or not detail.ledger:
            return []
        # After a failure whose holders are known it would only say the figures again, unless it was
        # measured.
        if (
            self.story.failed
            and self.story.table is not None
            and not (self.story.ledger_when and detail.whole_device)
        ):
            return []
        total = format_size(sum(row.size_bytes for row in self.story.ledger))
        verb = f"were{self.story.ledger_when}" if self.story.ledger_when else "are"
        title = Text(f"Where the GPU's {total} {verb}", style=_TITLE)
        return [title, *self._texts(self._figures(self.story.ledger))]

    def _claims(self, detail: _Detail) -> list[Text]:
        claims = self.story.claims
        refuted = self.story.refuted[: detail.refuted] if self.story.failed else ()
        lines = [
            line
            for n, claim in enumerate(claims[: detail.claims], 1)
            for line in self._claim(n, claim, detail)
        ]
        if refuted and claims:
            lines.append("What will not help")
        for text in refuted:
            lines += self.layout.wrap(text, first="  -  ")
        hidden = max(0, len(claims) - detail.claims)
        hidden += len(self.story.refuted) - len(refuted) if self.story.failed else 0
        if lines and hidden:
            lines += self._more(hidden)
        return (
            [
                Text("What to do" if claims else "What will not help", style=_TITLE),
                *(
                    Text(line, style=_TITLE if line == "What will not help" else "")
                    for line in lines
                ),
            ]
            if lines
            else []
        )

    def _more(self, hidden: int) -> list[str]:
        """How many more there are, and the command that shows them."""
        more = f"  {self.layout.ellipsis} and {hidden} more"
        source = self.story.source
        whole = f"{more}: vramlens explain {quoted(source)} --top {DEFAULT_TOP}"
        if source and cell_len(whole) <= self.layout.width:
            return [whole]
        return [f"{more} (explain with --top {DEFAULT_TOP} shows all)"]

    def _claim(self, number: int, claim: FindingClaim, detail: _Detail) -> list[str]:
        mark = f"  {number}. "
        indent = " " * len(mark)
        if not detail.titles:
            maybe = "Maybe: " if claim.verdict == Verdict.POSSIBLE else ""
            fix = f"{maybe}{claim.fix}" if maybe else capitalized(claim.fix)
            return self.layout.wrap(with_stake(fix, claim.size_bytes), first=mark)
        sure = (
            ""
            if claim.verdict in (Verdict.PROVEN, Verdict.NOT_A_PROBLEM)
            else f"{claim.verdict.capitalize()}: "
        )
        lines = self.layout.wrap(sure + _after(sure, claim.title), first=mark)
        if detail.evidence:
            lines += [
                line for text in claim.evidence for line in self.layout.wrap(text, first=indent)
            ]
        return [*lines, *self.layout.wrap(claim.fix, first=f"{indent}Do: ")]

    def _listed(self, title: str, items: tuple[str, ...], most: int) -> list[Text]:
        if not items or not most:
            return []
        lines = [line for item in items[:most] for line in self.layout.wrap(item, first="  - ")]
        if len(items) > most:
            lines += self._more(len(items) - most)
        return [Text(title, style=_TITLE), *self._texts(lines)]

    def _next(self) -> list[Text]:
        step = self.story.next
        title = f"Next, {step.why}{':' if step.lines else '.'}"
        lines = [Text(line, style=_TITLE) for line in self.layout.wrap(title)]
        return [
            *lines,
            *(Text(f"  {line}") for line in step.lines),
        ]  # never cut or wrapped: they are to be pasted


def _after(sure: str, text: str) -> str:
    """The text as it goes on after ``Likely:``; alone, it keeps its capital letter."""
    word = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if sure and word == word.capitalize() else text


def _table_lines(table: HolderList, layout: Layout, detail: _Detail) -> list[str]:
    """The rows, sizes right-aligned; columns that say nothing, or find no room, are left out."""
    rows = [*table.rows, *([table.rest] if table.rest else [])]
    header = bool(detail.header and (table.note_header or layout.width >= _WIDTH_FOR_COUNTS))
    names_of_figures = ("size", "share") if header else ("", "")
    sizes = right([names_of_figures[0], *(format_size(row.bytes) for row in rows)])
    shares = right([names_of_figures[1], *(share(row.bytes, table.total_bytes) for row in rows)])
    columns = [sizes, shares]
    if any(row.allocations is not None for row in rows) and layout.width >= _WIDTH_FOR_COUNTS:
        counts = [f"{row.allocations:,}" if row.allocations is not None else "" for row in rows]
        columns.append(
            right(["count", *counts] if header else ["", *(f"{n}x" if n else "" for n in counts)])
        )
    inferred = [share(row.inferred_bytes, row.bytes) if row.inferred_bytes else "" for row in rows]
    if any(inferred):
        bare = ["", *(f"{part} inferred" if part else "" for part in inferred)]
        columns.append(right(["inferred", *inferred] if header else bare))
    notes = (
        left([table.note_header, *(layout.from_right(row.note, _NOTE) for row in rows)])
        if table.note_header
        else []
    )
    used = (
        2
        + sum(cell_len(column[0]) + 2 for column in columns)
        + (2 + cell_len(notes[0]) if notes else 0)
    )
    names = left([table.by, *_names(rows, layout, max(layout.width - used, 12))])
    columns += [names, notes] if notes else [names]
    lines = ["  " + "  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    if header and (notes or len(columns) > 3):
        rows = [Row("", None, 0), *rows]
    else:
        lines = lines[1:]
    lines = [
        line
        for row, text in zip(rows, lines, strict=True)
        for line in (text, *_below(row, layout, detail))
    ]
    if table.cut_note:
        place = len(lines) - 1 if table.rest else len(lines)
        lines[place:place] = layout.wrap(f"{layout.ellipsis} {table.cut_note}", first="  ")
    if table.inferred_note and detail.meanings:
        lines += layout.wrap(table.inferred_note, first="  ")
    return lines


def _names(rows: list[Row], layout: Layout, width: int) -> list[str]:
    """The rows' names; where one of a folder has to lose it, all of that folder do."""
    names = [_name(row, layout, width) for row in rows]
    cut = {
        _folder(row)
        for row, name in zip(rows, names, strict=True)
        if row.place and name != row.name
    }
    return [
        layout.place(row.place, width, always_cut=True)
        if row.place and _folder(row) in cut
        else name
        for row, name in zip(rows, names, strict=True)
    ]


def _folder(row: Row) -> str:
    return re.sub(r"[^/\\]*$", "", row.place.file) if row.place else ""


def _name(row: Row, layout: Layout, width: int) -> str:
    if row.place is not None:
        return layout.place(row.place, width)
    return layout.from_right("  " * row.depth + row.label if row.label else row.name, width)


def _below(row: Row, layout: Layout, detail: _Detail) -> list[str]:
    """What is said of a row below it: the names of its tensors, the callers of its stack."""
    if row.tensors and detail.frames > 2:
        kind = "tensor" if len(row.tensors) == 1 else "tensors"
        return [
            f"      {layout.from_right(f'{kind}: ' + ', '.join(row.tensors), layout.width - 6)}"
        ]
    return _frames(row, layout, detail)


def _frames(row: Row, layout: Layout, detail: _Detail) -> list[str]:
    """The callers of a stack's innermost frame, below it."""
    callers = row.frames[1 : detail.frames]
    lines = [f"      {layout.place(frame, layout.width - 6)}" for frame in callers]
    hidden = len(row.frames) - 1 - len(callers)
    if hidden > 0 and detail.frames > 2:
        outer = (
            place_name(row.frames[-1])
            if hidden == 1
            else f"{layout.ellipsis} and {hidden} more frames"
        )
        lines.append(f"      {outer}")
    return lines
