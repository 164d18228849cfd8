"""Profiler traces: kineto's JSON of today and of old, other JSON left alone, hostile and
truncated files.
"""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from support.kineto import BASE_US, MIB, PID, Kineto, read, read_gz, training
from vramlens.errors import NotARecording, UnsafeInput
from vramlens.read.profiler_trace import read_profiler_trace
from vramlens.trace.profile import NONE, Kind, MemoryDevice, ProfilerTrace

TRAIN = Path(__file__).parents[1] / "data" / "profiler" / "train.json.gz"


def kinds(trace):
    return {
        kind.name: int((trace.spans.kind == kind).sum())
        for kind in Kind
        if (trace.spans.kind == kind).any()
    }


def test_a_trace_as_kineto_writes_it():
    trace = training().read()
    assert kinds(trace) == {"OPERATOR": 21, "REGION": 9, "RUNTIME": 12, "PYTHON": 10, "KERNEL": 12}
    assert trace.missing == ()
    assert list(trace.memory_devices) == [MemoryDevice(1, 0)]
    assert str(trace.memory_devices[0]) == "cuda:0"
    assert trace.facts["deviceProperties"][0]["name"] == "NVIDIA H200"
    assert trace.spans.start_ns.min() == 0
    assert (np.diff(trace.spans.start_ns) >= 0).all()
    assert trace.resolution_ns == 1000  # all of its times are whole microseconds


def test_numbers_of_a_launch_and_its_kernel():
    made = Kineto()
    made.op("aten::add", 0, 20)
    made.launch(5, 10, "add<float>(int, float*)", 30, 12.5, device=3, stream=7, external=1)
    trace = made.read()
    spans = trace.spans
    (kernel,) = spans.of((Kind.KERNEL,))
    (call,) = spans.of((Kind.RUNTIME,))
    assert spans.correlation[kernel] == spans.correlation[call] == 1
    assert spans.device[kernel] == 3
    assert spans.device[call] == NONE
    assert (spans.start_ns[kernel], spans.end_ns[kernel]) == (30_000, 42_500)
    assert trace.names[spans.name[kernel]] == "add<float>(int, float*)"


def test_memory_events_keep_their_order_sums_and_addresses():
    made = Kineto()
    made.memory(1, 512, 0x7F00_0000_0000, allocated=512, reserved=2 * MIB)
    made.memory(1, -512, 0x7F00_0000_0000, allocated=0, reserved=2 * MIB)
    made.memory(0.5, 1024, 2**64 - 4096, allocated=1024, reserved=0, type=0, device=-1)
    memory = made.read().memory
    assert memory.size.tolist() == [1024, 512, -512]
    assert memory.address.tolist() == [2**64 - 4096, 0x7F00_0000_0000, 0x7F00_0000_0000]
    assert memory.allocated.tolist() == [1024, 512, 0]
    assert memory.reserved.tolist() == [0, 2 * MIB, 2 * MIB]


def test_what_a_failed_request_leaves():
    made = Kineto()
    event = made.memory(1, 7 * MIB, 0, allocated=MIB, reserved=MIB)
    event["name"] = "[OutOfMemory]"
    del event["args"]["Addr"]
    assert made.read().memory.failed.tolist() == [True]


def old_event(**changes):
    """As kineto wrote them in 2021 (PyTorch 1.9): other categories, ids in small letters,
    threads as text.
    """
    event = {
        "ph": "X",
        "cat": "Operator",
        "name": "aten::add",
        "pid": PID,
        "tid": str(PID),
        "ts": 1623142623460111,
    }
    event |= {
        "dur": 25,
        "args": {"Device": PID, "External id": 2, "Trace name": "PyTorch Profiler"},
    }
    return event | changes


