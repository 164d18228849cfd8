"""The story of an explanation: the answer first, then the evidence, then what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.report.document import (
    NO_HELP,
    Blank,
    Claims,
    Command,
    Document,
    Figures,
    Form,
    Heading,
    Items,
    Part,
    Sentences,
    Tone,
)
from vramlens.report.explain.advice import next_step
from vramlens.report.explain.answer_words import (
    failure_figures,
    has_failed,
    headline,
    holders_title,
    sentences,
)
from vramlens.report.explain.cuts import cuts_of
from vramlens.report.explain.finding_words import (
    growth_sentences,
    ledger_figures,
    ledger_when,
    sorted_findings,
    steps_sentence,
    unknown_sentences,
)
from vramlens.report.explain.foreign_advice import step_for_others
from vramlens.report.explain.holder_tables import DEFAULT_TOP, table_of
from vramlens.report.explain.origin import origin_of
from vramlens.report.explain.predicted_step import step_to_predict
from vramlens.report.explain.replayed_advice import step_after_replay
from vramlens.report.markdown import markdown_of
from vramlens.report.screen import room_of
from vramlens.report.text import print_document
from vramlens.report.wording import visible
from vramlens.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.explanation import Explanation


def render_explanation(
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
    is_fitted = has_failed(explanation) and top is None and not whole
    room = room_of(console) if is_fitted else None
    print_document(explanation_document(explanation, by, top), console, room)


def explanation_to_markdown(
    explanation: Explanation, by: str = "line", top: int | None = None
) -> str:
    """The answer as Markdown; memory grouped by one of ``GROUPINGS``, ``top`` rows of it (10 by
    default).
    """
    return markdown_of(explanation_document(explanation, by, top))


def explanation_document(
    explanation: Explanation, by: str = "line", top: int | None = None
) -> Document:
    """The story in parts."""
    failed = has_failed(explanation)
    opening, steps = sentences(explanation), steps_sentence(explanation)
    tone = Tone.BAD if failed else Tone.PLAIN
    gap = Blank(cuts=cuts_of("gaps"))
    parts: list[Part] = [
        Heading(headline(explanation), tone=tone),
        Sentences((" ".join(opening),) if failed and opening else opening, is_paragraph=True),
        Blank(cuts=cuts_of("gap above the figures")),
        Figures(failure_figures(explanation), _FIGURE_NAMES),
        gap,
        Sentences(origin_of(explanation.recording), is_paragraph=True, cuts=cuts_of("origin")),
        gap,
        *_holders(explanation, by, top),
        gap,
        *_ledger(explanation),
        gap,
        *_findings(explanation, gap),
        gap,
        *_listed("Grows with every step", growth_sentences(explanation), "growth", explanation),
        gap,
        Sentences((steps,) if steps else (), cuts=cuts_of("steps")),
        gap,
        *_listed("Not known", unknown_sentences(explanation), "unknown", explanation),
        gap,
        next_command(explanation),
    ]
    return Document(tuple(parts))


_FIGURE_NAMES = ("size", "what", "", "")
_ALL_BY = f"explain --top {DEFAULT_TOP}"


def _holders(explanation: Explanation, by: str, top: int | None) -> Iterator[Part]:
    """Yields who holds the memory; nothing where the input cannot tell."""
    if explanation.heap is not None:
        yield replace(
            table_of(explanation.heap, by),
            title=holders_title(explanation),
            top=DEFAULT_TOP if top is None else top,
            all_by="explain --top",
            cuts=cuts_of("holders"),
        )


def _ledger(explanation: Explanation) -> Iterator[Part]:
    """Yields where the device's memory is.

    After a failure whose holders are known that only says the figures again, unless it was
    measured.
    """
    figures = ledger_figures(explanation)
    if not figures:
        return
    is_known = has_failed(explanation) and explanation.heap is not None
    forms = Form.MARKDOWN if is_known and not ledger_when(explanation) else Form.ALL
    cuts = (*cuts_of("whole device"), *cuts_of("ledger")) if is_known else cuts_of("ledger")
    total = format_size(sum(figure.bytes for figure in figures))
    verb = f"were{ledger_when(explanation)}" if ledger_when(explanation) else "are"
    yield Heading(f"Where the GPU's {total} {verb}", level=3, forms=forms, cuts=cuts)
    yield Figures(figures, _FIGURE_NAMES, forms=forms, cuts=cuts)


def _findings(explanation: Explanation, gap: Blank) -> Iterator[Part]:
    """Yields what to do, what will not help, which of a failure belong together, and what else is
    so.
    """
    claims, refuted, notes = sorted_findings(explanation.findings)
    refuted_below = refuted if has_failed(explanation) else ()
    yield Claims(claims, _ALL_BY, refuted=refuted_below, cuts=cuts_of("claims"))
    if not refuted_below:
        yield gap
        yield from _listed(NO_HELP, refuted, "", explanation)
    yield gap
    yield from _listed("Also", notes, "notes", explanation)


def _listed(
    title: str, texts: tuple[str, ...], name: str, explanation: Explanation
) -> Iterator[Part]:
    """Yields a titled list; ``name`` says what becomes of it where there is little room."""
    if texts:
        cuts = cuts_of(name)
        yield Heading(title, level=3, cuts=tuple(cut for cut in cuts if "shown" in cut.changes))
        yield Items(texts, mark="  - ", hang=4, all_by=_ALL_BY, cuts=cuts)


def next_command(explanation: Explanation) -> Command:
    """The one next step."""
    step = (
        step_after_replay(explanation)
        or step_to_predict(explanation)
        or step_for_others(explanation)
        or next_step(explanation)
    )
    return Command(visible(step.why), tuple(map(visible, step.lines)))
