"""Perfetto: decoded by the encoding's rules and by Perfetto's own schema, the trace says what
the recording does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from support.protobuf_reader import fields, one
from support.recordings import truth_of
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.export.timeline import LARGEST

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Decoded:
    """A trace by the field numbers of Perfetto's published schema."""

    def __init__(self, data: bytes) -> None:
        self.tracks: dict[int, dict[int, Any]] = {}
        self.counters: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.slices: dict[int, list[tuple[int, int, str, dict[str, Any]]]] = defaultdict(list)
        self.clocks: dict[int, int] = {}
        self.flags: list[int] = []
        names: dict[int, str] = {}
        keys: dict[int, str] = {}
        for field, packet in fields(data):
            assert field == 1
            assert isinstance(packet, bytes)
            found = one(packet)
            assert found[10] == 1
            self.flags.append(int(found.get(13, 0)))
            if 6 in found:
                self.clocks = {
                    int(clock[1]): int(clock[2]) for clock in (one(c) for _, c in fields(found[6]))
                }
            if 60 in found:
                track = one(found[60])
                self.tracks[int(track[1])] = track
            for number, told in fields(found.get(12, b"")):
                entry = one(told)
                known = {2: names, 3: keys}[number]
                assert entry[1] not in known
                known[entry[1]] = entry[2].decode()
            if 11 in found:
                self._event(int(found[8]), list(fields(found[11])), names, keys)

    def _event(
        self, time: int, parts: list[tuple[int, Any]], names: dict[int, str], keys: dict[int, str]
    ) -> None:
        event = dict(parts)
        kind, track = event[9], event[11]
        assert track in self.tracks
        if kind == COUNTER:
            self.counters[track].append((time, event[30]))
            return
        details = [one(part) for number, part in parts if number == 4]
        args = {keys[each[1]]: (each[6].decode() if 6 in each else each[4]) for each in details}
        self.slices[track].append((time, kind, names[event[10]] if 10 in event else "", args))

    def name(self, track: int) -> str:
        return self.tracks[track][2].decode()

    def counter(self, name: str) -> list[tuple[int, int]]:
        (track,) = (track for track in self.counters if self.name(track) == name)
        return self.counters[track]

    def closed(self) -> dict[str, list[tuple[int, int, str, dict[str, Any]]]]:
        """By track name its spans, each begun and ended; ends close what was begun last."""
        found = defaultdict(list)
        for track, events in self.slices.items():
            assert [event[0] for event in events] == sorted(event[0] for event in events)
            open_: list[tuple[int, str, dict[str, Any]]] = []
            for time, kind, name, args in events:
                if kind == BEGIN:
                    open_.append((time, name, args))
                elif kind == INSTANT:
                    found[self.name(track)].append((time, time, name, args))
                else:
                    begin, told, more = open_.pop()
                    found[self.name(track)].append((begin, time, told, more))
            assert not open_
        return found


def test_counters_are_the_recordings(view: Attribution, exported: Callable[..., bytes]) -> None:
    decoded, device = (
        Decoded(exported(view.trace, "perfetto", device=view.device.device)),
        view.device,
    )
    for name in ("requested", "allocated", "reserved"):
        values = decoded.counter(f"{name} bytes")
        assert max(value for _, value in values) == getattr(device, name).peak_bytes
        assert [time for time, _ in values] == sorted(time for time, _ in values)
    curve = [device.requested.base_bytes, *device.requested_curve.tolist()]
    moved = [size for place, size in enumerate(curve) if not place or curve[place - 1] != size]
    assert [value for _, value in decoded.counter("requested bytes")] == moved
    assert decoded.clocks[1] == int(device.clock_us[0]) * 1000
    assert decoded.flags[0] == 1
    assert set(decoded.flags[1:]) <= {0, 2}


@pytest.mark.parametrize("name", ["gpt_annotated", "graphs", "oom_train", "streams"])
def test_counters_reach_what_the_gpu_itself_counted(
    name: str, view_of: Callable[[str], Attribution], exported: Callable[..., bytes]
) -> None:
    stats = truth_of(f"recordings/{name}")["stats"]
    decoded = Decoded(exported(view_of(name).trace, "perfetto"))
    for counter in ("requested", "allocated", "active", "reserved"):
        values = [value for _, value in decoded.counter(f"{counter} bytes")]
        assert max(values) == stats[f"{counter}_bytes.all.peak"]


def test_spans_are_the_steps_the_regions_and_the_largest_allocations(
    view: Attribution, exported: Callable[..., bytes]
) -> None:
    spans = Decoded(exported(view.trace, "perfetto", device=view.device.device)).closed()
    assert len(spans[f"steps ({view.steps.source})"]) == len(view.steps)
    notes = view.trace.annotations
    assert len(spans["regions"]) == int(notes.starts.sum())
    drawn, sizes = spans["largest allocations"], view.device.allocations.requested_bytes
    expected = sorted(sizes.tolist(), reverse=True)[:LARGEST]
    assert sorted((args["bytes"] for *_, args in drawn), reverse=True) == expected
    marks = [name for _, _, name, _ in spans["peak and failures"]]
    assert sum(name.startswith("peak: ") for name in marks) == 1
    assert sum(name.startswith("out of memory: ") for name in marks) == len(
        view.device.out_of_memory
    )


def test_the_stack_of_an_allocation_is_its_recorded_one(
    view_of: Callable[[str], Attribution], exported: Callable[..., bytes]
) -> None:
    view = view_of("oom_train")
    spans = Decoded(exported(view.trace, "perfetto")).closed()["largest allocations"]
    rows = view.device.allocations
    row = int(rows.requested_bytes.argmax())
    (args,) = (args for *_, args in spans if args["born"] == int(rows.born[row]))
    frames = view.trace.stacks.of(int(rows.stack[row]))
    assert args["stack"].splitlines() == [f"{f.file}:{f.line} in {f.function}" for f in frames]
    assert args["address"] == f"0x{int(rows.address[row]):x}"


def test_what_is_reduced_is_told(view_of: Callable[[str], Attribution]) -> None:
    import io

    from vramlens.export import export_recording

    view = view_of("oom_train")
    written = export_recording(view.trace, "perfetto", io.BytesIO())
    count = len(view.device.allocations)
    assert f"the 1,000 largest of {count:,} allocations as spans" in " ".join(written.notes)


def test_perfettos_own_schema_reads_the_same(
    view_of: Callable[[str], Attribution], exported: Callable[..., bytes]
) -> None:
    schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    data = exported(view_of("gpt_annotated").trace, "perfetto")
    trace = schema.Trace()
    assert trace.ParseFromString(data) == len(data)
    assert trace.SerializeToString(deterministic=True)
    counters: dict[str, list[int]] = defaultdict(list)
    names = {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            names[described.uuid] = described.name
            if described.HasField("counter"):
                assert described.counter.unit == schema.CounterDescriptor.UNIT_SIZE_BYTES
        elif packet.track_event.type == schema.TrackEvent.TYPE_COUNTER:
            counters[names[packet.track_event.track_uuid]].append(packet.track_event.counter_value)
    decoded = Decoded(data)
    assert {name: [value for _, value in decoded.counter(name)] for name in counters} == counters
    device = view_of("gpt_annotated").device
    assert max(counters["reserved bytes"]) == device.reserved.peak_bytes
