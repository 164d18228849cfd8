"""``vramlens.profile``: after each call of a function what it kept, how high it went, and which
lines did it.

Memory is a device's, not a thread's: what other threads allocate and free during a call counts, as
it does in ``torch.cuda.memory_allocated``. All bytes are allocated bytes; what the function returns
is still there when it ends.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, overload

from vramlens.capture import torch_api
from vramlens.capture.line_clock import LineClock
from vramlens.capture.process.undisturbed import no_collection
from vramlens.capture.recording.output_path import rank_of_process
from vramlens.capture.recording.ring_size import default_max_events
from vramlens.capture.recording.session import current_session
from vramlens.capture.torch_api import Allocator, loaded_torch
from vramlens.capture.triggers.on_import import when_imported
from vramlens.capture.warn import Function, harmless, say_once
from vramlens.report.profile.function_text import FunctionProfile

if TYPE_CHECKING:
    from vramlens.analyses.profile.function_use import DeviceUse, Moves, SourceLine
    from vramlens.trace import Trace

_NOTHING = "no GPU in use, so nothing was measured"


Report = Callable[[FunctionProfile], object]


@overload
def profile(
    function: Function, /, *, lines: bool = False, report: Report | None = None
) -> Function: ...
@overload
def profile(
    *, lines: bool = False, report: Report | None = None
) -> Callable[[Function], Function]: ...
def profile(function: Any = None, /, *, lines: bool = False, report: Report | None = None) -> Any:
    """The function, which from now on says after each call what it kept of the GPU's memory and
    what its peak was.

    ``@vramlens.profile``, ``@vramlens.profile(lines=True)`` or
    ``vramlens.profile(function)(arguments)``. Nothing waits for the GPU and no statistic is reset.
    If nobody has PyTorch record its history, it does so during the call. Inside of
    ``torch.compile`` the function is compiled as if it were not decorated, and nothing is measured.

    Args:
        function: a function, method, class method or static method, or another callable.
        lines: whether the source of the function is shown with the change and the peak beside each
            line. On Python 3.10, tracing copies the function's variables: what a line replaces goes
            with the next line.
        report: what takes the FunctionProfile; by default it is printed on standard error.

    Raises:
        TypeError: a generator or ``async`` function, whose work is not done when its call returns;
            or no function.
    """
    if function is None:
        return lambda decorated: profile(decorated, lines=lines, report=report)
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(profile(function.__func__, lines=lines, report=report))
    _refuse_what_is_no_plain_function(function)
    profiler = _Profiler(function, lines, _print if report is None else report)
    _wait_for_torch()

    @functools.wraps(function, updated=("__dict__",) if inspect.isfunction(function) else ())
    def profiled(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return function(*args, **kwargs)
        call = profiler.begin()
        arguments: list[Any] = [kwargs, args]
        # From Python 3.12 the function alone holds what it is given without a name, and may free
        # it.
        del args, kwargs
        if call is None:
            return function(*arguments.pop(), **arguments.pop())
        try:
            return function(*arguments.pop(), **arguments.pop())
        except BaseException as error:
            call.error = type(error).__name__
            raise
        finally:
            profiler.end(call)

    return profiled


def _refuse_what_is_no_plain_function(function: Any) -> None:
    kinds = {
        "a generator function": (inspect.isgeneratorfunction, inspect.isasyncgenfunction),
        "an async function": (inspect.iscoroutinefunction,),
        "a class": (inspect.isclass,),
        "not a function": (lambda found: not callable(found),),
    }
    inner = inspect.unwrap(function)
    for kind, tests in kinds.items():
        if any(test(function) or test(inner) for test in tests):
            name = getattr(function, "__qualname__", repr(function))
            raise TypeError(
                f"vramlens.profile: {name} is {kind}: profile the function that does the work "
                "or runs it"
            )


def _not_compiling() -> bool:
    return False


_is_compiling: Callable[[], bool] = _not_compiling


@functools.cache
def _wait_for_torch() -> None:
    when_imported("torch", _know_torch)


@harmless("looking for torch.compile")
def _know_torch() -> None:
    """Has what torch.compile makes of a profiled function not go further than the function
    itself.
    """
    global _is_compiling
    _is_compiling = loaded_torch().compiler.is_compiling


class _Thread(threading.local):
    """The state of one thread.

    Attributes:
        calls: the calls that are measured, by profiler.
        own_ns: how long vramlens itself has worked.
    """

    def __init__(self) -> None:
        self.calls: dict[_Profiler, _Call] = {}
        self.own_ns = 0


_thread = _Thread()


class _History:
    """PyTorch's recording, switched on by the first call that finds it off, and off when the
    last such call is over.
    """

    def __init__(self) -> None:
        # Where another thread begins to use the GPU meanwhile, _start_late runs at once.
        self._lock = threading.RLock()
        self._users = 0
        self._is_ours = self._waits = False

    def enter(self, gpu: Allocator) -> bool:
        """Has PyTorch record; whether what it has when the call ends begins with the call."""
        with self._lock:
            is_there = gpu.is_initialized()
            is_first = not self._users and not (is_there and gpu.history_is_on())
            if is_there:
                self._start(gpu)
            elif not self._waits:
                gpu.when_initialized(lambda: self._start_late(gpu))
                self._waits = True
            self._users += 1
            return is_first

    def leave(self, gpu: Allocator) -> None:
        """One call less."""
        with self._lock:
            self._users -= 1
            if self._users or not self._is_ours:
                return
            self._is_ours = False
            session = current_session()
            # A session that began during the call records now: the history is its own.
            if session is None or not session.recorder.recording:
                gpu.stop_history()

    def _start_late(self, gpu: Allocator) -> None:
        with self._lock:
            self._waits = False
            if self._users:
                self._start(gpu)

    @harmless("starting to record")
    def _start(self, gpu: Allocator) -> None:
        if not self._is_ours and not gpu.history_is_on():
            gpu.start_history(
                default_max_events(1 if rank_of_process() is not None else gpu.device_count())
            )
            self._is_ours = True


_history = _History()


@dataclass(eq=False, slots=True)
class _Call:
    """A call under way.

    Attributes:
        gpu, clock: what is measured, and the lines; no clock without ``lines=True``.
        is_whole: whether PyTorch's history begins with the call.
        began_us, began_ns: when: since the epoch, and on the clock that never jumps.
        own_ns: how long vramlens had worked on this thread by then.
        levels: allocated bytes by device.
        is_nested: whether the function's code was running on this thread already.
        error, inner_calls: see FunctionProfile.
    """

    gpu: Allocator
    clock: LineClock | None
    is_whole: bool
    began_us: int = 0
    began_ns: int = 0
    own_ns: int = 0
    levels: Mapping[int, int] = field(default_factory=dict)
    is_nested: bool = False
    error: str | None = None
    inner_calls: int = 0


class _Profiler:
    """Measures the calls of one function."""

    def __init__(self, function: Any, lines: bool, report: Report) -> None:
        inner = inspect.unwrap(function)
        inner = getattr(inner, "__func__", inner)
        self._inner, self._lines, self._report = inner, lines, report
        self._code: CodeType | None = getattr(inner, "__code__", None)
        name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
        self._name = name.rpartition("<locals>.")[2]

    @harmless("measuring a function")
    def begin(self) -> _Call | None:
        """A call begins; None where it is not measured apart."""
        running = _thread.calls.get(self)
        if running is not None:
            running.inner_calls += 1
            return None
        gpu = torch_api.connect()
        if gpu is None:
            say_once(_NOTHING)
            return None
        entered_ns = time.perf_counter_ns()
        clock = LineClock(self._code) if self._lines and self._code is not None else None
        call = _Call(gpu, clock, is_whole=_history.enter(gpu))
        try:
            call.is_nested = clock is not None and self._is_running()
            call.levels = _levels(gpu)
            _thread.calls[self] = call
            if clock is not None:
                clock.start()
        except BaseException:
            _thread.calls.pop(self, None)
            _history.leave(gpu)
            raise
        call.began_us, call.began_ns = time.time_ns() // 1000, time.perf_counter_ns()
        _thread.own_ns += call.began_ns - entered_ns
        call.own_ns = _thread.own_ns
        return call

    @harmless("measuring a function")
    def end(self, call: _Call) -> None:
        """The call is over: its report."""
        ended_us, ended_ns = time.time_ns() // 1000, time.perf_counter_ns()
        seconds = (ended_ns - call.began_ns - (_thread.own_ns - call.own_ns)) / 1e9
        _thread.calls.pop(self, None)
        try:
            if call.clock is not None:
                call.clock.stop()
            measured = self._measure(call, ended_us, seconds)
        finally:
            _leave(call.gpu)
        if measured is not None:
            self._hand_over(measured)
        _thread.own_ns += time.perf_counter_ns() - ended_ns

    @harmless("measuring a function")
    def _measure(self, call: _Call, ended_us: int, seconds: float) -> FunctionProfile | None:
        from vramlens.analyses.profile.function_use import DeviceUse, device_use, moves_of

        if not call.gpu.is_initialized():
            say_once(_NOTHING)
            return None
        levels = _levels(call.gpu)
        trace = _trace_of(call.gpu, 0 if call.is_whole else call.began_us)
        devices = []
        for index, level in levels.items():
            kept_bytes, device = level - call.levels.get(index, 0), trace.devices.get(index)
            if device is not None and len(device.events):
                moves = moves_of(trace, device, kept_bytes, ended_us)
                if kept_bytes or moves.delta.any():
                    devices.append(device_use(moves, self._source_lines(moves, call)))
            elif kept_bytes:
                devices.append(
                    DeviceUse(
                        device=index,
                        kept_bytes=kept_bytes,
                        peak_bytes=None,
                        at_peak=(),
                        stayed=(),
                        freed_at_peak_bytes=0,
                        freed_bytes=0,
                        lines=(),
                        exact=False,
                    )
                )
        file, line = self._place()
        return FunctionProfile(
            function=self._name,
            file=file,
            line=line,
            seconds=seconds,
            error=call.error,
            inner_calls=call.inner_calls,
            devices=tuple(sorted(devices, key=lambda use: -(use.peak_bytes or 0))),
            notes=tuple(_notes(devices, call.clock)),
        )

    @harmless("reporting on a function")
    def _hand_over(self, measured: FunctionProfile) -> None:
        self._report(measured)

    def _source_lines(self, moves: Moves, call: _Call) -> tuple[SourceLine, ...]:
        from vramlens.analyses.profile.function_use import LinesSeen, source_lines

        clock = call.clock
        if clock is None or self._code is None:
            return ()
        timed_lines = LinesSeen(clock.lines, clock.times_ns, clock.hits, followed=not clock.trouble)
        return source_lines(
            moves, self._code, dict(self._source()), timed_lines, is_nested=call.is_nested
        )

    def _is_running(self) -> bool:
        """True where the function's code runs on this thread already, as where it calls itself
        undecorated.
        """
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return frame is not None

    def _source(self) -> list[tuple[int, str]]:
        """The function's lines: number and text; none where there is no file."""
        try:
            texts, first = inspect.getsourcelines(self._inner)
        except (OSError, TypeError):
            return []
        return [(first + n, text.rstrip()) for n, text in enumerate(texts)]

    def _place(self) -> tuple[str, int]:
        """The file, and the line of ``def`` below the decorators."""
        if self._code is None:
            return "", 0
        headed = (line for line, text in self._source() if re.match(r"\s*def\s", text))
        return self._code.co_filename, next(headed, self._code.co_firstlineno)


