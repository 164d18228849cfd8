"""The forms of an answer in a program: the text of ``print``, the HTML of a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vramlens.foreign_text import html_text, without_controls
from vramlens.report.screen import SCREEN_LINES

if TYPE_CHECKING:
    from vramlens.analyses.budget.budget import Check
    from vramlens.analyses.compare.diff import Diff
    from vramlens.analyses.explanation import Explanation
    from vramlens.analyses.leaks.leaks import LeakReport
    from vramlens.analyses.profile.profile import Profile
    from vramlens.ranks import Comparison
    from vramlens.replay import Answer, Tuning

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
    draw = _DRAWN_BY.get(type(answer).__name__)
    if draw is None:
        raise TypeError(f"{type(answer).__name__} is not an answer of vramlens")
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


def _explanation(answer: Explanation, console: Console) -> None:
    from vramlens.report.explain.text import render

    render(answer, console)


def _profile(answer: Profile, console: Console) -> None:
    from vramlens.report.profile.story import render_profile

    render_profile(answer, console)


def _leaks(answer: LeakReport, console: Console) -> None:
    from vramlens.report.leaks.story import render_leaks

    render_leaks(answer, console)


def _replay(answer: Answer, console: Console) -> None:
    from vramlens.report.replay.story import render_answer

    render_answer(answer, console)


def _tuning(answer: Tuning, console: Console) -> None:
    from vramlens.report.replay.tune import render_tuning

    render_tuning(answer, console)


def _diff(answer: Diff, console: Console) -> None:
    from vramlens.report.diff.story import render_diff

    render_diff(answer, console)


def _check(answer: Check, console: Console) -> None:
    from vramlens.report.check.story import render_check

    render_check(answer, console)


def _comparison(answer: Comparison, console: Console) -> None:
    from vramlens.report.ranks.story import render_comparison

    render_comparison(answer, console)


_DRAWN_BY: dict[str, Callable[[Any, Console], None]] = {
    "Answer": _replay,
    "Check": _check,
    "Comparison": _comparison,
    "Diff": _diff,
    "Explanation": _explanation,
    "LeakReport": _leaks,
    "Profile": _profile,
    "Tuning": _tuning,
}
