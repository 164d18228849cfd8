"""The story of an explanation: the answer first, then the evidence, then what to do.

Where the explanation of a failure has little room on a screen, what matters least goes first; who
holds the memory and what to do stay to the last, and of what to do two ways.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramlens.report.document import (
    NO_HELP,
    Blank,
    Claims,
    Command,
    Cut,
    Document,
    Figure,
    Figures,
    Fit,
    Form,
    Heading,
    Items,
    Part,
    Sentences,
    Tone,
)
from vramlens.report.explain.advice import next_command
from vramlens.report.explain.answer_words import (
    failure_figures,
    has_failed,
    headline,
    holders_title,
    sentences,
)
from vramlens.report.explain.finding_words import (
    growth_sentences,
    ledger_figures,
    ledger_when,
    sorted_findings,
    steps_sentence,
    unknown_sentences,
)
from vramlens.report.explain.holder_tables import DEFAULT_TOP, table_of
from vramlens.report.explain.origin import command_of, origin_of
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation

_FIGURE_NAMES = ("size", "what", "", "")
_ALL_BY = f"explain --top {DEFAULT_TOP}"
_Changes = Mapping[str, Any]
_GONE: _Changes = {"shown": False}
_WIDE = 100
"""Columns that lie far apart need their names; where they are close the units beside the numbers
do.
"""
LADDER: tuple[Mapping[str, _Changes], ...] = (
    {"origin": _GONE},
    {"whole device": _GONE},
    {"holders": {"frames": 4}},
    {"claims": {"has_evidence": False}},
    {
        "claims": {"top": 3, "refuted_top": 3},
        "notes": {"top": 2},
        "unknown": {"top": 2},
        "growth": {"top": 2},
    },
    {"steps": _GONE},
    {"notes": _GONE},
    {"holders": {"has_meanings": False}},
    {"holders": {"top": 6, "frames": 2}},
    {"unknown": {"top": 1}, "growth": {"top": 1}},
    {"claims": {"has_titles": False}},
    {"holders": {"top": 4, "frames": 1}},
    {"unknown": _GONE, "claims": {"top": 2, "refuted_top": 2}},
    {"gap above the figures": _GONE},
    {"claims": {"refuted_top": 1}},
    {"holders": {"top": 3}},
    {"gaps": _GONE},
    {"holders": {"header_from": _WIDE}},
    {"holders": {"top": 2}},
    {"claims": {"refuted_top": 0}},
    {"holders": {"header_from": math.inf}},
    {"growth": _GONE},
    {"ledger": _GONE},
    {"holders": {"top": 1}},
    {"opening": {"is_brief": True}},
    {"figures": {"has_said": False}},
    {"claims": {"top": 1}},
)
"""By step, the parts that change, and what becomes of them."""


def explanation_document(
    explanation: Explanation, by: str = "line", top: int | None = None
) -> Document:
    """The story in parts; that of a failure fits a screen, unless rows are asked for.

    Args:
        by: what the memory is grouped by, one of ``GROUPINGS``.
        top: how many rows to show; by default 10, and after a failure as many as there is room for.
    """
    failed = has_failed(explanation)
    opening, steps = sentences(explanation), steps_sentence(explanation)
    tone = Tone.BAD if failed else Tone.PLAIN
    gap, all_by = Blank(cuts=cuts_of("gaps")), _all_by(explanation, _ALL_BY)
    parts: list[Part] = [
        Heading(headline(explanation), tone=tone),
        _opening(explanation) if failed else Sentences(opening, is_paragraph=True),
        Blank(cuts=cuts_of("gap above the figures")),
        _figures(explanation),
        gap,
        Sentences(origin_of(explanation.recording), is_paragraph=True, cuts=cuts_of("origin")),
        *_command(explanation),
        gap,
        *_holders(explanation, by, top),
        gap,
        *_ledger(explanation),
        gap,
        *_findings(explanation, gap),
        gap,
        *_listed("Grows with every step", growth_sentences(explanation), "growth", all_by),
        gap,
        Sentences((steps,) if steps else (), cuts=cuts_of("steps")),
        gap,
        *_listed("Not known", unknown_sentences(explanation), "unknown", all_by),
        gap,
        next_command(explanation),
    ]
    return Document(tuple(parts), Fit.EVERYWHERE if failed and top is None else Fit.NOWHERE)


def _opening(explanation: Explanation) -> Sentences:
    """How a failure came to that; where there is little room, without a word on earlier ones."""
    texts, brief = sentences(explanation), sentences(explanation, with_earlier=False)
    return Sentences(
        (" ".join(texts),) if texts else (),
        is_paragraph=True,
        brief=(" ".join(brief),) if brief else (),
        cuts=cuts_of("opening"),
    )


def _figures(explanation: Explanation) -> Figures:
    """The figures of a failure; those that the headline has go where there is little room."""
    said = headline(explanation)

    def is_said(row: Figure) -> bool:
        is_there = re.search(rf"(?<![\d.]){re.escape(row.text)}", said) is not None
        return is_there and not row.words.startswith("reserved")  # that row says more

    rows = tuple(replace(row, is_said=is_said(row)) for row in failure_figures(explanation))
    return Figures(rows, _FIGURE_NAMES, cuts=cuts_of("figures"))


def _command(explanation: Explanation) -> Iterator[Part]:
    """Yields the command that made the recording, where it is known."""
    command = command_of(explanation.recording)
    if command:
        yield Command(
            "Command",
            (command,),
            is_broken="'" not in command,  # what is quoted may not go on after a backslash
            is_next=False,
            cuts=cuts_of("origin"),
        )


def _holders(explanation: Explanation, by: str, top: int | None) -> Iterator[Part]:
    """Yields who holds the memory; nothing where the input cannot tell."""
    if explanation.heap is not None:
        yield replace(
            table_of(explanation.heap, by),
            title=holders_title(explanation),
            top=DEFAULT_TOP if top is None else top,
            all_by=_all_by(explanation, "explain --top"),
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
    all_by = _all_by(explanation, _ALL_BY)
    yield Claims(claims, all_by, refuted=refuted_below, cuts=cuts_of("claims"))
    if not refuted_below:
        yield gap
        yield from _listed(NO_HELP, refuted, "", all_by)
    yield gap
    yield from _listed("Also", notes, "notes", all_by)


def _all_by(explanation: Explanation, command: str) -> str:
    """The command that shows all; "" where no recording was written that it could read."""
    return command if explanation.recording.source else ""


def _listed(title: str, texts: tuple[str, ...], name: str, all_by: str) -> Iterator[Part]:
    """Yields a titled list; ``name`` says what becomes of it where there is little room."""
    if texts:
        cuts = cuts_of(name)
        yield Heading(title, level=3, cuts=tuple(cut for cut in cuts if "shown" in cut.changes))
        yield Items(texts, mark="  - ", hang=4, all_by=all_by, cuts=cuts)


def cuts_of(part_name: str) -> tuple[Cut, ...]:
    """The cuts of a part of an explanation."""
    return tuple(
        Cut(step, rung[part_name]) for step, rung in enumerate(LADDER) if part_name in rung
    )