def _levels(gpu: Allocator) -> dict[int, int]:
    """Allocated bytes of every device."""
    return (
        {n: gpu.counters(n)[0] for n in range(gpu.device_count())} if gpu.is_initialized() else {}
    )


@harmless("stopping to record")
def _leave(gpu: Allocator) -> None:
    _history.leave(gpu)


def _trace_of(gpu: Allocator, since_us: int) -> Trace:
    """The history that PyTorch recorded since a moment (microseconds since the epoch)."""
    from vramlens.read.live_history import read_history

    with no_collection():
        return read_history(gpu.snapshot(), "the call", since_us)


def _notes(devices: list[DeviceUse], clock: LineClock | None) -> Iterator[str]:
    for use in devices:
        if use.peak_bytes is None:
            yield (
                f"device {use.device}: nothing was recorded, so the peak and the lines are unknown"
            )
        elif not use.exact:
            yield (
                f"device {use.device}: only part of the call was recorded, so the peak and the "
                "lines are estimates"
            )
    if clock is not None and clock.trouble:
        yield (
            f"{clock.trouble}: lines come from stacks only; memory without a stack (backward) "
            "is shown on the previous line"
        )


def _print(measured: FunctionProfile) -> None:
    """Prints a profile on standard error."""
    # Closed or replaced: not the program's trouble.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{measured}\n")
        sys.stderr.flush()
