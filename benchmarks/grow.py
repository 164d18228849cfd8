"""Make a larger or smaller recording out of the real steps of a real one.

    python benchmarks/grow.py IN.pickle[.xz] OUT.pickle --events N

Step boundaries are the ends of the optimizer's annotations at which the allocator is in one and the
same state (same live allocations, pending frees and segments). Between two of them lies a *step*
that can be
dropped or repeated at will: whatever comes next finds every address as it was. The result is the
recording's start, as many whole steps as come closest to N events, and its end; ``time_us`` runs
on, each step's annotations go with it, and the final segments are the recording's own.

A repeated step is written the way PyTorch would have written another real one: fresh event dicts, a
fresh frame list wherever the original step had its own, frame dicts shared with the whole file. Its
bytes are those of the original step with the times and the memo indices of its own objects moved,
so memory use does not grow with N.
"""

from __future__ import annotations

import argparse
import gc
import lzma
import pickle
import pickletools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

REPEATED_STEPS = 32  # a larger recording cycles through the last so many real steps
BATCH = 1000  # items per APPENDS and
FRAME_BYTES = 64 * 1024  # bytes per frame, as CPython's pickler has them

Item = dict[str, Any]  # an event, an annotation or the snapshot itself
Plan = list[int]  # indices of the steps to write


@dataclass(frozen=True)
class Step:
    """Events [first, last) and annotations [first_mark, last_mark) between two equal allocator
    states.
    """

    first: int
    last: int
    first_mark: int
    last_mark: int
    start_us: int
    end_us: int


def load(path: Path) -> dict[str, Any]:
    """The snapshot in `path`. Reads with pickle: only for recordings that you made yourself."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        snapshot: dict[str, Any] = pickle.load(file)
    return snapshot


def states_at_marks(events: list[Item], marks: list[Item]) -> list[tuple[int, int, int]]:
    """(first later event, first later annotation, state) at the end of every annotation."""
    found = []
    live: dict[int, int] = {}
    state = at = 0
    for index, mark in enumerate(marks, start=1):
        if mark["stage"] != "END":
            continue
        while at < len(events) and events[at]["time_us"] <= mark["time_us"]:
            event = events[at]
            action, address = event["action"], event["addr"]
            if action == "alloc":
                live[address] = hash((address, event["size"], id(event["frames"])))
                state ^= live[address]
            elif action == "free_requested":
                state ^= hash((address, "pending"))
            elif action == "free_completed":
                state ^= hash((address, "pending")) ^ live.pop(address, 0)
            else:
                state ^= hash((action.partition("_")[0], address, event["size"]))
            at += 1
        found.append((at, index, state))
    return found


def find_steps(events: list[Item], marks: list[Item]) -> list[Step]:
    """The recording's interchangeable steps, in order and without a gap."""
    states = states_at_marks(events, marks)
    by_event = {
        at: (mark, state) for at, mark, state in states
    }  # of marks with no event between, the last
    times = Counter(state for _, state in by_event.values())
    common = max(times, key=times.__getitem__, default=0)
    cuts = {at: mark for at, (mark, state) in by_event.items() if state == common}
    if len(cuts) < 3:
        raise SystemExit(
            "grow: no two steps that start and end with the allocator in the same state"
        )
    return [
        Step(a, b, m, n, marks[m - 1]["time_us"], marks[n - 1]["time_us"])
        for (a, m), (b, n) in pairwise(cuts.items())
    ]


def plan_steps(steps: list[Step], fixed: int, wanted: int) -> Plan:
    """Which steps to write so that they and the `fixed` events around them come closest to
    `wanted`.
    """
    plan: Plan = []
    total = fixed
    cycle = min(REPEATED_STEPS, len(steps))
    while True:
        beyond = len(plan) - len(steps)
        step = len(plan) if beyond < 0 else len(steps) - cycle + beyond % cycle
        size = steps[step].last - steps[step].first
        if total + size / 2 > wanted:
            return plan
        plan.append(step)
        total += size


def shifted(items: Iterable[Item], shift_us: int) -> Iterator[Item]:
    """The same items, later; every other value in them stays the same object."""
    return ({**item, "time_us": item["time_us"] + shift_us} if shift_us else item for item in items)


