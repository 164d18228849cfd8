"""Layout: text fitted into a width in terminal cells, so that no number parts from its unit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size

from vramlens.foreign_text import one_line
from vramlens.ground.place import base_name
from vramlens.report.wording import Location, visible

# Spaces that no line may end at: between a number and what it counts, between a line and its
# function.
_UNIT = re.compile(
    r"(?<=[0-9]) (?=(?:bytes?|[KMGT]i?B|steps?|lines?|more|times|requests?|events?|[mun]?s)\b)"
)
_FUNCTION = re.compile(r"(?<=[0-9]) in (?=\S)")
_PATH = re.compile(r"^(?!\w+://).*[/\\][^/\\]+:[0-9]+")
_TO_COPY = re.compile(
    r"[(\"'`]*(?=\S*[=:/\\_.-])(?!\S*::)[\w=:/\\.,+>()\[\]~@%-]+[)\"'`;]*[.,:;]?", re.ASCII
)
"""A setting, a command's option, a path or a name: a part of it is no use, so it stays as long as it
is.
"""
_GLUE = "\N{NO-BREAK SPACE}"
_LEAST_OF_FUNCTION = 9
"""Cells: ``in main…``; less of a function's name tells nothing."""
NARROWEST = 40
_WIDEST_TEXT = 110  # sentences wider than this are hard to read


class Layout:
    """Fits text into a width.

    Args:
        width: in terminal cells; at least NARROWEST is used.
        ascii_only: where the output cannot show an ellipsis.
    """

    def __init__(self, width: int, *, ascii_only: bool = False) -> None:
        self.width = max(width, NARROWEST)
        self.ascii_only = ascii_only
        self.ellipsis = "..." if ascii_only else "…"

    def wrap(self, text: str, first: str = "", rest: str | None = None) -> list[str]:
        """The text in lines; the first begins with ``first``, the others with ``rest`` (by
        default as much space).
        """
        indent = " " * cell_len(first) if rest is None else rest
        width = min(self.width, _WIDEST_TEXT)
        room = width - cell_len(indent)
        lines, line, gap = [], first, ""
        for word in _words(one_line(text).replace("…", self.ellipsis)):
            if cell_len(word) > room and _PATH.search(word):
                path = word.lstrip("(")
                bracket = word[: len(word) - len(path)]
                word = bracket + self._path(path, max(0, room - cell_len(bracket)))
            if gap and cell_len(line) + 1 + cell_len(word) > width:
                lines.append(line)
                line, gap = indent, ""
            is_too_long = not gap and cell_len(line) + cell_len(word) > width
            if is_too_long and not _TO_COPY.fullmatch(word):
                *full, word = self._chopped(word, width - cell_len(line), room)
                for part in full:
                    lines.append(line + part)
                    line = indent
            line += gap + word
            gap = " "
        return [*lines, line]

    def _chopped(self, word: str, first_width: int, width: int) -> list[str]:
        # The line's beginning may have taken all of it.
        head = chop_cells(word, first_width)[0] if first_width > 0 else ""
        tail = word[len(head) :]
        return [head, *chop_cells(tail, width)] if tail else [head]

    def from_left(self, text: str, width: int) -> str:
        """The text, shortened at its beginning."""
        if cell_len(text) <= width:
            return text
        room = max(0, width - cell_len(self.ellipsis))
        end = ""
        for char in reversed(text):
            if cell_len(char + end) > room:
                break
            end = char + end
        return self.ellipsis + end

    def from_right(self, text: str, width: int) -> str:
        """The text, shortened at its end."""
        if cell_len(text) <= width:
            return text
        return set_cell_size(text, max(0, width - cell_len(self.ellipsis))).rstrip() + self.ellipsis

    def from_middle(self, text: str, width: int) -> str:
        """The text, shortened in its middle: names that begin, or end, alike stay apart."""
        if cell_len(text) <= width:
            return text
        head = max(0, width - cell_len(self.ellipsis)) // 2
        start = set_cell_size(text, head)
        return start + self.from_left(text, max(0, width - cell_len(start)))

    def places(self, places: Sequence[Location], width: int) -> list[str]:
        """Lines of code of one folder, without it: all of them in one form."""
        names = [self.place(place, width, always_cut=True) for place in places]
        if all(name.startswith(self.ellipsis) for name in names):
            return names
        bare = len(f"{self.ellipsis}/")
        wider = [self.place(place, width + bare, always_cut=True) for place in places]
        return [self.from_right(name.removeprefix(f"{self.ellipsis}/"), width) for name in wider]

    def place(self, place: Location, width: int, *, always_cut: bool = False) -> str:
        """A line of code: folders go first (``always_cut``: in any case), then the function; what
        tells the line, ``name.py:39``, goes last.
        """
        line = f":{place.line}" if place.line > 0 else ""
        function = f" in {visible(place.function)}" if place.function else ""
        file = visible(place.file)
        if cell_len(file + line + function) <= width and not always_cut:
            return file + line + function
        name = base_name(file) or file
        if always_cut:
            file = min(file, f"{self.ellipsis}/{name}", key=cell_len)
        if cell_len(name + line + function) > width:
            room = width - cell_len(name + line)
            function = self.from_right(function, room) if room >= _LEAST_OF_FUNCTION else ""
        return self._path(file, width - cell_len(line + function)) + line + function

    def _path(self, file: str, width: int) -> str:
        """A path without its first folders; cut inside a name only when the name alone is too
        long.
        """
        if cell_len(file) <= width:
            return file
        file = file[-4 * max(width, 1) :]  # more has no room in any case
        for cut in re.finditer(r"[/\\]", file):
            shorter = self.ellipsis + file[cut.start() :]
            if cell_len(shorter) <= width:
                return shorter
        name = base_name(file)
        return name if name and cell_len(name) <= width else self.from_left(file, width)


def _words(text: str) -> Iterator[str]:
    """Yields what no line may end in."""
    glued = _FUNCTION.sub(f"{_GLUE}in{_GLUE}", _UNIT.sub(_GLUE, text))
    for word in glued.split(" "):
        if word:
            yield word.replace(_GLUE, " ")


def right(cells: list[str]) -> list[str]:
    """Cells of one column, aligned to the right."""
    width = max(map(cell_len, cells), default=0)
    return [" " * (width - cell_len(cell)) + cell for cell in cells]


def left(cells: list[str]) -> list[str]:
    """Cells of one column, aligned to the left."""
    width = max(map(cell_len, cells), default=0)
    return [cell + " " * (width - cell_len(cell)) for cell in cells]
