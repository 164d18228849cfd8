"""Findings in a page: each marks exactly the bytes that it is about."""

from __future__ import annotations

import pytest

from support.page_data import PageData
from support.recordings import data_of, read
from vramlens.api import explain_recording
from vramlens.view.page import data_of as page_data_of

ABOUT_BLOCKS = {"activations", "optimizer_state", "leak", "operator_buffers", "two_copies"}


def marks_of(trace):
    """By finding, the marked blocks' bytes at its moment, and the marked holes' bytes."""
    data = PageData(page_data_of([trace]))
    track = data.header["tracks"][0]
    born, kept, pending, size_bytes = (
        data.column(track["rows"][name]) for name in ("born", "kept", "pending", "bytes")
    )
    marks = {}
    for finding in track["verdict"]["findings"]:
        mark, event = finding["mark"], finding["event"]
        if mark is None:
            continue
        alive = [
            row
            for row in data.column(mark["rows"])
            if born[row] - 1 <= event < born[row] - 1 + kept[row] + pending[row]
        ]
        blocks = sum(size_bytes[row] for row in alive)
        marks[finding["id"]] = (blocks, sum(data.column(mark["bytes"])))
    return marks


@pytest.mark.parametrize(
    ("name", "holes_bytes"),
    [
        ("recordings/leak_hook", {}),
        ("recordings/leak_cycle", {}),
        ("found/resume_optimizer", {}),
        ("recordings/graphs", {"private_pools": 10745344, "stranded_streams": 44040192}),
        ("recordings/oom_fragmented", {"fragmented_request": 1375731712}),
    ],
)
def test_a_finding_marks_exactly_its_bytes(name, holes_bytes):
    trace = read(data_of(name))
    marks = marks_of(trace)
    findings = {finding.id: finding for finding in explain_recording(trace).findings}
    blocks = {slug: marks[slug][0] for slug in marks if slug in ABOUT_BLOCKS}
    assert blocks == {slug: findings[slug].bytes for slug in blocks}
    assert {slug: holes for slug, (_, holes) in marks.items() if holes} == holes_bytes


def test_what_is_about_no_bytes_in_particular_marks_none():
    marks = marks_of(read(data_of("recordings/oom_train")))
    assert "process_limit" not in marks
    assert "expandable_segments" not in marks
