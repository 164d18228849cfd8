"""Nesting: self times and parents against a slow twin, on made, random and real traces."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.kineto import PID, Kineto, read, training
from support.profile_oracle import self_times
from vramlens.analyses.profile.nesting import nest
from vramlens.analyses.profile.user_lines import Lines, is_user_function
from vramlens.trace.profile import CPU_KINDS, NONE, Kind

TRAIN = Path(__file__).parents[2] / "data" / "profiler" / "train.json.gz"


def by_name(trace, nesting):
    sums = {}
    for row in nesting.rows.tolist():
        name = trace.names[trace.spans.name[row]]
        sums[name] = sums.get(name, 0) + int(nesting.self_ns[row])
    return sums


def parents(trace):
    nesting = nest(trace, CPU_KINDS)
    name = [trace.names[n] for n in trace.spans.name]
    return {
        name[row]: name[nesting.parent[row]] if nesting.parent[row] >= 0 else None
        for row in nesting.rows
    }


def test_self_times_of_a_training_run():
    text = training().text()
    trace = read(text)
    assert by_name(trace, nest(trace, CPU_KINDS)) == self_times(text)


def test_self_times_of_the_real_trace():
    text = gzip.decompress(TRAIN.read_bytes()).decode()
    trace = read(text)
    mine, slow = by_name(trace, nest(trace, CPU_KINDS)), self_times(text)
    assert mine.keys() == slow.keys()
    for name, sum_ns in slow.items():
        assert mine[name] == pytest.approx(sum_ns, abs=2 * 2 * 400), (
            name
        )  # ends that the file rounds


@st.composite
def well_nested(draw):
    """Spans of one thread, each within the one before or after it, at whole microseconds."""
    made, spans = Kineto(), []

    def fill(start, end, depth):
        at = start
        while at < end - 1 and len(spans) < 40:
            first = draw(st.integers(at, end - 1))
            last = draw(st.integers(first + 1, end))
            spans.append((first, last))
            if depth:
                fill(first, last, depth - 1)
            at = last

    fill(0, draw(st.integers(10, 200)), 4)
    for number, (first, last) in enumerate(spans):
        made.op(f"op{number}", first + 0.001, last - first, tid=PID)
    return made


@given(well_nested())
def test_self_times_of_random_traces(made):
    if not made.events:
        return
    text = made.text()
    trace = read(text)
    mine = {name: ns for name, ns in by_name(trace, nest(trace, CPU_KINDS)).items() if ns}
    assert mine == {name: ns for name, ns in self_times(text).items() if ns}


spans = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 1)), min_size=1, max_size=30
)


@given(spans)
def test_any_spans_fill_exactly_the_time_that_they_cover(some):
    """Spans that overlap in any way: no time is counted twice or lost, and parents come before
    their children.
    """
    made = Kineto()
    for number, (start, duration, thread) in enumerate(some):
        made.op(f"op{number}", start + 0.001, duration, tid=PID + thread)
    trace = made.read()
    nesting = nest(trace, CPU_KINDS)
    covered = {(t, at) for start, duration, t in some for at in range(start, start + duration)}
    assert nesting.self_ns.sum() == pytest.approx(1000 * len(covered), abs=4 * len(some))
    assert (nesting.self_ns >= 0).all()
    place = {row: number for number, row in enumerate(nesting.rows.tolist())}
    assert all(
        place[nesting.parent[row]] < place[row] for row in nesting.rows if nesting.parent[row] >= 0
    )


def test_spans_that_touch_are_neighbours():
    made = Kineto()
    made.op("outer", 0, 100)
    made.op("first", 0, 40)
    made.op("second", 40, 60)
    assert parents(made.read()) == {"outer": None, "first": "outer", "second": "outer"}


def test_of_two_that_overlap_neither_is_the_others():
    made = Kineto()
    made.op("first", 0, 40)
    made.op("second", 20, 60)
    trace = made.read()
    assert parents(trace) == {"first": None, "second": None}
    assert by_name(trace, nest(trace, CPU_KINDS)) == {"first": 20_000, "second": 60_000}


def test_whole_microseconds_may_end_a_little_late():
    """Kineto of 2021 cut beginnings and durations to microseconds each."""
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": {}}
    events = [
        event | {"name": "outer", "ts": 10, "dur": 20},
        event | {"name": "inner", "ts": 15, "dur": 16},
    ]
    assert parents(read(json.dumps({"traceEvents": events}))) == {"outer": None, "inner": "outer"}


def test_the_innermost_at_a_moment():
    made = Kineto()
    made.op("outer", 0, 100)
    made.op("inner", 20, 30)
    made.op("other", 200, 10)
    trace = made.read()
    nesting = nest(trace, CPU_KINDS)
    times = np.array(
        [0, 19_999, 20_001, 49_000, 51_000, 100_000, 150_000, 205_000, 300_000], np.int64
    )
    thread = np.full(len(times), int(trace.spans.thread[0]))
    names = [
        None if row == NONE else trace.names[trace.spans.name[row]]
        for row in nesting.innermost(thread, times)
    ]
    # At the very end of the last span it is still that span: coarse clocks write frees so.
    assert names == ["outer", "outer", "inner", "inner", "outer", "outer", None, "other", None]


def test_a_thousand_levels_do_not_matter():
    made = Kineto()
    for depth in range(5000):
        made.op(f"op{depth}", depth, 20_000 - 2 * depth)
    trace = made.read()
    nesting = nest(trace, CPU_KINDS)
    assert nesting.totals(np.ones(len(trace.spans), np.int64)).max() == 5000
    assert nesting.above(trace.spans.name == 0).max() == 0


@pytest.mark.parametrize(
    ("file", "mine"),
    [
        ("train.py", True),
        ("src/model.py", True),
        ("/home/me/project/train.py", True),
        ("../lib/data.py", True),
        ("torch/nn/modules/linear.py", False),
        ("/usr/lib/python3.11/site-packages/torch/optim/adam.py", False),
        ("transformers/models/llama/modeling_llama.py", False),
        ("contextlib.py", False),
        ("concurrent/futures/thread.py", False),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
        ("<ipython-input-3-abc>", True),
        ("torch\\nn\\modules\\linear.py", False),
    ],
)
def test_whose_a_file_is(file, mine):
    assert is_user_function(file) is mine


def test_lines_of_forward_and_of_the_backward_that_has_none():
    trace = training().read()
    cpu = nest(trace, CPU_KINDS)
    lines = Lines(trace, cpu)
    spans = trace.spans
    rows = {trace.names[spans.name[row]]: row for row in spans.of((Kind.OPERATOR,)).tolist()[::-1]}
    forward, backward = rows["aten::addmm"], rows["aten::mm"]
    both = np.array([forward, backward])
    at = lines.at(spans.thread[both], spans.start_ns[both])
    assert str(lines.place(int(at[0]))) == "model.py:7 in forward"
    assert lines.place(int(at[1])) is None  # autograd's thread runs no Python
    assert [lines.place(int(row)) and str(lines.place(int(row))) for row in lines.behind(both)] == [
        None,
        "model.py:7 in forward",
    ]