def old_trace():
    runtime = {"cbid": 211, "correlation": 9, "external id": 2, "external ts": 1623142623460111}
    kernel = {
        "queued": 0,
        "device": 0,
        "context": 1,
        "stream": 7,
        "correlation": 9,
        "external id": 2,
    }
    return [
        old_event(),
        old_event(name="ProfilerStep#5", ts=1623142623460100, dur=100),
        old_event(cat="Runtime", name="cudaLaunchKernel", ts=1623142623460115, dur=5, args=runtime),
        old_event(
            cat="Kernel", name="k", pid=0, tid="stream 7", ts=1623142623460130, dur=7, args=kernel
        ),
        old_event(
            cat="Memcpy",
            name="Memcpy HtoD",
            pid=0,
            tid="stream 7",
            ts=1623142623460140,
            dur=7,
            args=kernel,
        ),
        old_event(
            cat="Memset",
            name="Memset",
            pid=0,
            tid="stream 7",
            ts=1623142623460150,
            dur=7,
            args=kernel,
        ),
        {"ph": "i", "s": "t", "name": "[memory]", "pid": PID, "tid": PID, "ts": 1623142623460121}
        | {"args": {"Device Type": 1, "Device Id": 0, "Bytes": 512}},
    ]


def test_a_trace_of_2021():
    trace = read(json.dumps({"schemaVersion": 1, "traceEvents": old_trace()}))
    assert kinds(trace) == {
        "OPERATOR": 1,
        "REGION": 1,
        "RUNTIME": 1,
        "KERNEL": 1,
        "COPY": 1,
        "FILL": 1,
    }
    assert trace.resolution_ns == 1000  # whole microseconds
    (kernel,) = trace.spans.of((Kind.KERNEL,))
    assert (trace.spans.external[kernel], trace.spans.correlation[kernel]) == (2, 9)
    # The memory event's thread is written as a number, the operator's as text: they are the same.
    (operator,) = trace.spans.of((Kind.OPERATOR,))
    assert trace.memory.thread[0] == trace.spans.thread[operator]
    assert trace.memory.address.tolist() == [0]
    assert trace.memory.allocated.tolist() == [NONE]


def test_the_profiler_without_kineto_writes_a_bare_array():
    events = [
        {
            "name": "aten::add",
            "ph": "X",
            "ts": 1.5,
            "dur": 2.0,
            "tid": 1,
            "pid": "CPU functions",
            "args": {},
        }
    ]
    trace = read(json.dumps(events))
    assert kinds(trace) == {"OPERATOR": 1}


def test_torchs_python_writer_gives_memory_events_a_duration():
    made = Kineto()
    made.op("aten::empty", 0, 5)
    made.memory(1, 512, 0x7F00, allocated=512).update(ph="X", dur=12.0)
    trace = made.read()
    assert len(trace.memory) == 1
    assert len(trace.spans) == 1


@pytest.mark.parametrize(
    "data",
    [
        b'{"level": "error", "message": "CUDA out of memory"}\n{"level": "info"}\n',
        b'[{"message": "CUDA out of memory"}, {"message": "x"}]',
        b"[rank0]: torch.OutOfMemoryError: CUDA out of memory",
        b"[1, 2, 3]",
        b"[]",
        b"{}",
        b'{"traceEvents": 5}',
        b'{"deviceProperties": [{"id"',
        b"{" * 100_000,
        b"[" * 100_000,
    ],
)
def test_other_json_comes_back_untouched(data):
    found = read_profiler_trace(io.BytesIO(data), "log.json")
    assert not isinstance(found, ProfilerTrace)
    assert found.read() == data


def test_a_chrome_trace_of_another_program_is_refused():
    event = {
        "ph": "X",
        "cat": "devtools.timeline",
        "name": "Paint",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 2,
    }
    with pytest.raises(NotARecording, match=r"^x\.json: is a Chrome trace"):
        read(json.dumps({"traceEvents": [event]}), "x.json")


