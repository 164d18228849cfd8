"""Words broken into the lines of a plain answer, which prints itself without a console."""

from __future__ import annotations

import textwrap
from typing import TextIO

from vramlens.ground.own_line import terminal_width

WIDTH = 80
"""Columns of an answer that does not know where it is shown."""


def wrapped_lines(text: str, width: int = WIDTH) -> list[str]:
    """The lines of a text, as far in as it begins and the further ones two columns more; [""] of
    one without words. A word that is too long stays whole: it may be a path to click on.
    """
    words = text.lstrip()
    indent = text[: len(text) - len(words)]
    return lines_of_words(words, width, indent, indent + "  ") or [""]


def lines_of_words(text: str, width: int, first: str = "", further: str = "") -> list[str]:
    """The lines of a text, whose words all stay whole: they may be there to copy.

    Args:
        first, further: what the first line and the others begin with.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def answer_width(stream: TextIO) -> int:
    """The columns of a plain answer on a stream: fewer where that is a narrower terminal."""
    return min(terminal_width(stream) or WIDTH, WIDTH)
