"""The forms of an answer in a program: the text of ``print``, the HTML of a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rich.console import Console

from vramlens.foreign_text import html_text, without_controls
from vramlens.report.screen import SCREEN_LINES

_WIDTH = 100
_BOX = (
    "border:1px solid #8884;border-radius:6px;padding:.6rem .8rem;overflow-x:auto;"
    "font-family:ui-monospace,monospace;font-size:.9em;line-height:1.4;white-space:pre"
)


def text_form(answer: object) -> str:
    """The text that the command line prints for an answer, 100 columns wide and without colors.

    Raises:
        TypeError: it is no answer of vramlens.
    """
    name = type(answer).__name__
    if name not in _DRAWN_BY:
        raise TypeError(f"{name} is not an answer of vramlens")
    module, function = _DRAWN_BY[name]
    draw: Callable[[Any, Console], None] = getattr(
        import_module(f"vramlens.report.{module}"), function
    )
    page = io.StringIO()
    draw(answer, Console(file=page, width=_WIDTH, height=SCREEN_LINES, color_system=None))
    return without_controls(page.getvalue())


def html_form(answer: object) -> str:
    """The same as HTML for a notebook: the answer in bold, then the evidence. No scripts."""
    return html_box(text_form(answer))


def html_box(text: str) -> str:
    """Lines as one box of HTML, the first in bold."""
    headline, *evidence = (html_text(line) for line in text.rstrip("\n").split("\n"))
    lines = "\n".join([f"<b>{headline}</b>", *evidence])
    return f'<div class="vramlens" style="{_BOX}">{lines}</div>'


# Imported when an answer is printed: an answer costs only its own report.
_DRAWN_BY = {
    "Answer": ("replay.story", "render_answer"),
    "Check": ("check.story", "render_check"),
    "Comparison": ("ranks.story", "render_comparison"),
    "Diff": ("diff.story", "render_diff"),
    "Explanation": ("explain.story", "render_explanation"),
    "Profile": ("profile.story", "render_profile"),
    "RecordedLeakReport": ("leaks.story", "render_leaks"),
    "Tuning": ("replay.tuning_story", "render_tuning"),
}
"""By the class of an answer, the module of reports that draws it and the function."""
