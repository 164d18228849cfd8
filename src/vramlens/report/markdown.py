"""An explanation as GitHub Markdown: the same content in the same order as the text, nothing cut but by ``top``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramlens.report.story import Claim, Figure, Story, story_of
from vramlens.report.tables import DEFAULT_TOP, Row, Table
from vramlens.report.wording import place_name, share
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation

_SPECIAL = re.compile(r"[\\`*\[\]<>#|~]|_+")
# What is to be typed becomes code: settings and arguments, calls, names in torch, options.
_VALUE = r"=(?:[^\s`,;:.()]|[,;:.](?=[^\s`()]))+"
_CODE = re.compile(
    r"(?<![\w.])(?:"
    r"(?:[A-Za-z_]\w*\.[\w.]*\w|[A-Za-z_]\w*_\w+)\([^()`]*\)|[A-Za-z_][\w.]*\(\)"
    rf"|[A-Za-z_][\w.]*{_VALUE}"
    r"|torch(?:\.\w+)+"
    rf"|(?<!-)--[a-z][\w-]*(?:{_VALUE})?"
    r")"
)
_SHELL = ("vramlens", "dmesg", "df", "ulimit")
# A mention or a reference in a comment would notify people and link issues that have nothing to do with it.
_ENTITIES = {"&": "&amp;", "@": "&#64;"}


def to_markdown(explanation: Explanation, by: str = "line", top: int | None = None) -> str:
    """The answer as Markdown; memory grouped by one of ``tables.GROUPINGS``, ``top`` rows of it (10 by default)."""
    story = story_of(explanation, by)
    blocks = [
        f"**{escaped(story.headline)}**",
        *([escaped(" ".join(story.sentences))] if story.sentences else []),
        *_figures(story.figures),
        *([escaped(" ".join(story.origin))] if story.origin else []),
        *_held(story, DEFAULT_TOP if top is None else top),
        *_ledger(story),
        *_claims(story.claims),
        *_listed("What would not help", story.refuted),
        *_listed("Also", story.notes),
        *_listed("Grows with every step", story.growth),
        *([escaped(story.steps)] if story.steps else []),
        *_listed("Not known", story.unknown),
        f"**Next**, {escaped(story.next.why)}{':' if story.next.lines else '.'}",
        *([fenced(story.next.lines)] if story.next.lines else []),
    ]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is; what stands between single backticks becomes code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its pair is just a character
        return _with_code(text)
    return "".join(code(part) if i % 2 else _with_code(part) for i, part in enumerate(parts))


def _with_code(text: str) -> str:
    done, end = "", 0
    for found in _CODE.finditer(text):
        done += _escaped(text[end : found.start()]) + code(found[0])
        end = found.end()
    return done + _escaped(text[end:])


def _escaped(text: str) -> str:
    text = "".join(_ENTITIES.get(char, char) for char in text)
    return _SPECIAL.sub(_shown, text).replace(r"&\#64;", "&#64;")


def _shown(found: re.Match[str]) -> str:
    """A special character with its backslash; underscores inside a word mean nothing and are left alone."""
    text = found.string
    inside = text[found.start() - 1 : found.start()].isalnum() and text[found.end() : found.end() + 1].isalnum()
    return found[0] if inside and found[0][0] == "_" else "".join(f"\\{char}" for char in found[0])


def code(text: str) -> str:
    """A code span that holds any text, also inside a table."""
    if not text:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", r"\|")


def fenced(lines: tuple[str, ...]) -> str:
    """Lines as a block of code."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join((f"{fence}sh" if lines[0].split(" ")[0] in _SHELL else fence, *lines, fence))


def grid(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: int) -> str:
    """A table whose first ``right`` columns are aligned to the right."""
    rule = tuple("---:" if i < right else "---" for i in range(len(header)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def _figures(figures: tuple[Figure, ...]) -> list[str]:
    rows = [(format_size(figure.size_bytes), escaped(figure.words)) for figure in figures]
    return [grid(("size", "what"), rows, 1)] if rows else []


def _held(story: Story, top: int) -> list[str]:
    if story.table is None:
        return []
    title = f"### {escaped(story.table_title)}, by {story.table.by}"
    table = story.table.cut(top)
    if table.empty:
        return [title, escaped(table.empty)]
    blocks = [title, _table(table)]
    if table.cut_note:
        blocks.append(escaped(f"… {table.cut_note}"))
    if table.inferred_note:
        blocks.append(escaped(table.inferred_note))
    if table.by == "stack":
        blocks += [_stack(number, row) for number, row in enumerate(table.rows, 1)]
    return blocks


def _table(table: Table) -> str:
    rows = [*table.rows, *([table.rest] if table.rest else [])]
    inferred = any(row.inferred_bytes for row in rows)
    counts = any(row.allocations is not None for row in rows)
    header = ["size", "share"] + ["count"] * counts + ["inferred"] * inferred
    right = len(header)
    header += [table.by] + [table.note_header] * bool(table.note_header)
    body: list[tuple[str, ...]] = []
    for row in rows:
        cells = [
            format_size(row.bytes),
            share(row.bytes, table.total_bytes).replace("<", "&lt;").replace(">", "&gt;"),
        ]
        cells += [f"{row.allocations:,}" if row.allocations is not None else ""] * counts
        cells += [share(row.inferred_bytes, row.bytes) if row.inferred_bytes else ""] * inferred
        name = code(place_name(row.place)) if row.place is not None else escaped(row.name)
        cells.append(f"{name} ({', '.join(map(code, row.tensors))})" if row.tensors else name)
        cells += [escaped(row.note)] * bool(table.note_header)
        body.append(tuple(cells))
    return grid(tuple(header), body, right)


def _stack(number: int, row: Row) -> str:
    frames = tuple(place_name(frame) for frame in row.frames)
    return f"Stack {number}, {format_size(row.bytes)}:\n\n{fenced(frames)}"


def _ledger(story: Story) -> list[str]:
    if not story.ledger:
        return []
    total = format_size(sum(row.size_bytes for row in story.ledger))
    verb = f"were{story.ledger_when}" if story.ledger_when else "are"
    return [f"### Where the GPU's {total} {verb}", *_figures(story.ledger)]


def _claims(claims: tuple[Claim, ...]) -> list[str]:
    return ["### What to do", "\n".join(_claim(n, claim) for n, claim in enumerate(claims, 1))] if claims else []


def _claim(number: int, claim: Claim) -> str:
    sure = "" if claim.verdict in ("proven", "not a problem") else f"{claim.verdict.capitalize()}: "
    lines = [f"{number}. {sure}{escaped(claim.title)}"]
    lines += [f"   - {escaped(text)}" for text in claim.evidence]
    return "\n".join([*lines, f"   - **Do:** {escaped(claim.fix)}"])


def _listed(title: str, items: tuple[str, ...]) -> list[str]:
    return [f"### {title}", "\n".join(f"- {escaped(item)}" for item in items)] if items else []
