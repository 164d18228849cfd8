"""Snapshots of every age and shape, against the oracle and against what the allocator itself
said.
"""

from __future__ import annotations

import lzma
import pickle
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from support import oracle
from support.oracle import MIB
from support.recordings import (
    ALL,
    DATA,
    block,
    collector_off,
    data_of,
    dump_one_by_one,
    dump_slowly,
    event,
    read,
    segment,
    snapshot,
    truth_of,
)
from vramlens.errors import NotARecording
from vramlens.trace import NO_STACK

DUMPS: list[Callable[[Any], bytes]] = [
    pickle.dumps,
    dump_slowly,
    dump_one_by_one,
    lambda value: pickle.dumps(value, 3),
]
COUNTERS = ("requested", "allocated", "active", "reserved")


def check(value: Any, **options: Any) -> None:
    """Reads a value pickled in every way, and compares with the oracle."""
    for dump in DUMPS:
        oracle.assert_same(read(dump(value)), value, **options)


# ---- the truth -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_peaks_are_those_of_memory_stats(name: str) -> None:
    with collector_off():
        trace = read(data_of(name))
    assert trace.main_device is not None
    device = trace.devices[trace.main_device]
    stats = truth_of(name)["stats"]
    told = {
        counter: stats[key] for counter in COUNTERS if (key := f"{counter}_bytes.all.peak") in stats
    }
    assert {"allocated", "reserved"} <= set(told)
    assert {counter: getattr(device, counter).peak_bytes for counter in told} == told
    assert device.orphan_events == 0
    assert device.missized == 0
    assert int(device.requested_curve.argmax()) == device.requested.peak_event
    failed = stats.get("num_ooms")
    assert failed is None or len(device.out_of_memory) == failed


# ---- one recording in every shape ------------------------------------------------------

BASE = 0x7F0000000000


def history(**more: Any) -> list[dict[str, Any]]:
    """Two blocks in one segment; one of them is freed."""
    return [
        event("segment_alloc", BASE, 2 * MIB),
        event("alloc", BASE, 1000, **more),
        event("alloc", BASE + 1024, 300, **more),
        event("free_requested", BASE, 1000),
        event("free_completed", BASE, 1000),
    ]


def end(**more: Any) -> list[dict[str, Any]]:
    """The state after ``history``."""
    blocks = [block(BASE, 1024, 0, "inactive"), block(BASE + 1024, 512, 300) | more]
    return [segment(BASE, 2 * MIB, [*blocks, block(BASE + 1536, 2 * MIB - 1536, 0, "inactive")])]


def test_plain() -> None:
    check(snapshot(history(), end()))


UNKNOWN: list[Any] = [
    0,
    -1,
    2**31,
    2**59,
    -(2**59) - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    2**200,
    -(2**4000),
    1.5,
    -0.0,
]
UNKNOWN += [
    "",
    "né\U0001f600",
    'a\x00\n"\\',
    "\ud800",
    None,
    True,
    False,
    b"",
    b"\xff\x00x",
    (),
    [],
    {},
    (1, (2, [3])),
]
UNKNOWN += [
    float("nan"),
    float("inf"),
    {"a": {"b": [1, 2.5, None]}},
    {1: 2, (1, 2): 3, None: True, 1.5: 0},
]


@pytest.mark.parametrize("unknown", UNKNOWN, ids=lambda value: repr(value)[:30])
def test_unknown_fields_are_kept(unknown: Any) -> None:
    value = snapshot(history(new=unknown), end(new=unknown), new=unknown)
    value["segments"][0]["newer"] = unknown
    value["external_annotations"] = [
        {"stage": "START", "name": "a", "device": 0, "time_us": 1, "new": unknown}
    ]
    value["device_traces"][0][1]["frames"] = [
        {"filename": "f", "line": 1, "name": "n", "fx_node_op": unknown}
    ]
    check(value)


def test_a_field_with_many_values_is_read_in_time() -> None:
    """Every value once had a buffer of its own."""
    events = [event("snapshot", ticket=i * 10**12, at=i / 7) for i in range(50_000)]
    data = pickle.dumps(snapshot(events, []))
    start = process_time()
    columns = {c.name: c.values for c in read(data).side_columns}
    assert process_time() - start < 5
    assert columns["ticket"] == tuple(i * 10**12 for i in range(50_000))
    assert columns["at"] == tuple(i / 7 for i in range(50_000))


