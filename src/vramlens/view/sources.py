"""Source lines around the user's lines, where the program's files are at hand when the page is
written.

A recording may come from anyone and name any file, and a page may be given to anyone: only Python
files below one folder are read, by default the current one, and none in hidden folders.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

from vramlens.ground.source_code import last_line_of
from vramlens.report.wording import visible
from vramlens.trace import Frame

_AROUND = 4
_MOST_LINES = 600
_MOST_BYTES = 4 << 20
_LONGEST_LINE = 240


class Sources:
    """The files below one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.realpath(folder)
        self._files: dict[str, list[str] | None] = {}
        self._functions: dict[str, list[tuple[int, int, str]]] = {}

    def around(self, frames: Iterable[Frame]) -> dict[str, dict[str, object]]:
        """By ``file:line``, the lines around it: {first, lines}; without those that are not at
        hand.

        A file that has changed, or another of the same name, would mislead: a line counts only
        where it still lies in the function that the recording names.
        """
        excerpts: dict[str, dict[str, object]] = {}
        for frame in frames:
            if len(excerpts) >= _MOST_LINES:
                break
            file, line = frame.file, frame.line
            lines = self._lines(file)
            if (
                lines is None
                or not 0 < line <= len(lines)
                or not self._is_in(file, line, frame.function)
            ):
                continue
            first = max(1, line - _AROUND)
            shown = [
                visible(text.expandtabs(4)[:_LONGEST_LINE])
                for text in lines[first - 1 : line + _AROUND]
            ]
            excerpts[f"{visible(file)}:{line}"] = {"first": first, "lines": shown}
        return excerpts

    def _lines(self, file: str) -> list[str] | None:
        if file not in self._files:
            path = self._find(file)
            self._files[file] = _read(path) if path is not None else None
        return self._files[file]

    def _is_in(self, file: str, line: int, function: str) -> bool:
        if file not in self._functions:
            self._functions[file] = _functions("\n".join(self._lines(file) or ()))
        around = [span for span in self._functions[file] if span[0] <= line <= span[1]]
        if function.startswith("<") and function != "<module>":  # a lambda, a comprehension
            return True
        innermost = max(around, default=(0, 0, "<module>"))[2]
        return innermost == function.rsplit(".", 1)[-1]

    def _find(self, file: str) -> Path | None:
        """The file below the folder whose path ends like the recorded one, by the longest end
        that there is.
        """
        if not file.endswith(".py") or "\0" in file:
            return None
        parts = [part for part in re.split(r"[/\\]+", file) if part not in ("", ".")]
        if _has_hidden(parts):
            return None
        for start in range(max(0, len(parts) - 16), len(parts)):
            path = os.path.realpath(os.path.join(self._folder, *parts[start:]))
            if self._may_be_read(path):
                return Path(path)
        return None

    def _may_be_read(self, path: str) -> bool:
        """True for a Python file below the folder, outside of hidden folders."""
        if os.path.commonpath((path, self._folder)) != self._folder:
            return False
        inside = os.path.relpath(path, self._folder).split(os.sep)
        return path.endswith(".py") and not _has_hidden(inside) and os.path.isfile(path)


def _has_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _functions(text: str) -> list[tuple[int, int, str]]:
    """The functions of a file: first line (decorators included), last line, name; none where it
    is not Python.
    """
    try:
        with warnings.catch_warnings():
            # About the user's file: none of this program's business.
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [
        (
            min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]),
            last_line_of(node),
            node.name,
        )
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    ]


def _read(path: Path) -> list[str] | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError:
        return None
    if len(data) > _MOST_BYTES:
        return None
    # Lines as Python counts them: str.splitlines would also break at a form feed.
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode("utf-8", "replace").split("\n")
