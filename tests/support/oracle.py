"""The slow and obvious twin of the native reader: what a snapshot says, worked out with dicts and
lists.

``load`` unpickles safely, ``tables_of`` writes down what a Trace must hold, ``lifetimes_of`` pairs
the events of one device, ``assert_same`` compares all of it with a Trace.
"""

from __future__ import annotations

import io
import math
import pickle
from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vramlens.trace import BEFORE, NO_STACK, NO_TEXT, Action, DeviceTrace, Segments, Trace

MIB = 1 << 20
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
)
EVENT_KEYS = {
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "frames",
    "compile_context",
    "user_metadata",
    "pool_id",
    "device_free",
}
SEGMENT_KEYS = {
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
    "segment_type", "segment_pool_id", "frames", "is_expandable", "blocks",
}  # fmt: skip
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames", "history"}
ANNOTATION_KEYS = {"stage", "name", "device", "time_us"}
SECTIONS = {
    "segments",
    "device_traces",
    "host_segments",
    "host_traces",
    "external_annotations",
    "allocator_settings",
}
PENDING = ("active_pending_free", "active_awaiting_free")

Stack = tuple[tuple[str, int, str], ...]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(str(pid))


def load(data: bytes) -> Any:
    """The value of a pickle that holds nothing but values."""
    return _Unpickler(io.BytesIO(data)).load()


# ---- what a field is worth -------------------------------------------------------------


def is_number(value: object) -> bool:
    """Whether a cell of 64 bits can hold it."""
    return type(value) is int and -(2**63) <= value < 2**64


def text(value: str) -> str:
    """A text as a Trace shows it: half a surrogate pair is no UTF-8."""
    return value.encode(errors="surrogatepass").decode(errors="replace")