@pytest.mark.parametrize("wrong", [None, "text", 1.5, [1], {}, True, 2**70, (1,)], ids=repr)
@pytest.mark.parametrize(
    "key",
    [
        "addr",
        "size",
        "stream",
        "time_us",
        "frames",
        "compile_context",
        "user_metadata",
        "pool_id",
        "device_free",
        "action",
    ],
)
def test_known_fields_of_the_wrong_type(key: str, wrong: Any) -> None:
    check(
        snapshot(
            [event("snapshot"), event("snapshot") | {key: wrong}, event("oom") | {key: wrong}],
            end(),
        ),
        lifetimes=False,
    )


@pytest.mark.parametrize("wrong", [None, "text", 1.5, [1], (1,)], ids=repr)
def test_known_fields_of_the_wrong_type_in_the_state(wrong: Any) -> None:
    for key in ("address", "size", "requested_size", "state", "frames", "history"):
        value = snapshot([], end())
        value["segments"][0]["blocks"][1][key] = wrong
        check(value, lifetimes=False)
    for key in (
        "device",
        "address",
        "stream",
        "segment_type",
        "segment_pool_id",
        "is_expandable",
        "frames",
    ):
        value = snapshot([], end())
        value["segments"][0][key] = wrong
        check(value, lifetimes=False)
    for key in ("filename", "line", "name"):
        value = snapshot(
            history(frames=[{"filename": "f", "line": 1, "name": "n"} | {key: wrong}]), end()
        )
        check(value)
    check(
        snapshot(
            [],
            [],
            external_annotations=[
                {"stage": wrong, "name": wrong, "device": wrong, "time_us": wrong}
            ],
        )
    )


def test_before_pytorch_2_0() -> None:
    """A bare list of segments; blocks without address, their request in the history."""
    frames = [{"filename": "old.py", "line": 3, "name": "f"}]
    blocks: list[dict[str, Any]] = [
        {
            "size": 512,
            "state": "active_allocated",
            "history": [{"addr": BASE, "real_size": 4, "frames": frames}],
        },
        {"size": 1024, "state": "inactive"},
        {
            "size": 2048,
            "state": "active_allocated",
            "history": [{"addr": BASE + 1536, "real_size": 2000}],
        },
        {"size": 4096, "state": "active_awaiting_free"},
    ]
    plain = {
        "device": 0,
        "address": BASE,
        "total_size": 2 * MIB,
        "stream": 0,
        "segment_type": "small",
    }
    value = [plain | {"blocks": blocks}, plain | {"address": BASE + (1 << 30), "blocks": []}]
    check(value)
    device = read(pickle.dumps(value)).devices[0]
    assert device.allocations.address.tolist() == [BASE, BASE + 1536, BASE + 3584]
    assert (device.requested.base_bytes, device.allocated.base_bytes, device.active.base_bytes) == (
        6100,
        2560,
        6656,
    )


def test_a_segment_without_blocks_after_blocks_without_address() -> None:
    value = snapshot([], [*end(), segment(BASE + (1 << 30), 2 * MIB, [])])
    for item in value["segments"][0]["blocks"]:
        del item["address"]
    check(value)


def test_a_failed_request_has_no_address() -> None:
    failed = {
        "action": "oom",
        "device_free": 77,
        "size": 512,
        "stream": 3,
        "time_us": 5,
        "frames": [],
    }
    check(snapshot([*history(), failed, failed | {"device_free": None}], end()))
    device = read(pickle.dumps(snapshot([*history(), failed], end()))).devices[0]
    assert [(f.event, f.device_free_bytes, f.stream) for f in device.out_of_memory] == [(5, 77, 3)]


def test_events_without_frames_or_time() -> None:
    events = history()
    for item in events:
        del item["frames"], item["time_us"], item["compile_context"]
    check(snapshot(events, end()))
    assert set(read(pickle.dumps(snapshot(events, end()))).devices[0].events.stack.tolist()) == {
        NO_STACK
    }


@pytest.mark.parametrize("state", oracle.PENDING)
def test_both_names_of_a_pending_free(state: str) -> None:
    value = snapshot([*history(), event("free_requested", BASE + 1024, 300)], end(state=state))
    check(value)
    device = read(pickle.dumps(value)).devices[0]
    assert device.allocations.free_requested.tolist() == [3, 5]
    assert device.allocations.died.tolist() == [4, 6]


def test_pools_by_event() -> None:
    pools = [(0, 0), (0, 0), (0, 1), (2, 3), (0, 0)]
    events = [item | {"pool_id": pool} for item, pool in zip(history(), pools, strict=True)]
    check(snapshot(events, end()))
    del events[3]["pool_id"]
    check(snapshot(events, end()))
    trace = read(pickle.dumps(snapshot(events, end())))
    assert trace.devices[0].events.has_pools
    assert [trace.pools[i].tolist() for i in trace.devices[0].allocations.pool] == [[0, 0], [0, 1]]


