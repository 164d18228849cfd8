"""Stacks: runs of frames, innermost first, each stored once; and which line of each is the
user's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.ground.place import LONGEST_NAME, PACKAGES, Place
from vramlens.ground.place import is_user_file as is_user_file
from vramlens.trace.strings import NO_TEXT, Strings

NO_STACK = 0xFFFFFFFF

# PyTorch and what only passes calls on: a library's own line lies outside of it.
PLUMBING = re.compile(
    rf"[/\\]{PACKAGES}[/\\](?:torch|vramlens|functorch|torchgen|triton)[/\\]|^<(?!ipython-input)|^$|^\?\?"
    r"|[/\\]torch[/\\](?:nn|optim|autograd|cuda|utils|_dynamo|_inductor|_functorch|_ops|amp|fx|func|functional|_tensor)"
    r"(?:[/\\]|\.py)"
    rf"|[/\\](?:lib|Lib|lib64)[/\\]python3?(?:\.\d+)?t?[/\\](?!{PACKAGES})"
    r"|torchinductor_|[/\\]torch_compile_debug[/\\]|__compiled_fn|(?:^|[/\\])fx_generated_"
    r"|\.(?:cpp|cc|c|cu|cuh|h|hpp|cxx|so|pyx)(?:$|[.:])"
)
_PYTHON_FILE = re.compile(r"\.pyw?$|^<")


def _is_python_file(file: str) -> bool:
    return _PYTHON_FILE.search(file) is not None


def is_code_file(file: str) -> bool:
    """Whether a file is the user's or a library's own, not PyTorch's plumbing."""
    return is_user_file(file) or PLUMBING.search(file[-LONGEST_NAME:]) is None


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack: the file as the recording names it, the line (from 1) and the
    function.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def place(self) -> Place:
        """The same as a place of the program."""
        return Place(self.file, self.line, self.function)


def user_frame_of(frames: Iterable[Frame]) -> Frame | None:
    """The first frame of the user's own code; None where there is none."""
    return next((frame for frame in frames if is_user_file(frame.file)), None)


@dataclass(frozen=True, eq=False)
class Stacks:
    """All distinct stacks of a recording.

    Attributes:
        strings: the texts that the frame columns refer to.
        frame_file, frame_function: text ids, one row a frame.
        frame_line: line numbers, from 1; 0 where unknown.
        frames: frame ids of all stacks, one stack after the other, innermost frame first.
        starts: where each stack begins in ``frames``; one element more than there are stacks.
    """

    strings: Strings
    frame_file: NDArray[np.uint32]
    frame_function: NDArray[np.uint32]
    frame_line: NDArray[np.int64]
    frames: NDArray[np.uint32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def frame(self, frame: int) -> Frame:
        """The frame of an id."""
        return Frame(
            self.strings[int(self.frame_file[frame])],
            int(self.frame_line[frame]),
            self.strings[int(self.frame_function[frame])],
        )

    def of(self, stack: int) -> list[Frame]:
        """The frames of a stack, innermost first; empty for NO_STACK."""
        if stack == NO_STACK:
            return []
        return [
            self.frame(int(frame))
            for frame in self.frames[self.starts[stack] : self.starts[stack + 1]]
        ]

    def mark_frames(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """One flag a frame: whether ``file:function`` matches the pattern."""
        names, name_of_frame = self._functions
        matches = [pattern.search(name) is not None for name in names]
        return np.array(matches, np.bool_)[name_of_frame]

    @cached_property
    def _functions(self) -> tuple[list[str], NDArray[np.int64]]:
        """The distinct ``file:function`` (the end of a very long one), and which of them each
        frame is.
        """
        pairs, name_of_frame = np.unique(
            self.frame_file.astype(np.uint64) << np.uint64(32) | self.frame_function,
            return_inverse=True,
        )
        texts = self.strings
        names = [
            f"{texts[pair >> 32][-LONGEST_NAME:]}:{texts[pair & NO_TEXT][-LONGEST_NAME:]}"
            for pair in pairs.tolist()
        ]
        return names, name_of_frame.reshape(-1)

    def any_frame(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """One flag a stack: whether any of its frames is marked."""
        return self.first_frame(flags) >= 0

    def within(self, pattern: re.Pattern[str], stack: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """One flag a row: whether the pattern matches ``file:function`` of a frame of its stack;
        not where it has none.
        """
        return self.through(self.mark_frames(pattern), stack)

    def through(self, flags: NDArray[np.bool_], stack: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """One flag a row: whether a frame of its stack is marked; not where it has none."""
        return np.append(self.any_frame(flags), False)[np.minimum(stack, len(self))]

    def first_frame(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The innermost marked frame of each stack, as a frame id; -1 where none is marked."""
        return self._pick(flags, innermost=True)

    def last_frame(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The outermost marked frame of each stack, as a frame id; -1 where none is marked."""
        return self._pick(flags, innermost=False)

    def _pick(self, flags: NDArray[np.bool_], *, innermost: bool) -> NDArray[np.int64]:
        places = np.flatnonzero(flags[self.frames])
        stacks = np.searchsorted(self.starts, places, side="right") - 1
        if innermost:
            places, stacks = places[::-1], stacks[::-1]
        picked = np.full(len(self), -1, np.int64)
        picked[stacks] = self.frames[places]  # of several assignments to one stack, the last stays
        return picked

    @cached_property
    def user_frames(self) -> NDArray[np.bool_]:
        """One flag a frame: whether it is the user's own code."""
        return self._frames_in(is_user_file)

    def _frames_in(self, is_such: Callable[[str], bool]) -> NDArray[np.bool_]:
        """One flag a frame: whether its file is such a one; each file is asked about once."""
        files, file_of_frame = np.unique(self.frame_file, return_inverse=True)
        texts = [self.strings[file] for file in files.tolist()]
        flags = np.array([is_such(text) for text in texts], np.bool_)
        return flags[file_of_frame.reshape(-1)]

    @cached_property
    def has_python(self) -> NDArray[np.bool_]:
        """Whether each stack has a Python frame; one of C++ alone (``stacks="all"``) says little
        of the program.
        """
        return self.any_frame(self._frames_in(_is_python_file))

    @cached_property
    def user_frame(self) -> NDArray[np.int64]:
        """The user line of each stack: its innermost user frame, as a frame id; -1 where it has
        none.
        """
        return self.first_frame(self.user_frames)

    @cached_property
    def code_frames(self) -> NDArray[np.bool_]:
        """One flag a frame: whether it is somebody's code rather than PyTorch's plumbing: the
        user's own or a library's.
        """
        return self._frames_in(is_code_file)

    @cached_property
    def code_frame(self) -> NDArray[np.int64]:
        """The line of code of each stack: its innermost frame outside of PyTorch's plumbing, as a
        frame id; -1 where it has none.
        """
        return self.first_frame(self.code_frames)
