"""A recording and a profiler trace of the same run become one page; of other runs they stay two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import vramlens
from support.page_data import PageData, data_in
from vramlens.errors import InputError
from vramlens.view.comparison import joined

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def recording():
    return vramlens.load(DATA / "recordings" / "gpt.pickle.xz")


@pytest.fixture(scope="module")
def trace(recording):
    """A trace that began when the recording did."""
    loaded = vramlens.load(DATA / "profiler" / "gpt_gpu.json.gz")
    began_us = int(recording.devices[0].clock_us[0])
    shift = began_us - loaded.profile.began_us
    device = loaded.devices[0]
    events = replace(device.events, time_us=device.events.time_us + shift)
    return replace(
        loaded,
        devices={0: replace(device, events=events)},
        profile=replace(loaded.profile, began_us=began_us),
    )


def test_those_of_the_same_time_become_one(recording, trace):
    (one,) = joined([trace, recording])
    assert one.source == recording.source
    assert one.profile is trace.profile
    assert not one.is_profiler_trace
    track = PageData(data_in(vramlens.view([recording, trace], sources=None).html)).header
    assert len(track["tracks"]) == 1
    (only,) = track["tracks"]
    alone = PageData(data_in(vramlens.view(recording, sources=None).html)).header["tracks"][0]
    kernels = int((trace.profile.spans.device == 0).sum())
    assert only["bands"]["n"] == alone["bands"]["n"] + kernels
    assert only["verdict"]["headline"] == alone["verdict"]["headline"]
    assert one.replay().recorded.peak_allocated_bytes > 0


def test_those_of_other_times_stay_two(recording, trace):
    other = vramlens.load(DATA / "profiler" / "gpt_gpu.json.gz")
    assert joined([recording, other]) == [recording, other]
    assert joined([recording, recording]) == [recording, recording]
    assert joined([trace]) == [trace]
    with pytest.raises(InputError, match="no segments to replay"):
        trace.replay()
