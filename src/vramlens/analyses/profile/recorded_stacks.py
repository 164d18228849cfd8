"""Stacks of a profiler's trace in a recording's form: operators, then the Python functions around
them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.profile.lifetimes import Lifetimes
from vramlens.analyses.profile.nesting import Nesting
from vramlens.analyses.profile.user_lines import Lines
from vramlens.trace import NO_STACK, Stacks, Strings
from vramlens.trace.profile import NONE, Kind, ProfilerTrace

_PACKAGES = "/.../site-packages/"
"""Stands before a file that is not the user's: the profiler names it from its package on."""
_MOST_OPERATORS = 8


class StackTable:
    """Collects stacks, each once.

    Args:
        trace: the trace.
        cpu: how its operators lie in each other.
        lines: its Python functions.
    """

    def __init__(self, trace: ProfilerTrace, cpu: Nesting, lines: Lines) -> None:
        self._trace, self._cpu, self._lines = trace, cpu, lines
        self._texts: dict[str, int] = {}
        self._frames: dict[tuple[int, int, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._chains: dict[int, tuple[int, ...]] = {}

    def of(
        self, thread: NDArray[np.int64], time_ns: NDArray[np.int64], lives: Lifetimes
    ) -> NDArray[np.uint32]:
        """The stack of each allocation; a backward one's is the operator's alone."""
        functions = self._lines.innermost(thread[lives.born], time_ns[lives.born])
        pairs = zip(lives.operator.tolist(), functions.tolist(), strict=True)
        return np.array([self._stack(*pair) for pair in pairs], np.uint32)

    def _stack(self, operator: int, function: int) -> int:
        frames = (*self._operators(operator), *self._functions(function))
        return self._stacks.setdefault(frames, len(self._stacks)) if frames else NO_STACK

    def _operators(self, row: int) -> list[int]:
        """The operator's frame and those of the operators around it, innermost first."""
        spans = self._trace.spans
        frames: list[int] = []
        while row != NONE and len(frames) < _MOST_OPERATORS:
            if spans.kind[row] == Kind.OPERATOR:
                frames.append(self._frame("", 0, self._trace.names[int(spans.name[row])]))
            row = int(self._cpu.parent[row])
        return frames

    def _functions(self, row: int) -> tuple[int, ...]:
        """The frames of a Python function and its callers, innermost first."""
        waiting = []
        while row != NONE and row not in self._chains:
            waiting.append(row)
            row = self._lines.caller(row)
        chain = self._chains.get(row, ())
        for function in reversed(waiting):
            chain = (self._function_frame(function), *chain)
            self._chains[function] = chain
        return chain

    def _function_frame(self, row: int) -> int:
        file, line, name, is_user = self._lines.function(row)
        is_in_package = not is_user and file and not file.startswith("<")
        return self._frame(f"{_PACKAGES}{file}" if is_in_package else file, line, name)

    def user_frames(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The frame ids of the user's functions, by their rows; -1 for NONE."""
        frame_of = {
            row: -1 if row == NONE else self._function_frame(row)
            for row in np.unique(rows).tolist()
        }
        return np.array([frame_of[row] for row in rows.tolist()], np.int64)

    def text(self, text: str) -> int:
        """The id of a text."""
        return self._texts.setdefault(text, len(self._texts))

    def _frame(self, file: str, line: int, function: str) -> int:
        key = (self.text(file), line, self.text(function))
        return self._frames.setdefault(key, len(self._frames))

    def stacks(self) -> Stacks:
        """All that were collected."""
        frames = np.array(list(self._frames), np.int64).reshape(-1, 3)
        texts = [text.encode("utf-8", "replace") for text in self._texts]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.uint64)
        lengths = np.cumsum([0, *map(len, self._stacks)], dtype=np.int64)
        return Stacks(
            strings=Strings(np.frombuffer(b"".join(texts), np.uint8), ends),
            frame_file=frames[:, 0].astype(np.uint32),
            frame_function=frames[:, 2].astype(np.uint32),
            frame_line=frames[:, 1],
            frames=np.array([f for stack in self._stacks for f in stack], np.uint32),
            starts=lengths,
        )
