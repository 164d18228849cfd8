"""The native core against the oracle: identical columns for every recording, however it was
pickled.
"""

from __future__ import annotations

import copy
import io
import locale
import os
import pickle
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import oracle
from support.oracle import MIB, Event, FreeList, lifetimes_of, rounded
from support.recordings import (
    ALL,
    SMALL,
    collector_off,
    data_of,
    dump_one_by_one,
    dump_slowly,
    event,
    final_segments,
    read,
    snapshot,
)
from vramlens import _native
from vramlens._layout import layout_of
from vramlens.errors import VramlensError
from vramlens.read.snapshot import read_snapshot
from vramlens.trace import BEFORE, Action, DeviceTrace

# The largest takes the oracle as long as all others together: with VRAMLENS_TEST_ALL=1.
READ = (
    ALL if os.environ.get("VRAMLENS_TEST_ALL") else [name for name in ALL if "million" not in name]
)


@pytest.mark.parametrize("name", READ)
def test_a_recording_reads_as_the_oracle_reads_it(name: str) -> None:
    with collector_off():
        data = data_of(name)
        oracle.assert_same(read(data), oracle.load(data))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", SMALL[::3])
def test_every_protocol(name: str, protocol: int) -> None:
    value = oracle.load(data_of(name))
    oracle.assert_same(read(pickle.dumps(value, protocol)), value)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("dump", [dump_slowly, dump_one_by_one])
@pytest.mark.parametrize(
    "name", ["recordings/graphs", "recordings/streams", "replay/recorded/streams__c2"]
)
def test_other_picklers(name: str, dump: Any, protocol: int) -> None:
    value = oracle.load(data_of(name))
    oracle.assert_same(read(dump(value, protocol)), value)


@pytest.mark.parametrize("name", ["recordings/streams", "recordings/oom_leak"])
def test_stacks_that_are_not_shared(name: str) -> None:
    value = oracle.load(data_of(name))
    shared = read(data_of(name))
    value["device_traces"] = [
        [copy.deepcopy(e) for e in events] for events in value["device_traces"]
    ]
    for item in value["segments"]:
        item["blocks"] = [copy.deepcopy(b) for b in item["blocks"]]
    apart = read(pickle.dumps(value))
    oracle.assert_same(apart, value)
    assert len(apart.stacks) == len(shared.stacks)
    assert len(apart.stacks.frame_file) == len(shared.stacks.frame_file)


class InPieces(io.BytesIO):
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._choose, self._most = random.Random(most), most

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[: self._choose.randint(1, self._most)])


@pytest.mark.parametrize("most", [1, 3, 100, 70_000])
@pytest.mark.parametrize("name", ["recordings/graphs", "recordings/streams", "recordings/oom_leak"])
def test_streams_that_come_in_pieces(name: str, most: int) -> None:
    data = data_of(name)
    oracle.assert_same(read_snapshot(InPieces(data, most), name), oracle.load(data))


# ---- made-up histories -----------------------------------------------------------------

SIZES = [
    1,
    511,
    512,
    513,
    4096,
    MIB - 1,
    MIB,
    MIB + 1,
    3 * MIB,
    9 * MIB,
    10 * MIB,
    21 * MIB,
    40 * MIB,
]
SETTINGS: list[dict[str, Any]] = [
    {"max_split_size": -1},
    {"max_split_size": 20 * MIB},
    {"max_split_size": -1, "roundup_power2_divisions": {str(1 << i): 4 for i in range(16)}},
]


