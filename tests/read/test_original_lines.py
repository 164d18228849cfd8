"""Compiled programs: the line that the user wrote stands where the recording names it."""

from __future__ import annotations

import pickle
import time

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


def test_a_text_of_empty_lines_is_read_at_once():
    before = time.process_time()
    assert original_lines("\n" * (1 << 16)) == ()
    assert time.process_time() - before < 1


def test_a_frame_that_stands_in_a_stack_without_end_brings_bounded_lines():
    text = "".join(f'  File "a.py", line {line}, in f\n' for line in range(1, 65))
    generated = {"filename": "fx_generated__a.py", "line": 1, "name": "f", FIELD: text}
    own = {"filename": "train/run.py", "line": 7, "name": "step"}
    frames = [*[generated] * 3000, own]
    trace = read(pickle.dumps(snapshot([event("alloc", 4096, 512, frames=frames)], [])))
    added = len(trace.stacks.frames) - len(frames)
    bound = (1 << 16) + 8 * len(frames)
    assert bound - 64 < added <= bound
    assert trace.stacks.of(0)[-1] == Frame("train/run.py", 7, "step")


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
