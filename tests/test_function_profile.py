"""``vramlens.profile``: what a call did to memory, against what a made-up GPU and a real one say
themselves.
"""

from __future__ import annotations

import functools
import gc
import io
import itertools
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from support.recordings import block, segment, snapshot
from vramlens import function_profile
from vramlens.analyses.profile.function_use import DeviceUse, LineShare
from vramlens.capture import line_clock, torch_api, warn
from vramlens.capture.line_clock import LineClock
from vramlens.capture.recording import session
from vramlens.function_profile import profile
from vramlens.report.profile.function_text import FunctionProfile
from vramlens.units import GIB, MIB

BASE, ROOM = 1 << 40, 1 << 38
SOURCE = Path(function_profile.__file__).parent.parent
HAS_MONITORING = sys.version_info >= (3, 12)


class Gpu:
    """A GPU with an allocator that hands out the requested bytes and keeps PyTorch's books on them.

    ``moves`` is the oracle: for each move the line that ``watched`` was on, the change, the level
        after it.
    """

    kind = "cuda"

    def __init__(self, *, devices: int = 1, initialized: bool = True) -> None:
        self.devices, self.initialized = devices, initialized
        self.history = self.refuses = False
        self.calls: list[str] = []
        self.waiting: list[Callable[[], None]] = []
        self.traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
        self.live: dict[int, tuple[int, int, list[dict[str, Any]]]] = {}
        self.levels = [0] * devices
        self.next = BASE
        self.watched: Callable[[], int] | None = None
        self.moves: list[tuple[int, int, int]] = []
        self.lag_us = 0
        self.context_of_free = True

    def alloc(self, size: int, device: int = 0, *, stack: bool = True) -> int:
        address = self.next + device * ROOM
        self.next += size
        frames = _frames() if stack else []
        self.live[address] = (size, device, frames)
        self._move("alloc", address, size, device, frames, size)
        return address

    def free(self, address: int, *, stack: bool = True) -> None:
        size, device, born = self.live.pop(address)
        frames = (_frames() if stack else []) if self.context_of_free else born
        self._move("free_requested", address, size, device, frames, -size)
        self._record("free_completed", address, size, device, frames)

    def tensor(self, size: int, device: int = 0) -> Tensor:
        return Tensor(self, size, device)

    def _move(
        self, action: str, address: int, size: int, device: int, frames: list[Any], change: int
    ) -> None:
        self.levels[device] += change
        self._record(action, address, size, device, frames)
        if self.watched is not None:
            self.moves.append((self.watched(), change, self.levels[device]))

    def _record(self, action: str, address: int, size: int, device: int, frames: list[Any]) -> None:
        if self.history:
            event = {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}
            event |= {"time_us": time.time_ns() // 1000 + self.lag_us, "compile_context": "N/A"}
            self.traces[device].append(event)

    def use(self) -> None:
        self.initialized = True
        while self.waiting:
            self.waiting.pop(0)()

    def is_initialized(self) -> bool:
        return self.initialized

    def when_initialized(self, action: Callable[[], None]) -> None:
        if self.initialized:
            action()
        else:
            self.waiting.append(action)

    def device_count(self) -> int:
        return self.devices

    def history_is_on(self) -> bool:
        return self.history

    def start_history(self, max_events: int) -> None:
        self.calls.append("start")
        if self.refuses:
            raise RuntimeError("cudaMallocAsync keeps no history")
        assert max_events > 0
        self.history = True
        self.traces = [[] for _ in range(self.devices)]

    def stop_history(self) -> None:
        self.calls.append("stop")
        self.history = False

    def counters(self, device: int) -> tuple[int, int]:
        return self.levels[device], ROOM

    def snapshot(self) -> dict[str, Any]:
        self.calls.append("snapshot")
        segments = []
        for device in range(self.devices):
            start = at = BASE + device * ROOM
            blocks = []
            mine = sorted((a, *rest) for a, rest in self.live.items() if rest[1] == device)
            for address, size, _, frames in mine:
                if at < address:
                    blocks.append(block(at, address - at, 0, "inactive"))
                blocks.append(block(address, size, size, frames=frames))
                at = address + size
            blocks.append(block(at, start + ROOM - at, 0, "inactive"))
            segments.append(segment(start, ROOM, blocks, device=device))
        return snapshot([], segments) | {"device_traces": [list(trace) for trace in self.traces]}


class Tensor:
    """Bytes of the GPU, freed with the object."""

    def __init__(self, gpu: Gpu, size: int, device: int) -> None:
        self.gpu, self.address = gpu, gpu.alloc(size, device)

    def __del__(self) -> None:
        self.gpu.free(self.address)


def _frames() -> list[dict[str, Any]]:
    """The Python stack as PyTorch records it, from the caller of the GPU on."""
    frame: FrameType | None = sys._getframe(1)
    while (
        frame is not None and frame.f_code in _OWN
    ):  # not by f_locals: asking for them keeps their values alive
        frame = frame.f_back
    found = []
    while frame is not None:
        found.append(
            {
                "filename": frame.f_code.co_filename,
                "line": frame.f_lineno,
                "name": frame.f_code.co_name,
            }
        )
        frame = frame.f_back
    return found


_OWN = {
    made.__code__
    for kind in (Gpu, Tensor)
    for made in vars(kind).values()
    if hasattr(made, "__code__")
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu()
    monkeypatch.setattr(torch_api, "connect", lambda: made)
    yield made
    assert not function_profile._thread.calls
    assert function_profile._history._users == 0


def on_thread(work: Callable[[], object]) -> None:
    """What autograd does: the work on a thread of its own, while the caller waits."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Seen(list[FunctionProfile]):
    """A report that keeps what it is given."""

    def __call__(self, found: FunctionProfile) -> None:
        self.append(found)

    @property
    def only(self) -> FunctionProfile:
        assert len(self) == 1
        return self[0]

    @property
    def use(self) -> DeviceUse:
        assert len(self.only.devices) == 1
        return self.only.devices[0]


def check_sums(found: FunctionProfile) -> None:
    """The parts of every number add up to it."""
    for use in found.devices:
        assert use.exact
        assert sum(one.bytes for one in use.at_peak) - use.freed_at_peak_bytes == use.peak_bytes
        assert sum(one.bytes for one in use.stayed) - use.freed_bytes == use.kept_bytes
        if use.lines:
            assert sum(one.change_bytes for one in use.lines) == use.kept_bytes


def test_a_call_is_reported(gpu: Gpu) -> None:
    seen, kept = Seen(), []
    gpu.alloc(5 * MIB)

    @profile(report=seen)
    def work() -> str:
        kept.append(gpu.alloc(512 * MIB))
        more = [gpu.alloc(GIB), gpu.alloc(2 * GIB)]
        for address in more:
            gpu.free(address)
        return "done"

    assert work() == "done"
    found = seen.only
    assert (found.function, found.file, found.error, found.notes) == ("work", __file__, None, ())
    assert found.line == work.__wrapped__.__code__.co_firstlineno + 1
    assert (seen.use.kept_bytes, seen.use.peak_bytes) == (512 * MIB, 512 * MIB + 3 * GIB)
    at_peak = {
        (one.place.line - found.line, one.bytes, one.allocations)
        for one in seen.use.at_peak
        if one.place
    }
    assert at_peak == {(1, 512 * MIB, 1), (2, 3 * GIB, 2)}
    assert [(one.bytes, one.allocations) for one in seen.use.stayed] == [(512 * MIB, 1)]
    check_sums(found)
    assert gpu.calls == ["start", "snapshot", "stop"]
    with pytest.raises(FrozenInstanceError):
        found.seconds = 0.0  # type: ignore[misc]


def test_what_is_printed(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    old = gpu.alloc(64 * MIB)

    @profile
    def evaluate() -> None:
        gpu.alloc(512 * MIB)
        gpu.free(gpu.alloc(GIB))
        gpu.free(old)

    evaluate()
    captured = capsys.readouterr()
    assert captured.out == ""
    line = evaluate.__wrapped__.__code__.co_firstlineno + 1
    first, *rest = captured.err.splitlines()
    start = f"evaluate (test_function_profile.py:{line}): +448.00 MiB kept, peak 1.50 GiB above the start, in "
    assert first.startswith(start)
    assert rest == [
        "  what makes up the peak:",
        f"        1.00 GiB        1 allocation  test_function_profile.py:{line + 2} in evaluate",
        f"      512.00 MiB        1 allocation  test_function_profile.py:{line + 1} in evaluate",
        "  what remained:",
        f"      512.00 MiB        1 allocation  test_function_profile.py:{line + 1} in evaluate",
        "      -64.00 MiB                      freed from before the call",
    ]


def test_memory_given_back_and_nothing_at_all(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    old = gpu.alloc(64 * MIB)
    profile(gpu.free)(old)
    profile(len)([])
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("Gpu.free (test_function_profile.py:")
    assert "): 64.00 MiB freed, peak 0 bytes above the start, in " in first
    assert last.startswith("len: no GPU memory requested or freed, in ")


def test_many_lines_are_summed_up_in_print_only(gpu: Gpu) -> None:
    seen = Seen()
    names = {f"f{n}": n for n in range(8)}
    space: dict[str, Any] = {"gpu": gpu}
    body = "".join(f"    gpu.alloc({n + 1} << 20)\n" for n in names.values())
    exec(compile(f"def many():\n{body}", "/home/me/many.py", "exec"), space)
    profile(report=seen)(space["many"])()
    assert len(seen.use.at_peak) == 8
    assert "        6.00 MiB       3 allocations  3 other lines" in str(seen.only).splitlines()


# ---- lines


def check_lines(
    found: FunctionProfile, gpu: Gpu, start: int, *, hits: dict[int, int] | None = None
) -> None:
    """Each line's change is the oracle's; so is its peak, where the line moved memory."""
    (use,) = found.devices
    changes: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for line, change, level in gpu.moves:
        changes[line] = changes.get(line, 0) + change
        peaks[line] = max(level - start, peaks.get(line, level - start))
    assert {one.line: one.change_bytes for one in use.lines if one.change_bytes} == {
        k: v for k, v in changes.items() if v
    }
    mine = {one.line: one.peak_bytes for one in use.lines}
    for line, peak in peaks.items():
        assert mine[line] is not None
        assert mine[line] >= peak  # the level when it began counts too
    assert max(peak for peak in mine.values() if peak is not None) == use.peak_bytes
    if hits is not None:
        assert {one.line: one.hits for one in use.lines if one.hits} == hits


def test_lines_of_a_training_step(gpu: Gpu) -> None:
    """Forward on this thread; the backward pass frees and allocates on another, without a Python
    stack.
    """
    seen: Seen = Seen()
    old = gpu.alloc(7 * MIB)
    gradients: list[int] = []

    def forward(size: int) -> int:
        gpu.free(gpu.alloc(3 * size))
        return gpu.alloc(size)

    def backward(saved: list[int]) -> None:
        def run() -> None:
            for address in reversed(saved):
                gradients.append(gpu.alloc(2 * MIB, stack=False))
                gpu.free(address, stack=False)

        on_thread(run)

    @profile(lines=True, report=seen)
    def step() -> None:
        saved = []
        for n in range(4):
            saved.append(forward((n + 1) * MIB))  # noqa: PERF401
        loss = gpu.alloc(512)
        backward(saved)
        gpu.free(loss)
        gpu.free(old)

    step()
    found, top = seen.only, seen.only.line
    check_sums(found)
    lines = {one.line - top: one for one in seen.use.lines}
    assert [
        (n, one.hits, one.change_bytes, one.peak_bytes) for n, one in lines.items() if n > 0
    ] == [
        (1, 1, 0, 0),
        (2, 5, 0, 10 * MIB),
        (3, 4, 10 * MIB, 18 * MIB),  # 1 + 2 + 3 kept, and 3 x 4 for a moment
        (4, 1, 512, 10 * MIB + 512),
        (5, 1, -2 * MIB, 12 * MIB + 512),  # the first gradient before the first free
        (6, 1, -512, 8 * MIB + 512),
        (7, 1, -7 * MIB, 8 * MIB),
    ]
    assert lines[3].source.startswith("            saved.append(forward((n + 1) * MIB))")
    assert lines[-1].source == "    @profile(lines=True, report=seen)"
    assert (lines[-1].hits, lines[-1].peak_bytes) == (0, None)


def test_what_goes_with_the_function_is_on_its_last_line(gpu: Gpu) -> None:
    seen = Seen()

    @profile(lines=True, report=seen)
    def work() -> int:
        first = gpu.tensor(4 * MIB)
        first = gpu.tensor(8 * MIB)
        assert first
        return 5

    assert work() == 5
    lines = {one.line - seen.only.line: one for one in seen.use.lines}
    assert (lines[1].change_bytes, lines[1].peak_bytes) == (4 * MIB, 4 * MIB)
    assert lines[2].peak_bytes == 12 * MIB
    # Until Python 3.10, tracing copies variables: the first tensor goes with the next line.
    changes = (8 * MIB, -4 * MIB) if sys.version_info < (3, 11) else (4 * MIB, 0)
    assert (lines[2].change_bytes, lines[3].change_bytes) == changes
    assert (lines[4].change_bytes, lines[4].peak_bytes) == (-8 * MIB, 8 * MIB)
    check_sums(seen.only)


def chaos(gpu: Gpu, rng: random.Random, mine: list[int]) -> None:
    """Some allocations and frees, on this thread or another, with or without a stack."""

    def work() -> None:
        for _ in range(rng.randrange(4)):
            if mine and rng.random() < 0.5:
                gpu.free(mine.pop(rng.randrange(len(mine))), stack=with_stack)
            else:
                mine.append(gpu.alloc(512 * rng.randrange(1, 5000), stack=with_stack))

    with_stack = rng.random() < 0.5
    if rng.random() < 0.3:
        on_thread(work)
    else:
        work()


def busy(gpu: Gpu, rng: random.Random, mine: list[int]) -> None:
    """A function with loops, branches and statements over several lines."""
    chaos(gpu, rng, mine)
    for _ in range(rng.randrange(6)):
        chaos(gpu, rng, mine)
        if rng.random() < 0.5:
            chaos(
                gpu,
                rng,
                mine,
            )
        else:
            pass
        chaos(gpu, rng, mine), chaos(gpu, rng, mine)
    try:
        chaos(gpu, rng, mine)
        if rng.random() < 0.3:
            raise KeyError
    except KeyError:
        chaos(gpu, rng, mine)
    finally:
        chaos(gpu, rng, mine)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("recorded_before", [False, True])
def test_lines_against_the_oracle(gpu: Gpu, seed: int, recorded_before: bool) -> None:
    rng = random.Random(seed)
    mine = [gpu.alloc(512 * rng.randrange(1, 5000)) for _ in range(5)]
    if recorded_before:
        gpu.start_history(1000)
        chaos(gpu, rng, mine)
        time.sleep(0.001)
    start, ident = gpu.levels[0], threading.get_ident()

    def line_of_busy() -> int:
        frame: FrameType | None = sys._current_frames()[ident]
        while frame is not None and frame.f_code is not busy.__code__:
            frame = frame.f_back
        assert frame is not None
        time.sleep(2e-6)  # time is recorded in microseconds
        return frame.f_lineno

    gpu.watched = line_of_busy
    seen = Seen()
    profile(busy, lines=True, report=seen)(gpu, rng, mine)
    gpu.watched = None
    if not gpu.moves:
        return
    check_sums(seen.only)
    assert seen.use.kept_bytes == gpu.levels[0] - start
    assert seen.use.peak_bytes == max(0, *(level - start for _, _, level in gpu.moves))
    check_lines(seen.only, gpu, start)
    assert gpu.history is recorded_before


def test_stacks_decide_where_the_clock_is_off(gpu: Gpu) -> None:
    seen = Seen()
    gpu.lag_us = 3_000  # the events' clock runs ahead

    @profile(lines=True, report=seen)
    def work() -> None:
        gpu.alloc(MIB)
        gpu.alloc(2 * MIB)
        gpu.alloc(3 * MIB)

    work()
    lines = {one.line - seen.only.line: one.change_bytes for one in seen.use.lines}
    assert [lines[n] for n in (1, 2, 3)] == [MIB, 2 * MIB, 3 * MIB]
    check_sums(seen.only)


def test_a_free_with_its_allocations_stack_is_not_on_its_allocations_line(gpu: Gpu) -> None:
    """As where the program records with ``context="alloc"``."""
    seen = Seen()
    gpu.context_of_free = False

    @profile(lines=True, report=seen)
    def work() -> None:
        one = gpu.alloc(MIB)
        time.sleep(0.001)
        gpu.free(one)

    work()
    lines = {one.line - seen.only.line: one.change_bytes for one in seen.use.lines}
    assert (lines[1], lines[3]) == (MIB, -MIB)


def test_another_tracer_is_left_alone(gpu: Gpu) -> None:
    seen, traced = Seen(), []

    @profile(lines=True, report=seen)
    def work() -> None:
        gpu.alloc(MIB)
        on_thread(lambda: gpu.alloc(2 * MIB, stack=False))
        gpu.alloc(4 * MIB)

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is work.__wrapped__.__code__ and event == "line":
            traced.append(frame.f_lineno - seen_line)
        return tracer

    seen_line = work.__wrapped__.__code__.co_firstlineno + 1
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert traced == [1, 2, 3]
    lines = {one.line - seen.only.line: one for one in seen.use.lines}
    if HAS_MONITORING:
        assert seen.only.notes == ()
        assert [(lines[n].hits, lines[n].change_bytes) for n in (1, 2, 3)] == [
            (1, MIB),
            (1, 2 * MIB),
            (1, 4 * MIB),
        ]
    else:
        assert [(lines[n].hits, lines[n].change_bytes) for n in (1, 2, 3)] == [
            (None, 3 * MIB),
            (None, 0),
            (None, 4 * MIB),
        ]
        (note,) = seen.only.notes
        assert note.startswith("another tracer runs: lines come from stacks only")
    check_sums(seen.only)


@pytest.mark.skipif(HAS_MONITORING, reason="sys.monitoring needs no trace function")
def test_a_debugger_started_in_the_middle_stays(gpu: Gpu) -> None:
    seen = Seen()

    def tracer(*_: Any) -> None:
        return None

    @profile(lines=True, report=seen)
    def work() -> None:
        gpu.alloc(MIB)
        sys.settrace(tracer)
        gpu.alloc(2 * MIB)

    before = sys.gettrace()
    try:
        work()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert len(seen.only.notes) == 1
    check_sums(seen.only)


@pytest.mark.skipif(not HAS_MONITORING, reason="sys.monitoring is of Python 3.12")
def test_no_tool_id_left(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    monkeypatch.setattr(line_clock, "_TOOLS", ())

    @profile(lines=True, report=seen)
    def work() -> None:
        gpu.alloc(MIB)

    work()
    assert seen.only.notes[0].startswith("all of Python's monitoring tools are in use")
    assert [one.change_bytes for one in seen.use.lines] == [0, 0, MIB]


def test_a_long_loop_is_followed_to_a_bound(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_clock, "MOST_ENTRIES", 100)
    seen = Seen()

    @profile(lines=True, report=seen)
    def work() -> None:
        for _ in range(200):
            pass
        gpu.alloc(MIB)

    work()
    assert seen.only.notes[0].startswith("more than 100 lines were run")
    assert {one.line - seen.only.line: one.change_bytes for one in seen.use.lines}[3] == MIB


def test_the_tracer_is_what_it_was(gpu: Gpu) -> None:
    before = sys.gettrace()

    @profile(lines=True, report=Seen())
    def work() -> None:
        assert HAS_MONITORING or isinstance(sys.gettrace().__self__, LineClock)  # type: ignore[union-attr]

    work()
    assert sys.gettrace() is before
    assert not line_clock._thread.clocks


def test_a_function_whose_code_does_not_run(gpu: Gpu) -> None:
    """As where torch.compile has made another of it."""
    seen = Seen()

    def work() -> None:
        """Never runs."""

    @functools.wraps(work)
    def instead() -> None:
        gpu.alloc(MIB)

    profile(instead, lines=True, report=seen)()
    assert seen.only.notes[0].startswith(
        "none of its lines was seen to run: lines come from stacks only"
    )
    assert (seen.use.kept_bytes, [one.change_bytes for one in seen.use.lines]) == (MIB, [0, 0])


def test_code_without_a_file_has_lines_without_text(gpu: Gpu) -> None:
    seen, space = Seen(), {"gpu": gpu}
    exec(compile("def made():\n    gpu.alloc(1 << 20)\n", "/home/me/gone.py", "exec"), space)
    profile(space["made"], lines=True, report=seen)()
    assert [(one.line, one.source, one.change_bytes) for one in seen.use.lines] == [(2, "", MIB)]


def test_the_table_in_print(gpu: Gpu) -> None:
    seen = Seen()

    @profile(lines=True, report=seen)
    def work() -> None:
        for size in (1, 2):
            gpu.alloc(size * MIB)

    work()
    top = seen.only.line
    assert str(seen.only).splitlines()[-5:] == [
        "    line     hits       change         peak  source",
        f"  {top - 1:>6}                                         @profile(lines=True, report=seen)",
        f"  {top:>6}                                         def work() -> None:",
        f"  {top + 1:>6}        3                  3.00 MiB          for size in (1, 2):",
        f"  {top + 2:>6}        2    +3.00 MiB     3.00 MiB              gpu.alloc(size * MIB)",
    ]


# ---- the program comes first


def test_its_exception_passes_and_is_reported(gpu: Gpu) -> None:
    seen = Seen()
    error = ValueError("mine")

    @profile(lines=True, report=seen)
    def work() -> None:
        gpu.alloc(MIB)
        raise error

    with pytest.raises(ValueError) as caught:
        work()
    assert caught.value is error
    assert (error.__context__, error.__cause__) == (None, None)
    assert (seen.only.error, seen.use.kept_bytes) == ("ValueError", MIB)
    assert ", raised ValueError after " in str(seen.only).splitlines()[0]


def test_an_exit_passes_too(gpu: Gpu) -> None:
    seen = Seen()
    with pytest.raises(SystemExit):
        profile(sys.exit, report=seen)(3)
    assert seen.only.error == "SystemExit"


def test_a_report_that_fails_is_one_warning(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    def report(_: FunctionProfile) -> None:
        raise KeyError("report of mine")

    warn._said.clear()
    assert profile(len, report=report)([1]) == 1
    assert profile(len, report=report)([1]) == 1
    assert capsys.readouterr().err.count("reporting on a function failed (KeyError") == 1


@pytest.mark.parametrize(
    "method", ["counters", "snapshot", "history_is_on", "device_count", "is_initialized"]
)
def test_a_failure_inside_is_one_warning(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError("broken")

    monkeypatch.setattr(gpu, method, fails)
    warn._said.clear()
    seen = Seen()
    assert profile(len, lines=True, report=seen)([1]) == 1


def test_a_closed_stderr(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert profile(len)([1]) == 1


def test_arguments_live_no_longer_than_without_it(gpu: Gpu) -> None:
    class Thing:
        pass

    @profile(report=Seen())
    def work(thing: Thing, other: Thing) -> tuple[bool, bool]:
        refs = weakref.ref(thing), weakref.ref(other)
        del thing, other
        return refs[0]() is None, refs[1]() is None

    freed = work(Thing(), Thing())  # not in the assertion, which keeps what is in it
    assert freed == (HAS_MONITORING, HAS_MONITORING)


def test_nothing_is_left_in_cycles(gpu: Gpu) -> None:
    class Thing:
        pass

    gc.collect()
    gc.disable()
    try:
        thing = Thing()
        ref = weakref.ref(thing)
        profile(lambda _: gpu.alloc(MIB), lines=True, report=Seen())(thing)
        del thing
        assert ref() is None
    finally:
        gc.enable()


def test_it_looks_like_the_function(gpu: Gpu) -> None:
    @profile
    def work(a: int, b: int = 2) -> int:
        """Words."""
        return a + b

    assert (work.__name__, work.__doc__, work.__module__) == ("work", "Words.", __name__)
    import inspect

    assert str(inspect.signature(work)) == "(a: 'int', b: 'int' = 2) -> 'int'"


def test_methods(gpu: Gpu) -> None:
    seen = Seen()

    class Trainer:
        @profile(report=seen)
        def one(self) -> Trainer:
            return self

        @classmethod
        @profile(report=seen)
        def two(cls) -> type[Trainer]:
            return cls

        @profile(report=seen)
        @classmethod
        def three(cls) -> type[Trainer]:
            return cls

        @profile(report=seen)
        @staticmethod
        def four(x: int) -> int:
            return x

        def __call__(self, x: int) -> int:
            return x

    trainer = Trainer()
    assert (trainer.one(), Trainer.two(), trainer.three(), trainer.four(4)) == (
        trainer,
        Trainer,
        Trainer,
        4,
    )
    assert profile(trainer, report=seen)(5) == 5
    assert profile(trainer.one, report=seen, lines=True)() is trainer
    assert profile(functools.partial(trainer, 6), report=seen)() == 6
    names = [found.function for found in seen]
    assert names[:5] == ["Trainer.one", "Trainer.two", "Trainer.three", "Trainer.four", "Trainer"]


def test_over_another_decorator_the_lines_are_the_functions(gpu: Gpu) -> None:
    def no_grad(function: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(function)
        def inner() -> None:
            function()

        return inner

    seen = Seen()

    @profile(lines=True, report=seen)
    @no_grad
    def work() -> None:
        gpu.alloc(MIB)

    work()
    assert seen.only.function == "work"
    assert [one.change_bytes for one in seen.use.lines][-1] == MIB


def test_what_cannot_be_measured_is_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None:
        pass

    async def both() -> Any:
        yield 1

    for function, word in (
        (generator, "a generator function"),
        (coroutine, "an async function"),
        (both, "a generator function"),
        (functools.partial(generator), "a generator function"),
        (Gpu, "a class"),
        (5, "not a function"),
    ):
        with pytest.raises(TypeError, match=f"is {word}: profile the function that"):
            profile(function)  # type: ignore[type-var]


def test_recursion_is_one_report(gpu: Gpu) -> None:
    seen = Seen()

    @profile(lines=True, report=seen)
    def down(n: int) -> int:
        address = gpu.alloc(MIB)
        below = down(n - 1) if n else 0
        gpu.free(address)
        return below + 1

    assert down(4) == 5
    lines = {one.line - seen.only.line: one for one in seen.use.lines}
    assert (seen.use.peak_bytes, seen.use.kept_bytes, seen.only.inner_calls) == (5 * MIB, 0, 4)
    assert [(lines[n].hits, lines[n].change_bytes, lines[n].peak_bytes) for n in (1, 2, 3, 4)] == [
        (1, MIB, MIB),
        (1, 0, 5 * MIB),
        (1, -MIB, MIB),
        (1, 0, 0),
    ]
    assert "with 4 calls of itself inside" in str(seen.only)
    assert gpu.calls == ["start", "snapshot", "stop"]


def test_a_call_from_its_own_undecorated_self(gpu: Gpu) -> None:
    """Its frame is not the outermost of its code: stacks cannot tell the two apart, the clock
    can.
    """
    seen = Seen()

    def work(n: int) -> None:
        gpu.alloc(MIB)
        time.sleep(0.001)
        if n:
            profiled(n - 1)

    profiled = profile(work, lines=True, report=seen)
    work(1)
    lines = {one.line - seen.only.line: one for one in seen.use.lines}
    assert [(lines[n].hits, lines[n].change_bytes) for n in (1, 2, 3, 4)] == [
        (1, MIB),
        (1, 0),
        (1, 0),
        (0, 0),
    ]


def test_profiled_functions_in_each_other(gpu: Gpu) -> None:
    seen = Seen()

    @profile(lines=True, report=seen)
    def inner() -> None:
        gpu.free(gpu.alloc(4 * MIB))
        gpu.alloc(2 * MIB)

    @profile(lines=True, report=seen)
    def outer() -> None:
        gpu.alloc(MIB)
        time.sleep(0.001)
        inner()
        time.sleep(0.001)
        inner()
        gpu.alloc(8 * MIB)

    outer()
    first, second, whole = seen
    for found in seen:
        check_sums(found)
        assert found.notes == ()
    assert [(f.devices[0].kept_bytes, f.devices[0].peak_bytes) for f in (first, second)] == [
        (2 * MIB, 4 * MIB)
    ] * 2
    assert (whole.devices[0].kept_bytes, whole.devices[0].peak_bytes) == (13 * MIB, 13 * MIB)
    lines = {one.line - whole.line: one for one in whole.devices[0].lines}
    expected = [
        (1, MIB, MIB),
        (1, 0, MIB),
        (1, 2 * MIB, 5 * MIB),
        (1, 0, 3 * MIB),
        (1, 2 * MIB, 7 * MIB),
        (1, 8 * MIB, 13 * MIB),
    ]
    assert [
        (lines[n].hits, lines[n].change_bytes, lines[n].peak_bytes) for n in range(1, 7)
    ] == expected
    assert gpu.calls.count("start") == gpu.calls.count("stop") == 1
    assert whole.seconds < 0.5
    assert not gpu.history


def test_own_work_is_not_in_the_time(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    real = gpu.snapshot
    monkeypatch.setattr(gpu, "snapshot", lambda: (time.sleep(0.2), real())[1])
    inner = profile(lambda: gpu.alloc(MIB), report=seen)
    profile(lambda: [inner(), time.sleep(0.05)], report=seen)()
    assert seen[0].seconds < 0.1
    assert 0.05 <= seen[1].seconds < 0.15


def test_threads(gpu: Gpu) -> None:
    seen = Seen()
    inside, go_on = threading.Barrier(2), threading.Event()

    @profile(lines=True, report=seen)
    def work(wait: bool) -> None:
        inside.wait()
        gpu.alloc(MIB)
        if wait:
            assert go_on.wait(300)
        gpu.alloc(MIB)

    one, two = (threading.Thread(target=work, args=(wait,)) for wait in (True, False))
    one.start()
    two.start()
    two.join()
    assert gpu.history  # the other still records
    go_on.set()
    one.join()
    assert not gpu.history
    short, long = seen
    assert long.devices[0].kept_bytes == 4 * MIB  # memory is the device's
    assert long.devices[0].peak_bytes == 4 * MIB
    assert short.devices[0].kept_bytes in (2 * MIB, 3 * MIB)
    assert {one.hits for one in long.devices[0].lines} == {0, 1}


def test_two_devices(gpu: Gpu) -> None:
    gpu.__init__(devices=3)  # type: ignore[misc]
    seen = Seen()

    @profile(lines=True, report=seen)
    def work() -> None:
        gpu.alloc(MIB, 0)
        gpu.free(gpu.alloc(4 * MIB, 2))

    work()
    assert [(use.device, use.kept_bytes, use.peak_bytes) for use in seen.only.devices] == [
        (2, 0, 4 * MIB),
        (0, MIB, MIB),
    ]
    check_sums(seen.only)
    assert (
        "): device 2: nothing kept, peak 4.00 MiB above the start; device 0: +1.00 MiB kept, peak"
        in str(seen.only)
    )
    assert "  what makes up the peak, device 2:" in str(seen.only).splitlines()


# ---- who records


def test_a_recording_that_is_there_goes_on(gpu: Gpu) -> None:
    gpu.start_history(1000)
    gpu.free(gpu.alloc(64 * MIB))
    kept = gpu.alloc(32 * MIB)
    time.sleep(0.001)
    seen = Seen()

    def work() -> None:
        gpu.free(gpu.alloc(MIB))
        gpu.free(kept)

    profile(work, report=seen)()
    gpu.alloc(MIB)
    assert (seen.use.kept_bytes, seen.use.peak_bytes, seen.use.freed_bytes) == (
        -32 * MIB,
        MIB,
        32 * MIB,
    )
    check_sums(seen.only)
    assert gpu.history
    assert gpu.calls == ["start", "snapshot"]


def test_the_first_use_of_the_gpu_is_inside(gpu: Gpu) -> None:
    gpu.initialized = False
    seen = Seen()

    def work() -> None:
        gpu.use()
        gpu.alloc(MIB)

    for _ in range(3):
        profile(lambda: None, report=seen)()  # it may not come
    assert (len(gpu.waiting), seen) == (1, [])
    profile(work, lines=True, report=seen)()
    assert (seen.use.kept_bytes, seen.use.peak_bytes) == (MIB, MIB)
    assert gpu.calls == ["start", "snapshot", "stop"]


def test_a_use_of_the_gpu_after_all_calls_records_nothing(gpu: Gpu) -> None:
    gpu.initialized = False
    profile(lambda: None)()
    gpu.use()
    assert gpu.calls == []


def test_a_session_that_begins_inside_keeps_the_recording(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watch:
        class recorder:  # noqa: N801
            recording = False

    monkeypatch.setattr(function_profile, "current_session", lambda: Watch)
    profile(lambda: setattr(Watch.recorder, "recording", True), report=Seen())()
    assert gpu.history
    gpu.history = False
    Watch.recorder.recording = False
    profile(lambda: None, report=Seen())()
    assert not gpu.history
    assert session.current_session() is None


def test_an_allocator_without_history_has_figures_only(
    gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.refuses = True
    seen = Seen()
    profile(lambda: gpu.alloc(MIB), lines=True, report=seen)()
    assert (seen.use.kept_bytes, seen.use.peak_bytes, seen.use.exact) == (MIB, None, False)
    assert "+1.00 MiB kept, peak unknown, in" in str(seen.only)
    assert "nothing was recorded" in str(seen.only)


def test_a_recording_cut_short_says_so(gpu: Gpu) -> None:
    seen = Seen()

    def work() -> None:
        gpu.alloc(MIB)
        gpu.traces[0].clear()  # the ring is full, or the program starts it anew
        gpu.free(gpu.alloc(2 * MIB))

    profile(work, report=seen)()
    assert (seen.use.kept_bytes, seen.use.exact) == (MIB, False)
    assert "peak about" in str(seen.only)
    assert "only part of the call was recorded" in str(seen.only)


def test_without_a_gpu_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_api, "connect", lambda: None)
    warn._said.clear()
    seen = Seen()
    assert [profile(len, report=seen)([1]) for _ in range(3)] == [1, 1, 1]
    assert capsys.readouterr().err == "vramlens: no GPU in use, so nothing was measured\n"
    assert seen == []


def test_neither_torch_nor_numpy_is_imported() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
from vramlens.function_profile import profile
@profile(lines=True)
def work(x): return x + 1
assert work(1) == 2 and work(2) == 3
assert not {{"torch", "numpy"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "vramlens: no GPU in use, so nothing was measured\n"


# ---- torch


def test_compiled_with_its_caller_it_is_the_function_itself(gpu: Gpu) -> None:
    torch = pytest.importorskip("torch")
    seen = Seen()

    @profile(lines=True, report=seen)
    def inner(x: Any) -> Any:
        return x.relu() + 1

    def outer(x: Any) -> Any:
        return inner(x) * 2

    x = torch.randn(8)
    for function in (outer, inner):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), function(x))
    counts = len(seen)
    assert counts == 2  # the two that were not compiled
    around = profile(torch.compile(outer, backend="eager", fullgraph=True), report=seen)
    assert torch.equal(around(x), outer(x))
    torch._dynamo.reset()


def test_results_gradients_and_random_numbers_are_the_same(gpu: Gpu) -> None:
    torch = pytest.importorskip("torch")

    def step(model: Any, x: Any) -> Any:
        y = torch.nn.functional.dropout(model(x), 0.5)
        y.sum().backward()
        return y

    results = []
    for wrap in (lambda f: f, lambda f: profile(f, lines=True, report=Seen())):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        y = wrap(step)(model, torch.randn(3, 8))
        nodes, node = [], y.grad_fn
        while node is not None:
            nodes.append(node.name())
            node = node.next_functions[0][0] if node.next_functions else None
        results.append((y.detach(), [p.grad for p in model.parameters()], torch.rand(3), nodes))
    plain, measured = results
    assert plain[3] == measured[3]
    for a, b in zip(
        itertools.chain([plain[0], plain[2]], plain[1]),
        itertools.chain([measured[0], measured[2]], measured[1]),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_the_text_of_a_profile_with_what_backward_asked_for() -> None:
    from vramlens.analyses.finding import Place

    share = LineShare(Place("/x/model.py", 55, "forward"), 3 * MIB, 2, MIB)
    use = DeviceUse(0, 0, 3 * MIB, (share, replace(share, place=None)), (), 0, 0, (), exact=True)
    text = str(FunctionProfile("f", "/x/t.py", 3, 1.2421, None, 0, (use,), ())).splitlines()
    assert text[0] == "f (t.py:3): nothing kept, peak 3.00 MiB above the start, in 1.24 s"
    assert text[2].endswith(
        "model.py:55 in forward (1.00 MiB likely: requested by its backward pass)"
    )
    assert "without a Python line" in text[3]


@pytest.mark.gpu
def test_on_a_real_gpu() -> None:
    """Change and peak are those of the allocator's own counters; the user's peak statistics
    stay.
    """
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    now, peak = torch.cuda.memory_allocated, torch.cuda.max_memory_allocated
    print(torch.__version__, torch.cuda.get_device_name(), sys.version)
    kept: list[Any] = []

    def known() -> None:
        kept.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
        a = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        b = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
        del a
        b = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
        del b

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(512, 1024, device="cuda")

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def levels_of_a_step() -> list[int]:
        levels = [now()]
        optimizer.zero_grad()
        levels.append(now())
        loss = model(x).square().mean()
        levels.append(now())
        loss.backward()
        levels.append(now())
        optimizer.step()
        levels.append(now())
        return levels

    step()  # cuBLAS's workspaces
    levels = levels_of_a_step()
    by_line = [after - before for before, after in itertools.pairwise(levels)]
    for recorded_before in (False, True):
        if recorded_before:
            torch.cuda.memory._record_memory_history()
        for function in (known, step, step):
            torch.cuda.reset_peak_memory_stats()
            before = now()
            function()
            expected = peak() - before
            kept.clear()
            torch.cuda.reset_peak_memory_stats()
            seen, before = Seen(), now()
            held = profile(function, lines=True, report=seen)()
            use = seen.use
            assert (use.kept_bytes, use.peak_bytes) == (now() - before, peak() - before), (
                function,
                recorded_before,
            )
            assert use.peak_bytes == expected
            check_sums(seen.only)
            assert seen.only.notes == ()
            print(seen.only)
            lines = {one.line - seen.only.line: one for one in use.lines}
            if function is known:
                assert [(lines[n].change_bytes // MIB, lines[n].peak_bytes // MIB) for n in range(1, 7)] == [
                    (64, 64), (256, 320), (128, 448), (-256, 448), (-96, 224), (-32, 96),
                ]  # fmt: skip
            else:
                assert [lines[n].change_bytes for n in range(1, 5)] == by_line
                assert by_line[2] != 0  # by autograd's threads, which have no Python stack
                assert max(lines[n].peak_bytes for n in range(1, 5)) == use.peak_bytes
            del held
            kept.clear()
        assert torch.cuda.memory._snapshot()["device_traces"][0] or not recorded_before
    torch.cuda.memory._record_memory_history(None)
