"""The data of a page against the recording that it is about: nothing is left out, nothing is
changed.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.page_data import PageData
from support.recordings import SMALL, data_of, read
from vramlens.analyses.attribution.attribution import attribute
from vramlens.trace import NO_STACK
from vramlens.view.page import Choices
from vramlens.view.page import data_of as page_data_of


def page_of(trace, **choices):
    return PageData(page_data_of([trace], Choices(**choices)))


@pytest.mark.parametrize("name", SMALL[::3])
def test_every_allocation_is_in_the_page(name):
    trace = read(data_of(name))
    page = page_of(trace)
    assert page.header["tracks"]
    for track in page.header["tracks"]:
        device = trace.devices[track["device"]]
        rows, here = device.allocations, track["rows"]
        assert here["n"] == len(rows)
        born = [event - 1 for event in page.column(here["born"])]
        freed = [b + kept for b, kept in zip(born, page.column(here["kept"]), strict=True)]
        died = [f + late for f, late in zip(freed, page.column(here["pending"]), strict=True)]
        assert born == rows.born.tolist()
        assert freed == rows.free_requested.tolist()
        assert died == rows.died.tolist()
        assert page.column(here["bytes"]) == rows.requested_bytes.tolist()
        assert [
            int(here["base"]) + at for at in page.column(here["address"])
        ] == rows.address.tolist()
        assert page.column(track["clock"]) == (device.clock_us - device.clock_us[:1].sum()).tolist()
        stacks = [s + 1 if s != NO_STACK else 0 for s in rows.stack.tolist()]
        assert page.column(here["stack"]) == stacks
        _lines_are_those_of_the_analyses(trace, device, track, page)
        _frames_are_those_of_the_recording(trace, track, page)
        # The stack that the page draws is the counter that PyTorch keeps.
        _, peak, event = track["counters"]["requested"]
        alive = [
            b
            for b, start, end in zip(page.column(here["bytes"]), born, died, strict=True)
            if start <= event < end
        ]
        assert sum(alive) == peak == device.requested.peak_bytes


def _lines_are_those_of_the_analyses(trace, device, track, page):
    view = attribute(trace, device)
    texts = track["texts"]
    for row, number in enumerate(page.column(track["rows"]["line"])):
        place = view.place(int(view.phases.frame[row]))
        if place is None:
            assert number == 0
            continue
        file, line, function = track["lines"][number - 1]
        assert (texts[file], line, texts[function]) == (place.file, place.line, place.function)
    assert page.column(track["rows"]["category"]) == view.categories.category.tolist()
    assert page.column(track["steps"]["starts"]) == view.steps.starts.tolist()


def _frames_are_those_of_the_recording(trace, track, page):
    frames = {name: page.column(number) for name, number in track["frames"].items()}
    for stack in range(0, len(trace.stacks), 7):
        first, end = frames["starts"][stack], frames["starts"][stack + 1]
        found = [
            (
                track["texts"][frames["file"][f]],
                frames["line"][f],
                track["texts"][frames["function"][f]],
            )
            for f in frames["of_stacks"][first:end]
        ]
        assert found == [
            (frame.file, frame.line, frame.function) for frame in trace.stacks.of(stack)
        ]


def test_findings_mark_what_they_are_about():
    page = page_of(read(data_of("recordings/leak_hook")))
    track = page.header["tracks"][0]
    finding = next(each for each in track["verdict"]["findings"] if each["id"] == "leak")
    assert finding["place"]["line"] > 0
    stack = page.column(track["rows"]["stack"])
    marked = page.column(finding["mark"]["rows"])
    frames = {name: page.column(number) for name, number in track["frames"].items()}
    for row in marked:
        first, end = frames["starts"][stack[row] - 1], frames["starts"][stack[row]]
        assert finding["place"]["line"] in [
            frames["line"][f] for f in frames["of_stacks"][first:end]
        ]
    assert marked


def test_a_failure_is_where_the_page_goes():
    trace = read(data_of("recordings/oom_train"))
    track = page_of(trace).header["tracks"][0]
    failure = trace.devices[0].out_of_memory[-1]
    assert track["verdict"]["failed"]
    assert track["failures"][-1] == {
        "event": failure.event,
        "bytes": failure.size_bytes,
        "free": failure.device_free_bytes,
        "stack": failure.stack + 1,
    }
    assert track["verdict"]["findings"][0]["event"] == failure.event


def test_regions_nest_and_lie_within_the_run():
    page = page_of(read(data_of("recordings/gpt_annotated")))
    track = page.header["tracks"][0]
    bands = {name: page.column(track["bands"][name]) for name in ("begin", "end", "name", "depth")}
    assert track["bands"]["n"] == len(bands["begin"]) > 0
    last = page.column(track["clock"])[-1]
    for begin, end in zip(bands["begin"], bands["end"], strict=True):
        assert 0 <= begin <= end <= last
    for i, depth in enumerate(bands["depth"]):
        over = [j for j in range(len(bands["depth"])) if bands["depth"][j] == depth - 1]
        assert depth == 0 or any(
            bands["begin"][j] <= bands["begin"][i] <= bands["end"][j] for j in over
        )


def test_one_device_can_be_chosen():
    trace = read(data_of(SMALL[0]))
    device = trace.main_device
    assert [t["device"] for t in page_of(trace, device=device).header["tracks"]] == [device]


def test_columns_of_a_recording_without_events():
    from support.recordings import block, dump_slowly, segment, snapshot

    state = snapshot([], [segment(1 << 40, 4 << 20, [block(1 << 40, 4 << 20, 3 << 20)])])
    page = page_of(read(dump_slowly(state)))
    track = page.header["tracks"][0]
    assert (track["events"], track["rows"]["n"], track["timed"]) == (0, 1, False)
    assert page.column(track["rows"]["bytes"]) == [3 << 20]
    assert not np.any(page.column(track["clock"]))