class Allocator:
    """A caching allocator that picks at random among what the rules allow, and records what it
    did.
    """

    def __init__(self, choose: random.Random, settings: dict[str, Any], expandable: bool) -> None:
        self.choose, self.settings, self.expandable = choose, settings, expandable
        self.events: list[dict[str, Any]] = []
        self.free = FreeList()
        self.live: dict[
            int, tuple[int, int, int, Any]
        ] = {}  # address: requested, taken, stream, owner
        self.pending: list[int] = []
        self.top = {stream: (1 + stream) << 40 for stream in range(3)}
        self.segments: dict[int, tuple[int, int]] = {}  # address: size, stream

    def note(self, action: str, addr: int, size: int, stream: int) -> None:
        line = self.choose.randrange(4)
        frames = [{"filename": "train.py", "line": line, "name": "step"}] * (line + 1)
        self.events.append(
            event(action, addr, size, stream=stream, time_us=len(self.events), frames=frames)
        )

    def grow(self, size: int, stream: int) -> int:
        page = 2 * MIB if size <= MIB else 20 * MIB
        size = -(-size // page) * page
        address = self.top[stream]
        self.top[stream] += size + (0 if self.expandable else page * self.choose.randrange(2))
        owner = ("mapped", stream) if self.expandable else ("segment", address)
        self.free.give(address, address + size, owner)
        if not self.expandable:
            self.segments[address] = size, stream
        self.note("segment_map" if self.expandable else "segment_alloc", address, size, stream)
        return address

    def allocate(self) -> None:
        requested, stream = (
            self.choose.choice(SIZES) + self.choose.randrange(2) * 100,
            self.choose.randrange(3),
        )
        size = rounded(requested, self.settings)
        mine = [p for p in self.free.pieces if p[1] - p[0] >= size and p[0] >> 40 == 1 + stream]
        if not mine:
            self.grow(size, stream)
            mine = [p for p in self.free.pieces if p[1] - p[0] >= size and p[0] >> 40 == 1 + stream]
        start, _, owner = self.choose.choice(mine)
        self.live[start] = requested, self.free.take(start, size, self.settings), stream, owner
        self.note("alloc", start, requested, stream)

    def request_free(self) -> None:
        if candidates := sorted(set(self.live) - set(self.pending)):
            address = self.choose.choice(candidates)
            self.note("free_requested", address, self.live[address][0], self.live[address][2])
            self.pending.append(address)
            if self.choose.random() < 0.7:  # else a stream still uses it (record_stream)
                self.complete_free()

    def complete_free(self) -> None:
        if self.pending:
            address = self.pending.pop(self.choose.randrange(len(self.pending)))
            requested, taken, stream, owner = self.live.pop(address)
            self.note("free_completed", address, requested, stream)
            self.free.give(address, address + taken, owner)

    def give_back(self) -> None:
        for start, end, owner in list(self.free.pieces):
            if owner[0] == "mapped":
                first, last = -(-start // (2 * MIB)) * 2 * MIB, end // (2 * MIB) * 2 * MIB
                if first < last and self.choose.random() < 0.5:
                    self.free.remove(first, last)
                    self.note("segment_unmap", first, last - first, owner[1])
            elif start == owner[1] and self.segments[start][0] == end - start:
                self.free.remove(start, end)
                self.note("segment_free", start, end - start, self.segments.pop(start)[1])

    def fail(self) -> None:
        self.events.append(
            {"action": "oom", "device_free": 5, "size": 512, "stream": 0, "time_us": 9}
        )

    def run(self, steps: int) -> list[dict[str, Any]]:
        acts = (
            [self.allocate] * 10
            + [self.request_free] * 7
            + [self.complete_free] * 2
            + [self.give_back, self.fail]
        )
        for _ in range(steps):
            self.choose.choice(acts)()
        return self.events


def rows_of(events: list[dict[str, Any]]) -> list[Event]:
    return oracle.tables_of(snapshot(events, [])).traces[0]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(0, 120),
    which=st.sampled_from(SETTINGS),
    expandable=st.booleans(),
    dropped=st.floats(0, 1),
)
def test_made_up_histories(
    seed: int, steps: int, which: dict[str, Any], expandable: bool, dropped: float
) -> None:
    events = Allocator(random.Random(seed), which, expandable).run(steps)
    life = lifetimes_of(rows_of(events), [], which)  # undone to nothing: that is how it began
    assert not any(life.base.values())
    first = int(dropped * len(events))
    value = snapshot(events[first:], final_segments(life), allocator_settings=which)
    trace = read(pickle.dumps(value))
    oracle.assert_same(trace, value)
    for device in trace.devices.values():
        _check_invariants(device)
        assert device.requested_curve.tolist() == life.curves["requested"][first:]
        assert device.reserved_curve.tolist() == life.curves["reserved"][first:]


def _check_invariants(device: DeviceTrace) -> None:
    a, count = device.allocations, len(device.events)
    assert (a.born < a.died).all()
    assert (a.born <= a.free_requested).all()
    assert (a.free_requested <= a.died).all()
    assert (a.taken_bytes >= a.requested_bytes).all()
    for event_index in range(BEFORE, count, 7):
        alive = a.alive_after(event_index)
        now = (
            device.requested.base_bytes
            if event_index == BEFORE
            else int(device.requested_curve[event_index])
        )
        assert int(a.requested_bytes[alive].sum()) == now >= 0
        ends = a.address[alive] + a.taken_bytes[alive].astype(a.address.dtype)
        order = a.address[alive].argsort()
        assert (ends[order][:-1] <= a.address[alive][order][1:]).all()  # blocks never overlap
        held = device.segments.alive_after(event_index)
        now = (
            device.reserved.base_bytes
            if event_index == BEFORE
            else int(device.reserved_curve[event_index])
        )
        assert int(device.segments.size_bytes[held].sum()) == now >= 0


def test_without_the_core_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_loaded", None)
    monkeypatch.setattr("vramlens.__path__", [])
    with pytest.raises(VramlensError, match="native core of vramlens is missing: install"):
        read(pickle.dumps(snapshot([], [])))


def description() -> str:
    """The layout as the core describes it."""
    return str(_native._core().library.vl_layout().decode())


def test_actions_are_those_of_the_core() -> None:
    actions = _native._core().layout.numbers["action"]
    named = {action.name.lower(): action.value for action in Action if action != Action.OTHER}
    assert actions == named


@pytest.mark.parametrize("name", ["vl_column", "vl_device", "vl_what_if", "vl_outcome"])
def test_a_structure_takes_only_its_own_fields(name: str) -> None:
    with pytest.raises(AttributeError):
        _native._core().structure(name, no_such_field=1)


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("int64 count 8\n", ""),  # a field that the description lacks
        ("int64 count 8\n", "int32 count 8\n"),
        ("int64 count 8\nint32 type 16\n", "int32 type 16\nint64 count 8\n"),
        ("struct vl_status 176\n", "struct vl_status 184\n"),
        ("number unsafe 2\nnumber limit 3\n", "number limit 2\nnumber unsafe 3\n"),
        ("number wide_int 3\n", ""),
        ("number at_once 1\n", "number at_once 4\n"),
    ],
)
def test_a_core_of_another_layout_is_refused(line: str, other: str) -> None:
    assert line in description()
    layout_of(description())
    with pytest.raises(VramlensError, match="another version"):
        layout_of(description().replace(line, other))


def test_settings_where_the_program_writes_a_comma_for_a_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs set their locale, and the verdict on a failure is made inside of them."""
    made = shutil.which("localedef") and subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", tmp_path / "de_DE"],
        capture_output=True,
        check=False,
    )
    if not made or made.returncode:
        pytest.skip("this system cannot make a locale")
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    before = locale.setlocale(locale.LC_NUMERIC)
    locale.setlocale(locale.LC_NUMERIC, "de_DE")
    try:
        value = {**snapshot([], []), "allocator_settings": {"threshold": 0.8, "tiny": -1.5e-300}}
        assert read(pickle.dumps(value)).settings == {"threshold": 0.8, "tiny": -1.5e-300}
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)