class Opcodes:
    """Turns values into bare opcodes (no header, frames, STOP) that refer to what was pickled
    before.
    """

    def __init__(self) -> None:
        self.dumped = bytearray()
        self.pickler = pickle.Pickler(self, protocol=4)
        self.unseen_from = 0  # memo index from which on
        self.unseen = (
            0  # so many objects of repeated steps precede in the file, unknown to the pickler
        )

    def write(self, data: bytes) -> None:
        self.dumped += data

    def of(self, value: object) -> bytes:
        self.dumped.clear()
        self.pickler.dump(value)
        data, at, parts = self.dumped, 2, []
        while data[at : at + 1] == pickle.FRAME:
            end = at + 9 + int.from_bytes(data[at + 1 : at + 9], "little")
            parts.append(data[at + 9 : end])
            at = end
        opcodes = b"".join([*parts, data[at:]])[:-1]
        return self.moved(opcodes) if self.unseen else opcodes

    def moved(self, opcodes: bytes) -> bytes:
        out = bytearray(opcodes)
        for index, at in own_references(opcodes, self.unseen_from):
            out[at : at + 4] = (index + self.unseen).to_bytes(4, "little")
        return bytes(out)

    def memo_index(self, value: object) -> int:
        """Where a reader's memo holds a value that was pickled before."""
        (opcode, index, _), *_ = pickletools.genops(self.of(value) + pickle.STOP)
        assert opcode.name in ("BINGET", "LONG_BINGET")
        assert isinstance(index, int)
        return index


def own_references(opcodes: bytes, memo_start: int) -> Iterator[tuple[int, int]]:
    """(memo index, byte offset) of each four-byte reference to `memo_start` or later."""
    for opcode, argument, at in pickletools.genops(opcodes + pickle.STOP):
        if opcode.name == "LONG_BINGET":
            assert isinstance(argument, int)
            assert at is not None
            if argument >= memo_start:
                yield argument, at + 1


class StepBytes:
    """One step's events as opcodes that can be written again, later and with objects of their
    own.
    """

    def __init__(
        self, step: Step, events: list[Item], pickled: list[bytes], memo_start: int
    ) -> None:
        joined = b"".join(pickled)
        self.step = step
        self.memo_start = memo_start
        names = (opcode.name for opcode, _, _ in pickletools.genops(joined + pickle.STOP))
        self.memo_count = sum(name == "MEMOIZE" for name in names)
        self.opcodes = np.frombuffer(joined, dtype=np.uint8)
        self.ends = np.cumsum([len(event) for event in pickled]).tolist()
        self.times_us = np.array([event["time_us"] for event in events], dtype="<i8")
        self.time_at = np.array(
            [
                end
                - len(data)
                + data.index(b"\x8a\x07" + event["time_us"].to_bytes(7, "little"))
                + 2
                for end, data, event in zip(self.ends, pickled, events, strict=True)
            ]
        )
        references = list(own_references(joined, memo_start))
        self.references = np.array([index for index, _ in references], dtype="<u4")
        self.reference_at = np.array([at for _, at in references])

    def again(self, shift_us: int, memo_start: int) -> Iterator[bytes]:
        """Each event's opcodes, `shift_us` later, for a reader whose memo has `memo_start`
        objects.
        """
        out: NDArray[np.uint8] = self.opcodes.copy()
        times = (self.times_us + shift_us).view(np.uint8).reshape(-1, 8)
        out[self.time_at[:, None] + np.arange(7)] = times[:, :7]
        references = (
            (self.references + np.uint32(memo_start - self.memo_start))
            .view(np.uint8)
            .reshape(-1, 4)
        )
        out[self.reference_at[:, None] + np.arange(4)] = references
        data = out.tobytes()
        return (data[a:b] for a, b in pairwise([0, *self.ends]))


