"""Compiled programs: the line that the user wrote stands where the recording names it."""

from __future__ import annotations

import pickle

import pytest

from support.recordings import data_of, event, read, snapshot
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.memory.heap import heap_at
from vramlens.read.tables.original_lines import FIELD, original_lines
from vramlens.trace import Frame

NESTED = (
    '  File "train/model.py", line 331, in forward\n    x = block(x)\n'
    '  File "train/model.py", line 309, in forward\n    q = self.qkv(self.n1(x))\n'
)


def recording(*texts: object):
    events = []
    for number, text in enumerate(texts):
        generated = {"filename": "fx_generated__a.py", "line": 39 + number, "name": "forward"}
        frames = [
            {"filename": "/v/site-packages/torch/_ops.py", "line": 865, "name": "__call__"},
            generated if text is None else {**generated, FIELD: text},
            {"filename": "train/run.py", "line": 7, "name": "step"},
        ]
        events.append(event("alloc", 4096 * (1 + number), 512, frames=frames))
    return read(pickle.dumps(snapshot(events, [])))


def test_the_lines_of_a_text_are_told_innermost_first():
    assert [str(line) for line in original_lines(NESTED)] == [
        "train/model.py:309 in forward",
        "train/model.py:331 in forward",
    ]


@pytest.mark.parametrize(
    "text", ["", "nothing", 'File "a.py", line x, in f', 'File "a.py", line 1']
)
def test_a_text_without_lines_names_none(text):
    assert original_lines(text) == ()


def test_the_users_line_is_the_one_that_was_compiled():
    trace = recording(NESTED, None, '  File "train/loss.py", line 3, in loss\n', 17)
    stacks = trace.stacks
    users = [stacks.frame(int(frame)) for frame in stacks.user_frame]
    run = Frame("train/run.py", 7, "step")
    assert users == [
        Frame("train/model.py", 309, "forward"),
        run,
        Frame("train/loss.py", 3, "loss"),
        run,
    ]
    assert [frame.function for frame in stacks.of(0)] == [
        "__call__",
        "forward",
        "forward",
        "forward",
        "step",
    ]
    assert [str(frame) for frame in stacks.of(1)][-1] == str(run)
    assert len(stacks.of(1)) == len(stacks.of(3)) == 3
    assert (stacks.code_frame == stacks.user_frame).all(), "generated code is nobody's code"


def test_a_real_compiled_program_shows_three_lines_instead_of_one():
    trace = read(data_of("found/compiled_fx"))
    device = trace.devices[0]
    heap = heap_at(attribute(trace, device), device.requested.peak_event)
    lines = {row.place.line for row in heap.by_line}
    assert 323 not in lines
    assert {309, 312, 332} <= lines