def test_a_truncated_trace_gives_what_is_whole():
    text = training().text()
    whole = read(text)
    for length in range(len(text) // 3, len(text) - 1, 997):
        cut = read(text[:length])
        assert 0 < len(cut.spans) + len(cut.memory) <= len(whole.spans) + len(whole.memory)
        assert len(cut.missing) == 1
        assert "ends early" in cut.missing[0]


def test_a_mistake_in_the_middle_gives_what_comes_before_and_says_so():
    text = training().text().replace('"kernel"', '"kernel", "memory bandwidth (GB/s)": inf', 1)
    trace = read(text)
    assert len(trace.spans) > 5
    assert "is damaged" in trace.missing[0]
    assert "\n" not in trace.missing[0]


HOSTILE = [
    {"ts": None}, {"ts": "now"}, {"ts": -1}, {"ts": 1e300}, {"ts": 10**30}, {"dur": -5}, {"dur": 1e30}, {"name": 5},
    {"name": ["a"]}, {"args": 7}, {"args": []}, {"args": {"External id": "x"}}, {"args": {"External id": 10**30}},
    {"args": {"Sequence number": [1]}}, {"args": {"Fwd thread id": "x"}}, {"pid": ["a"]}, {"cat": ["cpu_op"]},
    {"cat": {"a": 1}}, {"cat": "kernel", "args": {"device": "GPU"}}, {"cat": "kernel", "args": {"correlation": 2**70}},
    {"name": 5, "args": None}, {"name": None, "args": None}, {"name": True, "args": {}},
]  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE, ids=str)
def test_an_event_that_makes_no_sense_is_left_out_and_counted(change):
    made = Kineto()
    made.op("aten::add", 0, 10)
    made.op("aten::bad", 20, 10)
    made.op("aten::mul", 40, 10)
    made.events[1] |= change
    trace = made.read()
    names = [trace.names[name] for name in trace.spans.name]
    assert names[0] == "aten::add"
    assert names[-1] == "aten::mul"
    assert all(type(name) is str for name in trace.names)
    if len(names) == 2 and change != {"cat": {"a": 1}}:
        assert "1 of 4 events" in trace.missing[0]


@pytest.mark.parametrize(
    "change",
    [
        {"Bytes": 2**64},
        {"Bytes": 2**45},
        {"Total Allocated": 2**62},
        {"Bytes": None},
        {"Device Type": "x"},
        {"Addr": "x"},
    ],
)
def test_a_memory_event_that_makes_no_sense_is_left_out(change):
    made = Kineto()
    made.memory(0, 512, 0x100, allocated=512)
    made.memory(1, 1024, 0x200, allocated=1536)["args"].update(change)
    made.memory(2, -512, 0x100, allocated=1024)
    trace = made.read()
    assert trace.memory.size.tolist() == [512, -512]
    assert len(trace.missing) == 1


def test_events_of_any_other_type_are_left_out():
    text = json.dumps({"traceEvents": [{"a": 1}, {}, old_event()]})
    assert len(read(text).spans) == 1
    assert "2 of 3" in read(text).missing[0]


def test_a_value_too_deep_is_refused():
    text = (
        training().text().replace('"kernel"', '"kernel", "x": ' + "[" * 100_000 + "]" * 100_000, 1)
    )
    with pytest.raises(UnsafeInput, match=r"^trace\.json: JSON nested too deeply"):
        read(text)


def test_more_devices_than_there_are_is_refused():
    made = Kineto()
    for number in range(300):
        made.memory(number, 512, 0x100, allocated=512, device=number)
    with pytest.raises(UnsafeInput, match="300 devices"):
        made.read()


def test_the_real_trace():
    trace = read_gz(TRAIN)
    assert kinds(trace)["PYTHON"] > 500
    assert list(trace.memory_devices) == [MemoryDevice(0, -1)]
    assert len(trace.memory) == 354
    assert trace.missing == ()
    assert trace.window_ns is not None
    assert trace.resolution_ns == 2
    assert not [name for name in trace.names if name.startswith("/")]


def test_times_do_not_depend_on_the_base():
    starts = Kineto(0.0)
    for made in (starts, later := Kineto(BASE_US)):
        made.op("a", 1.001, 5.002)
        made.op("b", 2.5, 0.25)
    assert later.read().spans.start_ns.tolist() == pytest.approx(
        starts.read().spans.start_ns.tolist(), abs=1
    )
