"""An explanation as text for a terminal: the answer first, then the evidence, then what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from vramlens.ground.verdict import Verdict
from vramlens.report.document import Tone
from vramlens.report.explain.detail import MOST_FRAMES, Detail, details
from vramlens.report.explain.holder_lines import holder_lines
from vramlens.report.explain.holder_tables import DEFAULT_TOP
from vramlens.report.explain.story import CountedFigure, FindingClaim, Story, story_of
from vramlens.report.layout import Layout, right
from vramlens.report.screen import layout_of, room_of, show
from vramlens.report.text import TONES
from vramlens.report.wording import capitalized, quoted, with_stake
from vramlens.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.explanation import Explanation

_WIDE = 100
_TITLE = "bold"
_TO_DO = "What to do"
_NO_HELP = "What will not help"


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


class _Report:
    """One story, laid out."""

    def __init__(self, story: Story, layout: Layout) -> None:
        self.story, self.layout = story, layout

    def lines(self, top: int | None, room: int | None) -> list[Text]:
        """All lines; those of a failure fit into ``room`` lines, where there is such a limit."""
        if not self.story.failed or room is None:
            return self._composed(Detail(DEFAULT_TOP if top is None else top, frames=MOST_FRAMES))
        shown: list[Text] = []
        for detail in details(wide=self.layout.width >= _WIDE):
            shown = self._composed(detail)
            if len(shown) <= room:
                break
        return shown

    def _composed(self, detail: Detail) -> list[Text]:
        story, layout = self.story, self.layout
        opening, figures = self._opening(), self._texts(self._figures(story.figures))
        sections = [
            *([opening, figures] if detail.blanks > 1 else [opening + figures]),
            self._each(story.origin) if detail.origin else [],
            self._held(detail),
            self._ledger(detail),
            self._claims(detail),
            [] if story.failed else self._listed(_NO_HELP, story.refuted, detail.refuted),
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

    def _opening(self) -> list[Text]:
        """The headline and how it came to that; of a failure as one paragraph."""
        headline, sentences = self.story.headline, self.story.sentences
        style = TONES[Tone.BAD] if self.story.failed else _TITLE
        if self.story.failed and sentences:
            sentences = (" ".join(sentences),)
        return [
            *(Text(line, style=style) for line in self.layout.wrap(headline)),
            *self._each(sentences),
        ]

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

    def _held(self, detail: Detail) -> list[Text]:
        table = self.story.table
        if table is None:
            return []
        title = [
            Text(line, style=_TITLE)
            for line in self.layout.wrap(f"{self.story.table_title}, by {table.by}")
        ]
        if table.empty:
            return [*title, *self._texts(self.layout.wrap(table.empty, first="  "))]
        return [*title, *self._texts(holder_lines(table.cut(detail.rows), self.layout, detail))]

    def _ledger(self, detail: Detail) -> list[Text]:
        if not self.story.ledger or not detail.ledger:
            return []
        # After a failure whose holders are known it would only say the figures again, unless it was
        # measured.
        only_repeats = self.story.failed and self.story.table is not None
        if only_repeats and not (self.story.ledger_when and detail.whole_device):
            return []
        total = format_size(sum(row.size_bytes for row in self.story.ledger))
        verb = f"were{self.story.ledger_when}" if self.story.ledger_when else "are"
        title = Text(f"Where the GPU's {total} {verb}", style=_TITLE)
        return [title, *self._texts(self._figures(self.story.ledger))]

    def _claims(self, detail: Detail) -> list[Text]:
        """What to do; of a failure also what will not help."""
        claims = self.story.claims
        refuted = self.story.refuted if self.story.failed else ()
        lines = [_TO_DO] if claims else []
        for number, claim in enumerate(claims[: detail.claims], 1):
            lines += self._claim(number, claim, detail)
        if refuted[: detail.refuted]:
            lines.append(_NO_HELP)
        for text in refuted[: detail.refuted]:
            lines += self.layout.wrap(text, first="  -  ")
        hidden = len(claims[detail.claims :]) + len(refuted[detail.refuted :])
        if lines and hidden:
            lines += self._more(hidden)
        titles = (_TO_DO, _NO_HELP)
        return [Text(line, style=_TITLE if line in titles else "") for line in lines]

    def _more(self, hidden: int) -> list[str]:
        """How many more there are, and the command that shows them."""
        more = f"  {self.layout.ellipsis} and {hidden} more"
        source = self.story.source
        whole = f"{more}: vramlens explain {quoted(source)} --top {DEFAULT_TOP}"
        if source and cell_len(whole) <= self.layout.width:
            return [whole]
        return [f"{more} (explain with --top {DEFAULT_TOP} shows all)"]

    def _claim(self, number: int, claim: FindingClaim, detail: Detail) -> list[str]:
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