def test_several_devices_and_a_device_that_only_has_memory() -> None:
    value = snapshot(history(), end())
    value["device_traces"] = [[], history(), history()]
    value["segments"] = [item | {"device": device} for device in (1, 2, 5) for item in end()]
    check(value)
    assert set(read(pickle.dumps(value)).devices) == {1, 2, 5}


def test_deep_stacks() -> None:
    deep = [{"filename": f"file{i % 7}.py", "line": i, "name": "f"} for i in range(2500)]
    check(snapshot(history(frames=deep), end(frames=deep[:1200])))


def test_shared_events() -> None:
    """One dict in two places of a list, and lists whose rows are mixed up."""
    mark, other = event("snapshot", size=1), event("snapshot", size=2)
    check(snapshot([mark, *history(), mark, other, mark], end()))
    value = snapshot([mark, *history(), other], end())
    value["device_traces"].append([other, mark])
    check(value)


def test_unknown_actions() -> None:
    check(
        snapshot(
            [
                *history(),
                event("annotate", BASE + 1024, user_metadata="kv"),
                event("user_defined"),
                event("snapshot"),
            ],
            end(),
        )
    )
    check(snapshot([event("user_defined"), *history()], end()))


def test_user_metadata_that_appears_late() -> None:
    events = history()
    events[3]["user_metadata"] = "late"
    events[4]["compile_context"] = "7"
    check(snapshot(events, end()))


def test_pinned_host_memory() -> None:
    value = snapshot(history(), end(), host_segments=end(), host_traces=[[], history()])
    check(value, lifetimes=False)
    value["host_traces"] = [history()]
    check(value)
    assert [device.device for device in read(pickle.dumps(value)).host] == [-1]


def test_the_ring_buffer_overflowed() -> None:
    value = snapshot(
        history()[3:],
        end(),
        allocator_settings={"trace_alloc_overflowed": True, "max_split_size": -1},
    )
    check(value)
    trace = read(pickle.dumps(value))
    assert not trace.complete
    assert "overwritten by later events" in trace.missing[0]
    assert "1.27 KiB in 2 blocks" in trace.missing[0]


def test_without_the_final_state() -> None:
    """Nothing contradicts a state that is not there."""
    value = {"device_traces": [history()[2:]]}
    trace = read(pickle.dumps(value))
    device = trace.devices[0]
    assert device.orphan_events == 0
    assert (device.requested.base_bytes, device.requested.peak_bytes) == (1000, 1300)
    assert "final state" in trace.missing[0]


def test_names_that_rows_have_at_the_top_level() -> None:
    check(snapshot(history(), end(), filename="x", state="y", size=1, action="z", stage="w"))


def test_text_that_is_no_utf8() -> None:
    data = pickle.dumps(
        snapshot(history(frames=[{"filename": "XYZ.py", "line": 1, "name": "f"}]), end()), 4
    )
    trace = read(data.replace(b"XYZ.py", b"X\xff\xfe.py"))
    assert "X��.py" in {trace.stacks.frame(i).file for i in range(len(trace.stacks.frame_file))}


def test_a_field_given_twice_counts_the_last_time() -> None:
    data = pickle.dumps(snapshot([event("snapshot", addr=1), event("snapshot", addr=2)], []), 2)
    twice = data.replace(
        b"K\x02", b"K\x02s}", 1
    )  # no longer a pickle: the dict is closed too early
    with pytest.raises(NotARecording):
        read(twice)
    keys = b"(" + b"".join(
        b"X%c\0\0\0%s" % (len(k), k) + v
        for k, v in ((b"action", b"X\5\0\0\0alloc"), (b"size", b"K\1"), (b"size", b"K\2"))
    )
    made = b"\x80\x02}X\x0d\0\0\0device_traces]](}" + keys + b"ueas."
    assert read(made).devices[0].events.size.tolist() == [2]


@pytest.mark.parametrize(
    "value", [[1, 2], "text", 7, None, {}, {"a": 1}, (1, 2), [], {"segments_": []}], ids=repr
)
def test_other_pickles(value: Any) -> None:
    with pytest.raises(NotARecording, match="not a PyTorch memory snapshot"):
        read(pickle.dumps(value))


def test_a_snapshot_of_nothing() -> None:
    assert read(pickle.dumps({"segments": [], "device_traces": [[], []]})).devices == {}
    assert read(pickle.dumps({"segments": [], "device_traces": [[], []]})).main_device is None


def test_an_nccl_flight_record_is_named() -> None:
    data = lzma.decompress((DATA / "ranks/ddp/ddp.rank0.nccl.pickle.xz").read_bytes())
    with pytest.raises(NotARecording, match="NCCL flight record"):
        read(data)
