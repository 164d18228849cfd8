"""The loops of the user's files, by the line at which each turn begins."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import basename
from types import CodeType, FrameType

from vramlens.ground.source_code import LOOPS, last_line_of
from vramlens.live.heap.objects import is_users
from vramlens.live.source.source_tree import tree_of


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in the user's source: its file, and first and last line."""

    file: str
    line: int
    last_line: int

    @property
    def place(self) -> str:
        """Its place as it is printed."""
        return f"{basename(self.file)}:{self.line}"

    def runs_in(self, frame: FrameType) -> bool:
        """Whether a function is inside of it."""
        line = frame.f_lineno or 0
        return frame.f_code.co_filename == self.file and self.line <= line <= self.last_line


class UserLoops:
    """Knows the loops of each file that it was asked for."""

    def __init__(self) -> None:
        self._by_file: dict[str, Mapping[int, Loop]] = {}

    def of_file(self, code: CodeType) -> Mapping[int, Loop]:
        """The loops of the user's file that a function is in, by first line; empty for others'."""
        file = code.co_filename
        loops = self._by_file.get(file)
        if loops is None:
            loops = self._by_file[file] = _loops_in(file) if is_users(file) else {}
        return loops


def _loops_in(file: str) -> dict[int, Loop]:
    tree = tree_of(file)
    statements = () if tree is None else ast.walk(tree)
    return {
        node.lineno: Loop(file, node.lineno, last_line_of(node))
        for node in statements
        if isinstance(node, LOOPS)
    }
