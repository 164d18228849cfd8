"""Profiler traces made by hand, event by event as kineto writes them
(libkineto/src/output_json.cpp).
"""

from __future__ import annotations

import gzip
import io
import json

from vramlens.read.profiler_trace import read_profiler_trace
from vramlens.trace.profile import ProfilerTrace

PID = 4242
BASE_US = 4_408_911_346_000.0
KIB, MIB = 1024, 1024**2

_HEAD = """
{
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0
    }
    ],
    "cuda_runtime_version": 13000,
    "with_stack": 1,
    "profile_memory": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": ["""
_TAIL = """
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": %.3f
  }
  ],
  "traceName": "train.json"
}"""


class Kineto:
    """Gathers events; times are microseconds from the beginning of the trace."""

    def __init__(self, base_us: float = BASE_US) -> None:
        self.base_us = base_us
        self.events: list[dict] = []
        self._external = self._correlation = 0
        self._last = 0.0

    def add(self, event: dict) -> dict:
        self.events.append(event)
        self._last = max(self._last, event.get("ts", 0) + event.get("dur", 0))
        return event

    def span(self, cat, name, start, dur, tid=PID, pid=PID, args=None):
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
        event |= {"ts": round(self.base_us + start, 3), "dur": round(float(dur), 3)}
        return self.add(event | ({"args": args} if args is not None else {}))

    def op(self, name, start, dur, tid=PID, sequence=None, backward=False, cat="cpu_op"):
        self._external += 1
        args = {"External id": self._external, "Record function id": 0, "Ev Idx": len(self.events)}
        if sequence is not None:
            args |= {"Sequence number": sequence, "Fwd thread id": 1 if backward else 0}
        return self.span(cat, name, start, dur, tid, args=args)

    def region(self, name, start, dur, tid=PID):
        return self.op(name, start, dur, tid, cat="user_annotation")

    def python(self, name, start, dur, tid=PID):
        return self.span(
            "python_function",
            name,
            start,
            dur,
            tid,
            args={"Python parent id": None, "Python id": 1},
        )

    def launch(
        self,
        start,
        dur,
        kernel,
        kernel_start,
        kernel_dur,
        *,
        tid=PID,
        device=0,
        stream=7,
        external=None,
    ):
        """A call of the runtime and the kernel that it launches; returns both."""
        self._correlation += 1
        number = {"External id": external} if external is not None else {}
        args = {**number, "cbid": 211, "correlation": self._correlation}
        call = self.span("cuda_runtime", "cudaLaunchKernel", start, dur, tid, args=args)
        args = {**number, "queued": 0, "device": device, "context": 1, "stream": stream}
        args |= {
            "correlation": self._correlation,
            "registers per thread": 16,
            "grid": [1, 1, 1],
            "block": [128, 1, 1],
        }
        return call, self.span("kernel", kernel, kernel_start, kernel_dur, stream, device, args)

    def memory(self, time, size, address, *, allocated=None, reserved=0, tid=PID, device=0, type=1):  # noqa: A002
        args = {
            "Total Reserved": reserved,
            "Total Allocated": allocated,
            "Bytes": size,
            "Device Id": device,
        }
        args |= {"Device Type": type, "Addr": address, "Ev Idx": len(self.events)}
        if allocated is None:
            del args["Total Allocated"], args["Total Reserved"]
        event = {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": PID,
            "tid": tid,
        }
        return self.add(event | {"ts": round(self.base_us + time, 3), "args": args})

    def text(self) -> str:
        bodies = [json.dumps(event) for event in self.events]
        last = self.base_us if not self.events else self._last
        return _HEAD + "".join(f"\n  {body}," for body in bodies) + _TAIL % last

    def read(self, name: str = "trace.json") -> ProfilerTrace:
        return read(self.text(), name)


def read(data: str | bytes, name: str = "trace.json") -> ProfilerTrace:
    found = read_profiler_trace(io.BytesIO(data.encode() if isinstance(data, str) else data), name)
    assert isinstance(found, ProfilerTrace)
    return found


def read_gz(path) -> ProfilerTrace:
    with gzip.open(path) as file:
        return read(file.read(), str(path))


def training() -> Kineto:
    """Three steps on a GPU that wait for data, keep 1 MiB each, with backward, optimizer and user
    lines.

    Step ``s`` lasts 1,000 us from 1,000 * s on: data until 300, forward until 500, backward until
    700 on a thread of its own, optimizer until 900.
    """
    trace, held, reserved = Kineto(), 10 * MIB, 64 * MIB
    backward_tid = PID + 1

    def memory(time, size, address, tid=PID):
        nonlocal held
        held += size
        trace.memory(time, size, address, allocated=held, reserved=reserved, tid=tid)

    trace.python("train.py(1): <module>", 0, 3000)
    for step in range(3):
        at = 1000.0 * step
        trace.region(f"ProfilerStep#{step}", at, 999)
        trace.python("train.py(20): train_step", at + 1, 997)
        trace.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 2, 298)
        trace.python("model.py(7): forward", at + 300, 200)
        trace.python("torch/nn/modules/linear.py(130): forward", at + 301, 198)
        trace.op("aten::linear", at + 310, 80, sequence=step)
        trace.op("aten::addmm", at + 320, 60, sequence=step)
        trace.op("aten::empty", at + 321, 4)
        memory(at + 322, 4 * MIB, 0x7F00_0000_0000)  # what the backward needs
        trace.launch(at + 330, 10, "sgemm", at + 345, 100)
        trace.op("aten::clone", at + 400, 50)
        memory(at + 401, 1 * MIB, 0x7F10_0000_0000 + step * MIB)  # kept
        trace.launch(at + 410, 10, "copy", at + 445, 20)
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        trace.op(node, at + 520, 150, tid=backward_tid, sequence=step, backward=True)
        trace.op("aten::mm", at + 530, 100, tid=backward_tid)
        memory(at + 531, 2 * MIB, 0x7F00_1000_0000, tid=backward_tid)  # the gradient
        trace.launch(at + 540, 10, "sgemm_bwd", at + 560, 100, tid=backward_tid)
        memory(at + 660, -4 * MIB, 0x7F00_0000_0000, tid=backward_tid)
        trace.region("Optimizer.step#SGD.step", at + 700, 200)
        trace.op("aten::add_", at + 710, 50)
        if step == 0:
            memory(at + 712, 3 * MIB, 0x7F00_2000_0000)  # momentum
        trace.launch(at + 720, 10, "add", at + 740, 40)
        memory(at + 950, -2 * MIB, 0x7F00_1000_0000)
    return trace
