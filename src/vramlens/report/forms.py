"""The forms of an answer: a document, data, the text of ``print``, the HTML of a notebook."""

from __future__ import annotations

import io
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vramlens.foreign_text import html_text, without_controls

if TYPE_CHECKING:
    from vramlens.report.document import Document

# Imported when an answer is drawn: an answer costs only its own report.
_REPORTS = {
    "Answer": ("replay.story.replay_document", "replay.json.answer_to_json"),
    "Check": ("check.story.check_document", "check.json.check_to_json"),
    "Comparison": ("ranks.story.comparison_document", "ranks.json.comparison_to_json"),
    "Diff": ("diff.story.diff_document", "diff.json.diff_to_json"),
    "Explanation": ("explain.story.explanation_document", "explain.json.to_json"),
    "Profile": ("profile.story.profile_document", "profile.json.profile_to_json"),
    "RecordedLeakReport": ("leaks.story.leaks_document", "leaks.json.leaks_to_json"),
    "Tuning": ("replay.tuning_story.tuning_document", "replay.json.tuning_to_json"),
}
"""By the class of an answer, the functions of its report: one makes a document of it, one data."""
_WIDTH = 100
_BOX = (
    "border:1px solid #8884;border-radius:6px;padding:.6rem .8rem;overflow-x:auto;"
    "font-family:ui-monospace,monospace;font-size:.9em;line-height:1.4;white-space:pre"
)


def document_of(answer: object, **options: Any) -> Document:
    """An answer as a document; ``options`` are what its report lets one choose.

    Raises:
        TypeError: it is not an answer of vramlens.
    """
    document: Document = _function(answer, 0)(answer, **options)
    return document


def data_of(answer: object, **options: Any) -> dict[str, Any]:
    """An answer as the object that ``--json`` prints (docs/json.md).

    Raises:
        TypeError: it is not an answer of vramlens.
    """
    data: dict[str, Any] = _function(answer, 1)(answer, **options)
    return data


def text_form(answer: object) -> str:
    """The text that the command line prints for an answer, 100 columns wide and without colors.

    Raises:
        TypeError: it is not an answer of vramlens.
    """
    from rich.console import Console

    from vramlens.report.screen import SCREEN_LINES
    from vramlens.report.text import print_document

    page = io.StringIO()
    console = Console(file=page, width=_WIDTH, height=SCREEN_LINES, color_system=None)
    print_document(document_of(answer), console)
    return without_controls(page.getvalue())


def html_form(answer: object) -> str:
    """The same as HTML for a notebook: the answer in bold, then the evidence. No scripts."""
    return html_box(text_form(answer))


def html_box(text: str) -> str:
    """Lines as one box of HTML, the first in bold."""
    headline, *evidence = (html_text(line) for line in text.rstrip("\n").split("\n"))
    lines = "\n".join([f"<b>{headline}</b>", *evidence])
    return f'<div class="vramlens" style="{_BOX}">{lines}</div>'


def _function(answer: object, at: int) -> Any:
    name = type(answer).__name__
    if name not in _REPORTS:
        raise TypeError(f"{name} is not an answer of vramlens")
    module, _, function = _REPORTS[name][at].rpartition(".")
    return getattr(import_module(f"vramlens.report.{module}"), function)
