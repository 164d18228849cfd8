"""A screen: how much room it has, and what every report prints on it in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from vramlens.foreign_text import one_line
from vramlens.report.layout import Layout

if TYPE_CHECKING:
    from rich.console import Console

SCREEN_LINES = 24
"""What an answer keeps to where it can: the lines of a terminal that nobody made larger."""
_COMMAND = "  vramlens "


def layout_of(console: Console) -> Layout:
    """What fits text into a console's width, with the letters that it can show."""
    return Layout(console.width, ascii_only=not console.encoding.startswith("utf"))


def room_of(console: Console) -> int:
    """The lines to keep to: 24, or on a terminal one less, for the prompt that follows, and more
    on a larger one.
    """
    return max(SCREEN_LINES, console.height) - 1 if console.is_terminal else SCREEN_LINES


def show(console: Console, lines: Iterable[Text]) -> None:
    """Prints lines as they are."""
    for line in lines:
        console.print(_harmless(line), soft_wrap=True, highlight=False)


def _harmless(line: Text) -> Text:
    """The line, whatever it holds, as one line that steers nothing."""
    plain = one_line(line.plain)
    return line if plain == line.plain else Text(plain, style=line.style)


def broken_lines(text: str, layout: Layout) -> Iterator[Text]:
    """The lines of a text; those wider than the screen go on below, two cells further in.

    A command to paste (``  vramlens …``) stays whole.
    """
    for line in text.splitlines():
        words = line.lstrip(" ")
        indent = line[: len(line) - len(words)]
        if cell_len(line) <= layout.width or line.startswith(_COMMAND):
            yield Text(line)
        else:
            yield from map(Text, layout.wrap(words, first=indent, rest=f"{indent}  "))


def command_lines(command: str, layout: Layout) -> Iterator[Text]:
    """A command to paste; one too wide goes on after a backslash, before its options."""
    line, *options = command.split(" --")
    line = f"  {line}"
    for option in options:
        if cell_len(line) + cell_len(option) + 5 > layout.width:  # with " --" and " \\"
            yield Text(f"{line} \\")
            line = f"    --{option}"
        else:
            line += f" --{option}"
    yield Text(line)
