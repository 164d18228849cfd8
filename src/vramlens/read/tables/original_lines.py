"""The lines that the user wrote, in stacks of compiled programs.

``torch.compile`` runs code that it has written itself. With ``augment_with_fx_traces=True``
(``torch.cuda.memory._snapshot``, torch/cuda/memory.py) each frame of such code names, as
``fx_original_trace``, the lines of the program that it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vramlens.trace import Frame, SideColumn, Stacks

FIELD = "fx_original_trace"
_LINE = re.compile(
    r'^[^\S\n]*File "([^"\n]{1,4096})", line (\d{1,9}), in (.{1,1000})$', re.MULTILINE
)
_MOST_LINES = 64
"""Of one frame: no program nests deeper in one operation."""
_ADDED_ALWAYS = 1 << 16
_ADDED_PER_FRAME = 8
"""A file can name one frame a million times for two bytes each. So lines are added while they are
no more than so many, and so many for each frame of a stack: stacks behind that stay as they are.
"""


def with_original_lines(stacks: Stacks, side_columns: Sequence[SideColumn]) -> Stacks:
    """The stacks, the user's lines beside each frame of code that ``torch.compile`` wrote; the
    same where the recording names none.
    """
    texts = {
        int(row): value
        for column in side_columns
        if (column.table, column.name) == ("frames", FIELD)
        for row, value in zip(column.rows.tolist(), column.values, strict=True)
        if isinstance(value, str)
    }
    lines_of_text = {text: original_lines(text) for text in set(texts.values())}
    lines_of_frame = {
        row: lines_of_text[text] for row, text in texts.items() if lines_of_text[text]
    }
    return _with_lines(stacks, lines_of_frame) if lines_of_frame else stacks


def original_lines(text: str) -> tuple[Frame, ...]:
    """The lines that a text of ``fx_original_trace`` names, innermost first."""
    matches = _LINE.findall(text[: 1 << 16])[-_MOST_LINES:]
    return tuple(Frame(file, int(line), function) for file, line, function in reversed(matches))


def _with_lines(stacks: Stacks, lines_of_frame: Mapping[int, tuple[Frame, ...]]) -> Stacks:
    count = len(stacks.frame_line)
    distinct = dict.fromkeys(line for lines in lines_of_frame.values() for line in lines)
    number = {line: count + place for place, line in enumerate(distinct)}
    texts = dict.fromkeys(text for line in distinct for text in (line.file, line.function))
    strings = stacks.strings.with_texts(list(texts))
    first = len(stacks.strings)
    text_id = {text: first + place for place, text in enumerate(texts)}
    frames, starts = _inserted(stacks, lines_of_frame, number)

    def appended(column: NDArray[np.uint32], values: list[int]) -> NDArray[np.uint32]:
        return np.append(column, np.array(values, np.uint32))

    return replace(
        stacks,
        strings=strings,
        frame_file=appended(stacks.frame_file, [text_id[line.file] for line in distinct]),
        frame_function=appended(
            stacks.frame_function, [text_id[line.function] for line in distinct]
        ),
        frame_line=np.append(stacks.frame_line, np.array([line.line for line in distinct])),
        frames=frames,
        starts=starts,
    )


def _inserted(
    stacks: Stacks, lines_of_frame: Mapping[int, tuple[Frame, ...]], number: Mapping[Frame, int]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The frames of all stacks with the user's lines behind each frame that they belong to, and
    where each stack begins.
    """
    places = np.flatnonzero(np.isin(stacks.frames, np.array(list(lines_of_frame), np.uint32)))
    count_of_frame = np.zeros(len(stacks.frame_line), np.int64)
    for frame, of_frame in lines_of_frame.items():
        count_of_frame[frame] = len(of_frame)
    counts = count_of_frame[stacks.frames[places]]
    most_added = _ADDED_ALWAYS + _ADDED_PER_FRAME * len(stacks.frames)
    places = places[np.cumsum(counts) <= most_added]
    counts = counts[: len(places)]
    lines = [lines_of_frame[frame] for frame in stacks.frames[places].tolist()]
    ids = np.array([number[line] for of_place in lines for line in of_place], np.uint32)
    frames = np.insert(stacks.frames, np.repeat(places + 1, counts), ids)
    added_before = np.append(0, np.cumsum(counts))[np.searchsorted(places, stacks.starts)]
    return frames, stacks.starts + added_before
