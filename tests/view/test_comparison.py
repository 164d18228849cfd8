"""What differs between ranks, in a page's data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.page_data import PageData
from support.recordings import data_of as recorded
from support.recordings import read
from vramlens.view.comparison import ranks_in_names
from vramlens.view.page import data_of


def comparison(*names, ranks=()):
    return PageData(
        data_of([read(recorded(f"ranks/{name}")) for name in names], ranks=ranks)
    ).header["comparison"]


LEAK = [f"leak_rank1/leak_rank1.rank{rank}" for rank in (0, 1)]


def test_the_page_says_what_vramlens_ranks_says():
    found = comparison(*LEAK, ranks=[0, 1])
    assert found["headline"].startswith("Rank 1 leaks: ")
    (finding,) = found["findings"]
    assert finding["track"] == 1
    assert finding["place"]["line"] > 0
    assert finding["fix"]


def test_ranks_in_another_order_are_told_by_their_tracks():
    assert comparison(*reversed(LEAK), ranks=[1, 0])["findings"][0]["track"] == 0


@pytest.mark.parametrize("ranks", [(), (0, 0)])
def test_without_their_numbers_nothing_is_said(ranks):
    assert comparison(*LEAK, ranks=ranks) is None


def test_files_that_name_their_ranks_are_a_job():
    recordings = [read(recorded(f"ranks/{name}")) for name in LEAK]
    named = [replace(trace, source=f"runs/x.rank{n}.pickle") for n, trace in enumerate(recordings)]
    assert ranks_in_names(named) == [0, 1]
    page = PageData(data_of(named, ranks=ranks_in_names(named)))
    assert page.header["comparison"]["headline"].startswith("Rank 1 leaks: ")
    assert [track["rank"] for track in page.header["tracks"]] == [0, 1]
    assert ranks_in_names([named[0], replace(named[1], source="rank0.pickle")]) == []
    assert ranks_in_names([named[0], replace(named[1], source="run.pickle")]) == []


def test_each_recording_is_attributed_once(monkeypatch):
    from vramlens.analyses.attribution import attribution
    from vramlens.ranks import recording_summary
    from vramlens.view import page

    counted = []

    def counting(trace, device):
        counted.append((trace.source, device.device))
        return attribution.attribute(trace, device)

    for module in (page, recording_summary):
        monkeypatch.setattr(module, "attribute", counting)
    assert comparison(*LEAK, ranks=[0, 1]) is not None
    assert len(counted) == 2