def plain(value: Any) -> Any:
    """A value as side columns show it: JSON's types; a number wider than 64 bits is text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if is_number(value) else "0x" + pickle.encode_long(value)[::-1].hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return text(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="replace")
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    assert isinstance(value, dict)
    return {_plain_key(key): plain(item) for key, item in value.items()}


def _plain_key(key: Any) -> str:
    if isinstance(key, str):
        return text(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return str(plain(key)).replace(" ", "")


def stack_of(frames: Any) -> Stack | None:
    """File, line and function of each frame; None where it is no list of frames."""
    if not isinstance(frames, list) or not all(
        isinstance(f, dict) and "filename" in f for f in frames
    ):
        return None
    found = []
    for frame in frames:
        file, line, name = frame["filename"], frame.get("line"), frame.get("name")
        found.append(
            (
                text(file) if isinstance(file, str) else "",
                _number(line),
                text(name) if isinstance(name, str) else "",
            )
        )
    return tuple(found)


def _number(value: Any) -> int:
    return int(value) if is_number(value) else 0


def _wide_is_text(value: Any) -> Any:
    return plain(value) if type(value) is int and not is_number(value) else value


def _unsigned(value: Any) -> int:
    return _number(value) % 2**64


def _pool(value: Any) -> tuple[int, int] | None:
    good = isinstance(value, tuple) and len(value) == 2 and all(is_number(part) for part in value)
    return (value[0], value[1]) if good else None


class Event(NamedTuple):
    action: int
    address: int
    size: int
    stream: int
    time_us: int
    stack: Stack | None
    compile_context: str
    user_metadata: str
    other_action: str
    pool: tuple[int, int] | None


class Block(NamedTuple):
    address: int
    size: int
    requested: int
    state: str
    stack: Stack | None


class Segment(NamedTuple):
    device: int
    address: int
    size: int
    stream: int
    expandable: bool
    pool: tuple[int, int] | None
    blocks: tuple[Block, ...]


@dataclass
class Tables:
    """A snapshot as lists; ``extras`` holds unknown fields as {(table, name): [(row, value),
    ...]}.
    """

    traces: list[list[Event]] = field(default_factory=list)
    host_traces: list[list[Event]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    host_segments: list[Segment] = field(default_factory=list)
    annotations: list[tuple[str, bool, int, int]] = field(default_factory=list)
    extras: dict[tuple[str, str], list[tuple[int, Any]]] = field(default_factory=dict)
    frame_extras: set[tuple[Any, ...]] = field(default_factory=set)
    failures: list[list[tuple[int, int, int | None]]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    has_segments: bool = False


class _Reader:
    def __init__(self) -> None:
        self.tables = Tables()
        self._rows: dict[str, dict[int, int]] = {}
        self._stacks: dict[int, Stack | None] = {}

    def row(self, table: str, item: dict[str, Any]) -> tuple[int, bool]:
        """Its row in the file, and whether it is met for the first time."""
        rows = self._rows.setdefault(table, {})
        fresh = id(item) not in rows
        return rows.setdefault(id(item), len(rows)), fresh

    def extra(self, table: str, row: int, name: str, value: Any) -> None:
        self.tables.extras.setdefault((table, text(name)), []).append((row, plain(value)))

    def stack(self, frames: Any) -> Stack | None:
        if id(frames) not in self._stacks:
            self._stacks[id(frames)] = stack = stack_of(frames)
            for frame, where in zip(frames, stack, strict=True) if stack is not None else ():
                for name, value in frame.items():
                    typed = {"filename": str, "name": str, "line": int}.get(name)
                    if typed is None or not isinstance(value, typed):
                        self.tables.frame_extras.add((where, text(name), repr(plain(value))))
        return self._stacks[id(frames)]

    def leftovers(
        self, table: str, item: dict[str, Any], known: set[str], good: dict[str, bool]
    ) -> None:
        row, fresh = self.row(table, item)
        for name, value in item.items() if fresh else ():
            if name not in known or not good.get(name, True):
                self.extra(table, row, name, value)

    def event(self, item: dict[str, Any]) -> Event:
        stack = self.stack(item["frames"]) if "frames" in item else None
        texts = {
            name: _wide_is_text(item.get(name))
            for name in ("compile_context", "user_metadata", "action")
        }
        numbers = ("addr", "size", "stream", "time_us", "device_free")
        good = {name: is_number(item.get(name)) for name in numbers}
        good |= {name: isinstance(value, str) for name, value in texts.items()}
        good |= {"frames": stack is not None, "pool_id": _pool(item.get("pool_id")) is not None}
        self.leftovers("events", item, EVENT_KEYS, good)
        shown = {
            name: text(value) if isinstance(value, str) else "" for name, value in texts.items()
        }
        known = shown["action"] in ACTIONS
        time_us = (_unsigned(item.get("time_us")) + 2**63) % 2**64 - 2**63
        return Event(
            ACTIONS.index(shown["action"]) if known else int(Action.OTHER),
            _unsigned(item.get("addr")),
            _unsigned(item.get("size")),
            _unsigned(item.get("stream")),
            time_us,
            stack,
            shown["compile_context"],
            shown["user_metadata"],
            "" if known else shown["action"],
            _pool(item.get("pool_id")),
        )

    def trace(self, items: Any) -> list[Event]:
        events, failures = [], []
        for item in items:
            if not isinstance(item, dict) or "action" not in item:
                continue
            events.append(self.event(item))
            if events[-1].action == Action.OOM:
                free = item.get("device_free")
                failures.append(
                    (len(events) - 1, events[-1].size, free if is_number(free) else None)
                )
        self.tables.failures.append(failures)
        return events

    def block(self, item: dict[str, Any]) -> Block:
        address, requested = item.get("address"), item.get("requested_size")
        stack = self.stack(item["frames"]) if "frames" in item else None
        history = item.get("history")
        last = history[0] if isinstance(history, list) and history else None
        old = isinstance(last, dict)
        if isinstance(last, dict):
            address = last.get("addr", address)
            requested = last.get("real_size", requested)
            stack = self.stack(last["frames"]) if "frames" in last else stack
        good = {name: is_number(item.get(name)) for name in ("address", "size", "requested_size")}
        good |= {
            "state": isinstance(item.get("state"), str),
            "frames": self.stack(item.get("frames")) is not None,
            "history": old,
        }
        self.leftovers("blocks", item, BLOCK_KEYS, good)
        state = item.get("state")
        return Block(
            _unsigned(address),
            _unsigned(item.get("size")),
            _unsigned(requested),
            state if isinstance(state, str) else "",
            stack,
        )

    def segment_list(self, items: Any) -> list[Segment]:
        found = []
        for item in items if isinstance(items, list) else ():
            if not isinstance(item, dict) or "total_size" not in item:
                continue
            blocks = [
                self.block(b)
                for b in item.get("blocks") or ()
                if isinstance(b, dict) and {"state", "size"} <= set(b)
            ]
            base, placed = _unsigned(item.get("address")), []
            before = 0
            for block in blocks:  # old ones have no address: they follow one another
                placed.append(
                    block._replace(
                        address=block.address or base + before,
                        requested=block.requested or block.size,
                    )
                )
                before += block.size
            good = {name: is_number(item.get(name)) for name in SEGMENT_KEYS}
            good |= {
                "segment_type": isinstance(item.get("segment_type"), str),
                "segment_pool_id": _pool(item.get("segment_pool_id")) is not None,
                "frames": self.stack(item.get("frames")) is not None,
                "is_expandable": isinstance(item.get("is_expandable"), bool),
                "blocks": True,
            }
            self.leftovers("segments", item, SEGMENT_KEYS, good)
            found.append(
                Segment(
                    _number(item.get("device")),
                    base,
                    _unsigned(item.get("total_size")),
                    _unsigned(item.get("stream")),
                    item.get("is_expandable") is True,
                    _pool(item.get("segment_pool_id")),
                    tuple(placed),
                )
            )
        return found

    def annotation(self, item: dict[str, Any]) -> tuple[str, bool, int, int]:
        good = {
            "stage": isinstance(item.get("stage"), str),
            "name": isinstance(item.get("name"), str),
        }
        good |= {"device": is_number(item.get("device")), "time_us": is_number(item.get("time_us"))}
        self.leftovers("annotations", item, ANNOTATION_KEYS, good)
        device = item["device"] if good["device"] else -1
        name = text(item["name"]) if good["name"] else ""
        return name, bool(item.get("stage") == "START"), int(device), _number(item.get("time_us"))


def tables_of(value: Any) -> Tables:
    """Everything that a Trace must say about a snapshot, in the file's order."""
    reader = _Reader()
    tables = reader.tables
    if isinstance(value, list):  # before PyTorch 2.0: the segments alone
        tables.segments, tables.has_segments = reader.segment_list(value), True
        return tables
    for name, section in value.items():
        if name == "segments":
            tables.segments, tables.has_segments = (
                reader.segment_list(section),
                isinstance(section, list),
            )
        elif name == "host_segments":
            tables.host_segments = reader.segment_list(section)
        elif name == "device_traces":
            tables.traces = [reader.trace(items) for items in section]
        elif name == "host_traces":
            tables.host_traces = [reader.trace(items) for items in section]
        elif name == "external_annotations":
            tables.annotations = [reader.annotation(item) for item in section if "stage" in item]
        elif name == "allocator_settings":
            tables.settings = plain(section) if isinstance(section, dict) else {}
        else:
            tables.extras[("top", text(name))] = [(0, plain(section))]
    return tables


