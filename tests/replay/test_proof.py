"""Every recording, replayed under its own settings, held against what the allocator itself said."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import pytest

from recordings import ALL, DATA, block, data_of, event, read, segment, snapshot, truth_of
from vramlens.errors import InputError
from vramlens.replay import Proven, prove
from vramlens.replay.versions import OBJECT_COUNTER
from vramlens.trace import Trace
from vramlens.units import MIB

FOUND = sorted(f"found/{path.name.removesuffix('.pickle.xz')}" for path in (DATA / "found").glob("*.pickle.xz"))
FIGURES = {
    "requested_bytes.all.peak": "peak_requested",
    "allocated_bytes.all.peak": "peak_allocated",
    "active_bytes.all.peak": "peak_active",
    "reserved_bytes.all.peak": "peak_reserved",
    "inactive_split_bytes.all.peak": "peak_inactive_split",
    "num_alloc_retries": "retries",
    "num_ooms": "ooms",
    "num_device_alloc": "device_allocs",
    "num_device_free": "device_frees",
    "allocation.all.allocated": "allocations",
}
AFTER_THE_END = {"inactive_split_bytes.all.peak", "num_device_free"}
"""What the program did after the failure, while its tensors and pools went, is in the figures but not recorded."""


@cache
def trace_of(name: str) -> Trace:
    return read(data_of(name))


@cache
def proven(name: str) -> dict[int, Proven]:
    trace = trace_of(name)
    return {index: prove(trace, device) for index, device in trace.devices.items() if len(device.events)}


@pytest.mark.parametrize("name", ALL + FOUND)
def test_every_event_address_and_size_comes_out_as_recorded(name: str) -> None:
    for found in proven(name).values():
        recorded = found.recorded
        assert recorded.exact, recorded.first_difference
        assert recorded.addresses == recorded.addresses_matched > 0
        assert recorded.segment_events == recorded.segment_events_matched
        assert (found.taken_bytes == found.device.allocations.taken_bytes).all()


@pytest.mark.parametrize("name", ALL)
def test_peaks_and_counters_are_those_of_memory_stats(name: str) -> None:
    truth, trace = truth_of(name), trace_of(name)
    assert trace.main_device is not None
    summary = proven(name)[trace.main_device].replay.summary
    for figure, ours in FIGURES.items():
        measured = truth["stats"].get(figure)
        if measured is None or ("oom_message" in truth and figure in AFTER_THE_END and summary[ours] <= measured):
            continue
        assert summary[ours] == measured, figure


def test_the_rules_of_another_version_do_not_fit() -> None:
    trace = trace_of("recordings/gpt_varlen")
    found = proven("recordings/gpt_varlen")[0]
    settings = found.recorded.settings.native(found.recorded.version) | {"tie_order": OBJECT_COUNTER}
    from vramlens._native import Replay
    from vramlens.replay.requests import requests_of

    requests = requests_of(trace, trace.devices[0])
    summary = Replay(requests.columns, pools=len(requests.pools), settings=settings).summary
    assert summary["first_difference"] >= 0
    assert summary["addresses_matched"] < summary["addresses"]


@pytest.mark.parametrize("name", ["recordings/gpt_varlen", "recordings/gpt_varlen_expandable", "recordings/streams"])
@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_a_recording_that_began_in_mid_run(name: str, share: float) -> None:
    whole = pickle.loads(data_of(name))  # our own data
    events = whole["device_traces"][0]
    whole["device_traces"][0] = events[int(len(events) * share) :]
    trace = read(pickle.dumps(whole))
    recorded = prove(trace, trace.devices[0]).recorded
    assert recorded.warm
    if recorded.exact:
        assert recorded.addresses_matched == recorded.addresses
    else:  # an early block's rest and a hole look alike
        assert recorded.first_difference is not None
        assert "began in mid-run" in recorded.first_difference.why
        assert recorded.addresses_matched > recorded.addresses // 2


def test_a_limit_that_refused_segments_is_bounded_from_both_sides() -> None:
    truth = truth_of("recordings/oom_train")
    limit = proven("recordings/oom_train")[0].recorded.limit
    assert limit.source == "inferred"
    assert limit.bytes is not None
    assert limit.below_bytes is not None
    assert limit.bytes <= truth["oom"]["device_allocated"] < limit.below_bytes


def test_the_given_limit_of_the_run_is_exact_too() -> None:
    trace, truth = trace_of("recordings/oom_train"), truth_of("recordings/oom_train")
    recorded = prove(trace, trace.devices[0], truth["oom"]["device_allocated"]).recorded
    assert recorded.exact
    assert recorded.limit.source == "given"


def test_a_wrong_limit_is_not_exact() -> None:
    trace = trace_of("recordings/oom_train")
    recorded = prove(trace, trace.devices[0], 1024 * MIB).recorded
    assert not recorded.exact
    assert recorded.first_difference is not None


def of(events: list[dict[str, Any]], **more: Any) -> Trace:
    return read(
        pickle.dumps(snapshot(events, [segment(2**40, 2 * MIB, [block(2**40, 2 * MIB, 0, "inactive")])], **more))
    )


A = 2**40
WITHOUT_FREES = [event("segment_alloc", A, 2 * MIB)] + [event("alloc", A, 512), event("free_requested", A, 512)] * 3


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (of([]), "holds no events"),
        (of([event("segment_alloc", A, 2 * MIB)]), "no allocations"),
        (of(WITHOUT_FREES), "skip_actions"),
        (of([event("alloc", A + 2**33, 512)]), "skip_actions"),
        (
            of(
                [event("segment_alloc", A, 2 * MIB), event("alloc", A, 512)],
                allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
            ),
            "cudaMallocAsync",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(trace: Trace, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        prove(trace, trace.devices[0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", [*(name for name in ALL if "fuzz" in name), "recordings/graphs", "found/private_pools"]
)
def test_a_recording_without_stacks(name: str) -> None:
    whole = pickle.loads(data_of(name))  # our own data
    for events in whole["device_traces"]:
        for made in events:
            made.pop("frames", None)
    trace = read(pickle.dumps(whole))
    recorded = prove(trace, trace.devices[0]).recorded
    assert recorded.exact, recorded.first_difference
