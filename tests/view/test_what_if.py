"""The lines of replayed settings in a page: their steps, their words, and how many there may be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.page_data import PageData
from support.recordings import data_of as recorded
from support.recordings import read
from vramlens.replay import Curve, replay_trace
from vramlens.units import format_size
from vramlens.view.page import Choices, data_of
from vramlens.view.timeline.what_if_lines import steps_of

EXPANDABLE = "expandable_segments:True"


def lines_of(name, *confs):
    trace = read(recorded(name))
    page = PageData(data_of([trace], Choices(confs=confs)))
    lines = page.header["tracks"][0]["what_if"]
    assert [line["conf"] for line in lines] == [conf or "PyTorch's default" for conf in confs]
    return trace, page, lines


def test_a_line_holds_every_change_of_the_replay():
    trace, page, (line,) = lines_of("recordings/cnn_multires", EXPANDABLE)
    (row,) = replay_trace(trace, confs=[EXPANDABLE], curves=True).what_if
    assert page.column(line["event"]) == (row.curve.event + 1).tolist()
    assert page.column(line["bytes"]) == row.curve.reserved_bytes.tolist()
    assert (line["reserved"], line["low"], line["high"]) == (
        row.peak_reserved_bytes,
        row.low_bytes,
        row.high_bytes,
    )
    assert max(page.column(line["bytes"])) == row.peak_reserved_bytes
    assert (line["oom"], line["died"], line["changes"]) == (False, None, 1)
    assert line["words"] == (
        f"With {EXPANDABLE}, the run would have reserved {format_size(row.peak_reserved_bytes)} at its peak: 926.00 MiB"
        " less than recorded (exact)."
    )


def test_a_line_that_ends_says_where_and_why():
    trace, page, lines = lines_of("recordings/oom_train", EXPANDABLE, "max_split_size_mb:32", "")
    failed = trace.devices[0].out_of_memory[-1].event
    unsure, sooner, same = lines
    assert (unsure["oom"], unsure["died"]) == (None, failed)
    assert "It is unknown whether" in unsure["words"]
    assert "Conditional: 2.84 to 3.09 GiB reserved at its peak; " in unsure["words"]
    assert (sooner["oom"], sooner["died"]) == (True, failed - 1)
    assert f"fails (event {failed - 1:,}). Bounded: " in sooner["words"]
    assert (same["oom"], same["died"]) == (True, failed)
    assert max(page.column(sooner["event"])) <= failed


@given(
    changes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 40)), max_size=60),
    most=st.integers(1, 70),
)
def test_fewer_steps_are_never_too_low(changes, most):
    event = np.cumsum([-1, *(after for after, _ in changes)])
    curve = Curve(event, np.array([5, *(bytes_ for _, bytes_ in changes)]), None)
    fewer, highest, merged = steps_of(curve, most)
    assert len(fewer) <= most
    assert (merged == 1) == (len(event) <= most)
    assert highest.max() == curve.reserved_bytes.max()
    kept = Curve(fewer, highest, None)
    assert (kept.after(event) >= curve.after(event)).all()
    for first, until, top in zip(fewer, [*fewer[1:], event[-1] + 1], highest, strict=True):
        assert (
            top in curve.reserved_bytes[(event >= first) & (event <= until)]
        )  # reached within its step
    if merged == 1:
        assert (fewer == event).all()
