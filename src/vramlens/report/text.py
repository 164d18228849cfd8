"""A document as lines for a terminal, fitted into its width and into the lines that it has.

A recording has the whole path of each line, and an answer would name one file in several forms:
whole in a sentence, without folders in a table. So paths below the working directory are relative to
it, as a person would type them. JSON and the formats for editors keep whole paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.text import Text

from vramlens.report.document import (
    NO_HELP,
    TO_DO,
    Blank,
    Claims,
    Command,
    Document,
    Drawing,
    Figures,
    Fit,
    Form,
    Heading,
    Items,
    Sentences,
    Table,
    Tone,
)
from vramlens.report.holder_lines import holder_lines
from vramlens.report.holders import HeldMemory
from vramlens.report.layout import Layout, right
from vramlens.report.screen import command_lines, layout_of, room_of, show
from vramlens.report.table_layout import table_lines
from vramlens.report.wording import and_more

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.report.document import Claim, Part

BOLD = "bold"
TONES = {Tone.GOOD: "bold green", Tone.BAD: "bold red", Tone.OPEN: "bold yellow"}
DIM = "dim"
_WIDE = 100
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", ".:-=+*#@"
_NO_PATH_BEFORE = r"(?<![\w./\\~-])"


def print_document(document: Document, console: Console, *, whole: bool = False) -> None:
    """Prints a document; ``whole`` prints all of it, however many lines it takes."""
    is_cut = document.fit is Fit.EVERYWHERE or (
        document.fit is Fit.TERMINALS and console.is_terminal
    )
    room = room_of(console) if is_cut and not whole else None
    show(console, fit_to_screen(near(document), layout_of(console), room))


def fit_to_screen(document: Document, layout: Layout, room: int | None) -> list[Text]:
    """The lines of a document, with no more cut than has to be."""
    lines = _lines(document, layout)
    if room is None:
        return lines
    for step in document.cut_steps():
        if len(lines) <= room:
            break
        document = document.after_cut(step)
        lines = _lines(document, layout)
    return lines


def _lines(document: Document, layout: Layout) -> list[Text]:
    lines: list[Text] = []
    is_gap_due = False
    for part in document.in_form(Form.TEXT):
        if isinstance(part, Blank):
            is_gap_due = True
            continue
        part_lines = list(_part_lines(part, layout))
        if not part_lines:
            continue
        if is_gap_due and lines:
            lines.append(Text(""))
        is_gap_due = False
        lines += part_lines
    return lines


def _part_lines(part: Part, layout: Layout) -> Iterator[Text]:
    draw: Callable[[Any, Layout], Iterator[Text]] = _DRAWN_BY[type(part)]
    return draw(part, layout)


def wrapped(
    layout: Layout, text: str, *, first: str = "", rest: str | None = None, style: str = ""
) -> Iterator[Text]:
    """Yields the lines of a text in one style."""
    for line in layout.wrap(text, first=first, rest=rest):
        yield Text(line, style=style)


def _heading(heading: Heading, layout: Layout) -> Iterator[Text]:
    return wrapped(layout, heading.text, style=TONES.get(heading.tone, BOLD))


def _sentences(part: Sentences, layout: Layout) -> Iterator[Text]:
    first = f"  {part.label}" if part.is_aside else part.label
    indent = None if part.hang is None else " " * part.hang
    for text in part.brief if part.is_brief else part.texts:
        yield from wrapped(layout, text, first=first, rest=indent, style=part.style)


def _items(items: Items, layout: Layout) -> Iterator[Text]:
    shown, indent = items.texts[: items.top], " " * items.hang
    for text in shown:
        yield from wrapped(layout, text, first=items.mark, rest=indent, style=items.style)
    yield from _more(len(items.texts) - len(shown), items.all_by, layout)


def _more(hidden: int, all_by: str, layout: Layout) -> Iterator[Text]:
    """How many more there are, and what shows them."""
    if hidden:
        yield from wrapped(layout, and_more(hidden, "", all_by), first="  ")


def _figures(figures: Figures, layout: Layout) -> Iterator[Text]:
    """Each figure and its words; what it was stands beside them where there is room."""
    rows = figures.screen_rows()
    numbers = right([row.text for row in rows])
    for number, row in zip(numbers, rows, strict=True):
        first = f"  {number}  "
        if layout.width >= _WIDE:
            words = "; ".join(filter(None, (row.words, row.detail, row.note)))
            yield from wrapped(layout, words, first=first)
            continue
        yield from wrapped(layout, row.words, first=first)
        detail = "; ".join(filter(None, (row.detail, row.note)))
        if detail:
            yield from wrapped(layout, detail, first=" " * len(first), style=DIM)


def _claims(part: Claims, layout: Layout) -> Iterator[Text]:
    claims, refuted = part.claims[: part.top], part.refuted[: part.refuted_top]
    if part.claims:
        yield Text(TO_DO, style=BOLD)
    for number, claim in enumerate(claims, 1):
        yield from _claim(f"  {number}. ", claim, part, layout)
    if refuted:
        yield Text(NO_HELP, style=BOLD)
    for text in refuted:
        yield from wrapped(layout, text, first="  - ")
    if part.claims or refuted:
        hidden = len(part.claims) - len(claims) + len(part.refuted) - len(refuted)
        yield from _more(hidden, part.all_by, layout)


def _claim(mark: str, claim: Claim, part: Claims, layout: Layout) -> Iterator[Text]:
    if not part.has_titles:
        yield from wrapped(layout, claim.brief, first=mark)
        return
    indent = " " * len(mark)
    yield from wrapped(layout, claim.title, first=mark)
    for text in claim.evidence if part.has_evidence else ():
        yield from wrapped(layout, text, first=indent)
    yield from wrapped(layout, claim.fix, first=f"{indent}Do: ")


def _drawing(drawing: Drawing, layout: Layout) -> Iterator[Text]:
    levels = _ASCII_LEVELS if layout.ascii_only else _LEVELS
    for label, values in drawing.rows:
        width = -(-len(values) // drawing.most_columns)
        columns = [max(values[at : at + width]) for at in range(0, len(values), width)]
        top, full = len(levels) - 1, max(1, drawing.full)
        bars = (levels[min(top, column * len(levels) // full)] for column in columns)
        yield Text(f"{label:>8}  {''.join(bars)}")


def _command(command: Command, layout: Layout) -> Iterator[Text]:
    """Its lines are there to be pasted, so none is ever cut or wrapped."""
    end = ":" if command.lines else "."
    yield from wrapped(layout, f"{command.title}{end}", style=BOLD if command.is_next else "")
    for line in command.lines:
        yield from command_lines(line, layout) if command.is_broken else [Text(f"  {line}")]


_DRAWN_BY: dict[type[Part], Callable[[Any, Layout], Iterator[Text]]] = {
    Heading: _heading,
    Sentences: _sentences,
    Items: _items,
    Figures: _figures,
    Table: table_lines,
    HeldMemory: holder_lines,
    Claims: _claims,
    Drawing: _drawing,
    Command: _command,
}


def near(document: Document) -> Document:
    """The document with paths relative to the working directory, but for commands to paste."""
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        return document
    if os.path.dirname(folder) == folder:  # the root: everything is below it
        return document
    below = re.compile(_NO_PATH_BEFORE + re.escape(folder + os.sep))
    parts = [part if isinstance(part, Command) else _near(part, below) for part in document.parts]
    return replace(document, parts=tuple(parts))


def _near(value: Any, below: re.Pattern[str]) -> Any:
    """A part, or what it consists of, with its texts changed."""
    if type(value) is str:  # no word of a closed vocabulary
        return below.sub("", value)
    if isinstance(value, tuple):
        return tuple(_near(item, below) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in fields(value):
            before = getattr(value, field.name)
            after = _near(before, below)
            if after != before:
                changes[field.name] = after
        return replace(value, **changes) if changes else value
    return value