def event_opcodes(
    opcodes: Opcodes, events: list[Item], steps: list[Step], plan: Plan
) -> Iterator[bytes]:
    """The opcodes of every event of the new trace: start, planned steps, end."""
    yield from map(opcodes.of, events[: steps[0].first])
    clock_us = steps[0].start_us
    repeated: dict[int, StepBytes] = {}
    for place, index in enumerate(plan):
        step = steps[index]
        if place >= len(steps):
            again = repeated[index]
            yield from again.again(clock_us - step.start_us, opcodes.unseen_from + opcodes.unseen)
            opcodes.unseen += again.memo_count
        else:
            own = events[step.first : step.last]
            pickled = [opcodes.of(event) for event in own]
            yield from pickled
            if len(plan) > len(steps) and index >= len(steps) - REPEATED_STEPS:
                repeated[index] = last = StepBytes(step, own, pickled, opcodes.memo_index(own[0]))
                opcodes.unseen_from = last.memo_start + last.memo_count
        clock_us += step.end_us - step.start_us
    yield from map(opcodes.of, shifted(events[steps[-1].last :], clock_us - steps[-1].end_us))


def new_marks(marks: list[Item], steps: list[Step], plan: Plan) -> list[Item]:
    """The annotations of the new trace."""
    out = marks[: steps[0].first_mark]
    clock_us = steps[0].start_us
    for step in (steps[index] for index in plan):
        out += shifted(marks[step.first_mark : step.last_mark], clock_us - step.start_us)
        clock_us += step.end_us - step.start_us
    return out + list(shifted(marks[steps[-1].last_mark :], clock_us - steps[-1].end_us))


def write(file: BinaryIO, pieces: Iterable[bytes]) -> None:
    """Pieces of opcodes as a pickle of protocol 4: header, frames, STOP."""
    frame = bytearray()
    file.write(pickle.PROTO + b"\x04")
    for piece in pieces:
        frame += piece
        if len(frame) >= FRAME_BYTES:
            file.write(pickle.FRAME + len(frame).to_bytes(8, "little") + frame)
            frame.clear()
    frame += pickle.STOP
    file.write(pickle.FRAME + len(frame).to_bytes(8, "little") + frame)


def snapshot_opcodes(snapshot: Item, device: int, steps: list[Step], plan: Plan) -> Iterator[bytes]:
    """The opcodes of the whole new snapshot, its keys in the recording's order."""
    opcodes = Opcodes()
    yield opcodes.of({}) + pickle.MARK
    for key, value in snapshot.items():
        yield opcodes.of(key)
        if key == "external_annotations":
            yield opcodes.of(new_marks(value, steps, plan))
        elif key == "device_traces":
            yield opcodes.of([]) + pickle.MARK
            for index, trace in enumerate(value):
                yield opcodes.of([]) + pickle.MARK
                if index == device:
                    for count, event in enumerate(event_opcodes(opcodes, trace, steps, plan)):
                        yield (
                            pickle.APPENDS + pickle.MARK + event
                            if count and count % BATCH == 0
                            else event
                        )
                yield pickle.APPENDS
            yield pickle.APPENDS
        else:
            yield opcodes.of(value)
    yield pickle.SETITEMS


def grow(source: Path, target: Path, wanted: int) -> int:
    """Write `target`; returns its number of events."""
    gc.disable()  # a snapshot is millions of objects without a cycle among them
    snapshot = load(source)
    traces = snapshot["device_traces"]
    device, *others = [index for index, trace in enumerate(traces) if trace]
    if others:
        raise SystemExit("grow: events on more than one device")
    marks = snapshot["external_annotations"]
    steps = find_steps(traces[device], marks)
    fixed = len(traces[device]) - sum(step.last - step.first for step in steps)
    plan = plan_steps(steps, fixed, wanted)
    with target.open("wb") as file:
        write(file, snapshot_opcodes(snapshot, device, steps, plan))
    return fixed + sum(steps[index].last - steps[index].first for index in plan)


def main() -> None:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument(
        "source", type=Path, help="a snapshot, .pickle or .pickle.xz, of one device"
    )
    parser.add_argument("target", type=Path, help="the .pickle to write")
    parser.add_argument(
        "--events", type=int, required=True, help="about how many events it shall have"
    )
    args = parser.parse_args()
    events = grow(args.source, args.target, args.events)
    print(f"{args.target.name}: {events:,} events, {args.target.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