# ---- lifetimes -------------------------------------------------------------------------


@dataclass
class Allocation:
    born: int
    free_requested: int
    died: int
    address: int
    requested: int
    taken: int
    stream: int
    stack: Stack | None
    segment: int


@dataclass
class Range:
    born: int
    died: int
    address: int
    size: int
    stream: int
    mapped: bool


@dataclass
class Lifetimes:
    allocations: list[Allocation] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    base: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    peak_event: dict[str, int] = field(default_factory=dict)
    curves: dict[str, list[int]] = field(default_factory=dict)
    live: dict[int, Allocation] = field(default_factory=dict)
    mapped: dict[int, Range] = field(default_factory=dict)


def rounded(size: int, settings: dict[str, Any]) -> int:
    """``round_size`` of c10/cuda/CUDACachingAllocator.cpp."""
    if size < 512:
        return 512
    table = settings.get("roundup_power2_divisions") or {}
    slot = min(max(size.bit_length() - 1 - 20, 0), 15)
    parts = table.get(str(1 << slot), 0)
    if parts > 1 and size > 512 * parts:
        floor = 1 << (size.bit_length() - 1)
        return size if floor == size else -(-size // (floor // parts)) * (floor // parts)
    return -(-size // 512) * 512


class FreeList:
    """Free memory as (start, end, owner), sorted; pieces of one owner that touch are one piece."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int, tuple[str, int]]] = []

    def give(self, start: int, end: int, owner: tuple[str, int]) -> None:
        at = bisect_right(self.pieces, start, key=lambda piece: piece[0])
        if at < len(self.pieces) and self.pieces[at][0] == end and self.pieces[at][2] == owner:
            end = self.pieces.pop(at)[1]
        if at and self.pieces[at - 1][1] == start and self.pieces[at - 1][2] == owner:
            start = self.pieces.pop(at - 1)[0]
        if start < end:
            insort(self.pieces, (start, end, owner), key=lambda piece: piece[0])

    def remove(self, start: int, end: int) -> None:
        """Whatever is free between two addresses is free no longer."""
        kept = []
        for a, b, owner in self.pieces:
            kept += [(x, y, owner) for x, y in ((a, min(b, start)), (max(a, end), b)) if x < y]
        self.pieces = kept

    def take(self, address: int, size: int, settings: dict[str, Any]) -> int:
        """Hands out a piece by ``should_split``; returns its size."""
        at = bisect_right(self.pieces, address, key=lambda piece: piece[0]) - 1
        start, end, owner = self.pieces[at] if at >= 0 else (0, 0, ("", 0))
        if end - address < size:
            return size  # the recording contradicts itself
        limit = settings.get("max_split_size", -1)
        rest = end - address - size
        small = size <= MIB or owner[0] == "mapped"
        split = rest >= 512 if small else (limit <= 0 or size < limit) and rest > MIB
        taken = size if split else size + rest
        del self.pieces[at]
        self.pieces[at:at] = [
            (x, y, owner) for x, y in ((start, address), (address + taken, end)) if x < y
        ]
        return taken


def _cut_out(
    ranges: dict[int, Range], start: int, end: int
) -> list[tuple[Range, list[tuple[int, int]]]]:
    """Takes out of ``ranges`` all mapped ones that overlap; returns each with what is left of
    it.
    """
    hit = [
        r
        for r in sorted(ranges.values(), key=lambda r: r.address)
        if r.mapped and r.address < end and start < r.address + r.size
    ]
    found = []
    for r in hit:
        del ranges[r.address]
        found.append(
            (r, [(x, y) for x, y in ((r.address, start), (end, r.address + r.size)) if x < y])
        )
    return found


def undo(
    events: list[Event], segments: list[Segment], settings: dict[str, Any]
) -> tuple[list[Allocation], list[Range]]:
    """What was there before the first event: the final state with every event undone, the last
    first.
    """
    never = len(events)
    live: dict[int, Allocation] = {}
    ranges: dict[int, Range] = {}
    for s in segments:
        ranges[s.address] = Range(BEFORE, never, s.address, s.size, s.stream, s.expandable)
        for b in s.blocks:
            if b.state in (*PENDING, "active_allocated"):
                given_up = BEFORE if b.state in PENDING else never
                live[b.address] = Allocation(
                    BEFORE,
                    given_up,
                    never,
                    b.address,
                    b.requested,
                    b.size,
                    s.stream,
                    b.stack,
                    NO_TEXT,
                )
    for e in reversed(events):
        if e.action == Action.ALLOC:
            live.pop(e.address, None)
        elif e.action == Action.FREE_REQUESTED and e.address in live:
            live[e.address].free_requested = never
        elif e.action == Action.FREE_COMPLETED:
            taken = rounded(e.size, settings)
            live[e.address] = Allocation(
                BEFORE, BEFORE, never, e.address, e.size, taken, e.stream, e.stack, NO_TEXT
            )
        elif e.action == Action.SEGMENT_ALLOC:
            ranges.pop(e.address, None)
        elif e.action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            mapped = e.action == Action.SEGMENT_UNMAP
            ranges[e.address] = Range(BEFORE, never, e.address, e.size, e.stream, mapped)
        elif e.action == Action.SEGMENT_MAP:
            for r, left in _cut_out(ranges, e.address, e.address + e.size):
                ranges.update({x: Range(BEFORE, never, x, y - x, r.stream, True) for x, y in left})
    return sorted(live.values(), key=lambda a: a.address), sorted(
        ranges.values(), key=lambda r: r.address
    )


def lifetimes_of(
    events: list[Event], segments: list[Segment], settings: dict[str, Any], until: int | None = None
) -> Lifetimes:
    """Pairs the events (up to ``until``) of a recording whose final state is known."""
    base, base_ranges = undo(events, segments, settings)
    never = len(events)
    out = Lifetimes()
    free = FreeList()
    now = dict.fromkeys(("requested", "allocated", "active", "reserved"), 0)
    starts: list[int] = []
    row_at: dict[int, int] = {}

    def owner(r: Range) -> tuple[str, int]:
        return ("mapped", r.stream) if r.mapped else ("segment", r.address)

    def reserve(r: Range, is_new: bool = True) -> None:
        out.ranges.append(r)
        out.mapped[r.address] = r
        row_at[r.address] = len(out.ranges) - 1
        insort(starts, r.address)
        if is_new:
            free.give(r.address, r.address + r.size, owner(r))
            now["reserved"] += r.size

    def release(r: Range, event: int) -> None:
        r.died = event
        out.mapped.pop(r.address, None)
        starts.remove(r.address)

    def holder(address: int) -> Range | None:
        at = bisect_right(starts, address) - 1
        r = out.mapped[starts[at]] if at >= 0 else None
        return r if r is not None and address < r.address + r.size else None

    def allocate(a: Allocation) -> None:
        r = holder(a.address)
        a.segment = NO_TEXT if r is None else row_at[r.address]
        out.allocations.append(a)
        out.live[a.address] = a
        now["requested"] += a.requested
        now["allocated"] += 0 if a.free_requested == BEFORE else a.taken
        now["active"] += a.taken

    for r in base_ranges:
        reserve(r)
    for a in base:
        free.remove(a.address, a.address + a.taken)
        allocate(a)
    out.base, out.peak = dict(now), dict(now)
    out.peak_event = dict.fromkeys(now, BEFORE)
    out.curves = {name: [] for name in now}
    for i, e in enumerate(events[:until]):
        if e.action == Action.ALLOC:
            taken = free.take(e.address, rounded(e.size, settings), settings)
            allocate(
                Allocation(i, never, never, e.address, e.size, taken, e.stream, e.stack, NO_TEXT)
            )
        elif e.action == Action.FREE_REQUESTED:
            a = out.live[e.address]
            a.free_requested = i
            now["allocated"] -= a.taken
        elif e.action == Action.FREE_COMPLETED:
            a = out.live.pop(e.address)
            if a.free_requested == never:
                a.free_requested = i
                now["allocated"] -= a.taken
            a.died = i
            now["requested"] -= a.requested
            now["active"] -= a.taken
            if (inside := holder(e.address)) is not None:
                free.give(a.address, a.address + a.taken, owner(inside))
        elif e.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            reserve(Range(i, never, e.address, e.size, e.stream, e.action == Action.SEGMENT_MAP))
        elif e.action == Action.SEGMENT_FREE:
            release(out.mapped[e.address], i)
            free.remove(e.address, e.address + e.size)
            now["reserved"] -= e.size
        elif e.action == Action.SEGMENT_UNMAP:
            free.remove(e.address, e.address + e.size)
            now["reserved"] -= e.size
            for r, left in _cut_out(out.mapped, e.address, e.address + e.size):
                release(r, i)
                for x, y in left:
                    reserve(Range(i, never, x, y - x, r.stream, True), is_new=False)
        for name, curve in out.curves.items():
            curve.append(now[name])
            if now[name] > out.peak[name]:
                out.peak[name], out.peak_event[name] = now[name], i
    return out


# ---- comparing -------------------------------------------------------------------------


class _Shown:
    """Stacks, texts and pools of a Trace by id."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.stacks: dict[int, Stack | None] = {NO_STACK: None}
        self.pools: dict[int, Any] = {NO_TEXT: None}

    def stack(self, at: int) -> Stack | None:
        if at not in self.stacks:
            self.stacks[at] = tuple((f.file, f.line, f.function) for f in self.trace.stacks.of(at))
        return self.stacks[at]

    def pool(self, at: int) -> Any:
        if at not in self.pools:
            self.pools[at] = tuple(self.trace.pools[at].tolist())
        return self.pools[at]

    def events(self, device: DeviceTrace) -> list[Event]:
        e, strings = device.events, self.trace.stacks.strings
        columns = [column.tolist() for column in (e.action, e.address, e.size, e.stream, e.time_us)]
        texts = [
            [strings[i] for i in column.tolist()]
            for column in (e.compile_context, e.user_metadata, e.other_action)
        ]
        stacks, pools = (
            [self.stack(i) for i in e.stack.tolist()],
            [self.pool(i) for i in e.pool.tolist()],
        )
        return [Event(*row) for row in zip(*columns, stacks, *texts, pools, strict=True)]

    def allocations(self, device: DeviceTrace) -> list[Allocation]:
        a = device.allocations
        numbers = (
            a.born,
            a.free_requested,
            a.died,
            a.address,
            a.requested_bytes,
            a.taken_bytes,
            a.stream,
        )
        stacks = [self.stack(i) for i in a.stack.tolist()]
        return [
            Allocation(*row)
            for row in zip(*(c.tolist() for c in numbers), stacks, a.segment.tolist(), strict=True)
        ]


def ranges_shown(segments: Segments) -> list[Range]:
    """The segments of a Trace as the oracle writes them."""
    s = segments
    columns = [c.tolist() for c in (s.born, s.died, s.address, s.size_bytes, s.stream)]
    return [
        Range(*row) for row in zip(*columns, [bool(x) for x in s.expandable.tolist()], strict=True)
    ]


def assert_same(trace: Trace, value: Any, *, lifetimes: bool = True) -> None:
    """Fails unless a Trace says exactly what the oracle says about the unpickled value."""
    tables, shown = tables_of(value), _Shown(trace)
    present = {i for i, events in enumerate(tables.traces) if events} | {
        s.device for s in tables.segments if s.device >= 0
    }
    assert set(trace.devices) == present
    for index, device in trace.devices.items():
        events = tables.traces[index] if index < len(tables.traces) else []
        mine = [s for s in tables.segments if s.device == index]
        _assert_device(
            shown, device, events, mine, tables.settings, lifetimes and tables.has_segments
        )
        failures = tables.failures[index] if index < len(tables.traces) else []
        assert [
            (f.event, f.size_bytes, f.device_free_bytes) for f in device.out_of_memory
        ] == failures
    hosts = [(i, events) for i, events in enumerate(tables.host_traces) if events]
    assert len(trace.host) == len(hosts)
    for (i, events), device in zip(hosts, trace.host, strict=True):
        _assert_device(
            shown,
            device,
            events,
            tables.host_segments if i == 0 else [],
            tables.settings,
            lifetimes,
        )
    a, strings = trace.annotations, trace.stacks.strings
    rows = zip(
        a.name.tolist(), a.starts.tolist(), a.device.tolist(), a.time_us.tolist(), strict=True
    )
    assert [(strings[name], *rest) for name, *rest in rows] == tables.annotations
    assert trace.settings == tables.settings
    others = {
        (c.table, c.name): list(zip(c.rows.tolist(), c.values, strict=True))
        for c in trace.side_columns
        if c.table != "frames"
    }
    assert others == tables.extras
    on_frames = set()
    for c in trace.side_columns:
        for row, item in zip(c.rows.tolist(), c.values, strict=True) if c.table == "frames" else ():
            f = trace.stacks.frame(row)
            on_frames.add(((f.file, f.line, f.function), c.name, repr(item)))
    assert on_frames == tables.frame_extras


def _assert_device(
    shown: _Shown,
    device: DeviceTrace,
    events: list[Event],
    segments: list[Segment],
    settings: dict[str, Any],
    lifetimes: bool,
) -> None:
    assert shown.events(device) == events
    assert device.whole
    if not lifetimes:
        return
    life = lifetimes_of(events, segments, settings)
    assert device.orphan_events == 0
    assert shown.allocations(device) == life.allocations
    assert ranges_shown(device.segments) == life.ranges
    for name in ("requested", "allocated", "active", "reserved"):
        counter = getattr(device, name)
        assert (counter.base_bytes, counter.peak_bytes, counter.peak_event) == (
            life.base[name],
            life.peak[name],
            life.peak_event[name],
        )
    assert device.requested_curve.tolist() == life.curves["requested"]
    assert device.reserved_curve.tolist() == life.curves["reserved"]
    about = {
        i: row
        for row, a in enumerate(life.allocations)
        for i in (a.born, a.free_requested, a.died)
        if 0 <= i < len(events)
    }
    assert device.allocation_of_event.tolist() == [about.get(i, -1) for i in range(len(events))]
