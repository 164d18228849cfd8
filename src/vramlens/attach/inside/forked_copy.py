"""A forked copy of the process, in which its heap is searched while the program runs on.

The copy is one thread, alone, with the memory of that moment and the interpreter's lock. It reads,
writes its answer into a pipe, and ends. The program stands still only while the system copies its
page tables.

The thread is our own. Python runs the program's signal handlers in the main thread only: so none
runs in the copy, and one that raises while somebody waits for the copy leaves nothing behind. The
thread lives as long as its copy, which the system ends with it.

Python's own ``os.fork`` would forget the other threads' frames, which say who holds what, and run
what the program has registered for its children. So the C library's is called, with the lock kept.
Two things follow. Nobody may be asking for the lock at that moment: the copy would hand it to a
thread that is not there (``_nobody_asks``). And a lock of C++ that another thread had is never
released in the copy: one that sleeps is ended, and its work is done without a copy.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from vramlens.attach.inside.forked_child import ForkedChild
from vramlens.capture.memory.memory_now import host_memory, is_killed_as_group
from vramlens.capture.process.own_thread import OwnEvent, OwnThread, get_ident, wait
from vramlens.capture.process.process_state import status_of
from vramlens.capture.process.undisturbed import no_collection, switch_interval_of
from vramlens.capture.recording.device_facts import DeviceFacts
from vramlens.capture.torch_api import Allocator
from vramlens.live.heap.looking_thread import look_for

_ROOM_BYTES = 1 << 30
"""What a search takes, and the pages that change meanwhile."""
_MOST_PAGE_TABLES_KIB = 96 * 1024
"""Copying them takes about a millisecond for each 2 MiB of program, on the machines tried."""
_INTERVAL_S = 0.3
_LONGEST_WAIT_S = 0.25
_FORKS_WITHIN_S = 20.0
_LONGEST_LIFE_S = 70
_ENDS_WITHIN_S = 5.0
_NICENESS = 5
_DIES_WITH_PARENT = 1  # linux/prctl.h: PR_SET_PDEATHSIG
_DEFAULT_ACTION = 0  # signal.h: SIG_DFL
_CHILDREN_OF_TORCH = "torch."
_AUTOCAST_DEVICES = ("cuda", "cpu", "xpu")


class NoCopy(Exception):
    """There can be no copy, or it gave no answer."""


class ForkedCopy:
    """Some work that goes on in a copy of the process as it was when this was made.

    Attributes:
        paused_s: how long the program stood still for it.
    """

    def __init__(self, work: Callable[[], Any], asking: AskingThread | None = None) -> None:
        """Begins it.

        Args:
            work: gives what JSON can carry. It must neither start threads nor use a GPU.
            asking: the thread that it is done for; by default this one.

        Raises:
            NoCopy: this process cannot, or should not, be copied.
        """
        _check()
        self.paused_s = 0.0
        self._is_made = False
        self._is_wanted = True
        self._raw: bytes | None = None
        self._has_tried, self._is_over = OwnEvent(), OwnEvent()
        asking = asking or AskingThread()
        self._thread = OwnThread(partial(self._accompany, partial(asking.run_in_copy, work)))
        try:
            self._thread.start()
        except RuntimeError:
            raise NoCopy("there can be no thread for a copy") from None
        try:
            self._has_tried.wait(_FORKS_WITHIN_S)
        except BaseException:  # of the program's signal handler
            self._is_wanted = False
            raise
        if not self._is_made:
            self._is_wanted = False
            raise NoCopy("the system makes no copy of this process")

    def answer(self, seconds: float) -> Any:
        """What the work gave; waits for it without the interpreter's lock.

        Raises:
            NoCopy: it failed, hangs, or is not done in that time.
        """
        try:
            self._is_over.wait(seconds)
        finally:
            self.end()
        if self._raw is None:
            raise NoCopy("the copy gave no answer")
        try:
            outcome = json.loads(self._raw)
        except ValueError:
            raise NoCopy("the copy ended without an answer") from None
        if "error" in outcome:
            raise NoCopy(str(outcome["error"]))
        return outcome["answer"]

    def end(self) -> None:
        """Ends it; nothing is left of it."""
        self._is_wanted = False
        self._thread.join(_ENDS_WITHIN_S)

    def _accompany(self, work: Callable[[], Any]) -> None:
        """On a thread of our own: makes the copy, hears it, and ends it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            child = self._forked(work)
            self._is_made = child is not None
        finally:
            self._has_tried.set()
        if child is None:
            return
        try:
            self._raw = child.received(_LONGEST_LIFE_S, lambda: self._is_wanted)
        finally:
            child.end()
            self._is_over.set()

    def _forked(self, work: Callable[[], Any]) -> ForkedChild | None:
        """The copy; None where the system makes none."""
        libc = ctypes.PyDLL(None)  # keeps the interpreter's lock during a call
        pipe = (ctypes.c_int * 2)()
        # Nor does the copy collect: what it would free is the program's.
        with no_collection(), _nobody_asks():
            # Who forks meanwhile would have the pipe, too: so the lock is kept from here on.
            if not self._is_wanted or libc.pipe2(pipe, os.O_CLOEXEC):
                return None
            began = time.perf_counter()
            pid = libc.fork()
            if pid == 0:
                _work_and_exit(libc, work, pipe[1])
            libc.close(pipe[1])
            self.paused_s = time.perf_counter() - began
        if pid < 0:
            os.close(pipe[0])
            return None
        return ForkedChild(pid, pipe[0])


def _check() -> None:
    """Does nothing where a copy does no harm.

    Raises:
        NoCopy: it would, or none can be made.
    """
    if sys.platform != "linux":
        raise NoCopy("copies are made on Linux")
    if _is_programs(signal.getsignal(signal.SIGCHLD)):
        raise NoCopy("the program hears of each child that ends")
    if _page_tables_kib() > _MOST_PAGE_TABLES_KIB:
        raise NoCopy("to copy it would take long")
    host = host_memory()
    changing_bytes = (host.rss_bytes or 0) // (1 if is_killed_as_group() else 2)
    needed_bytes = _ROOM_BYTES + changing_bytes
    if host.available_bytes is not None and host.available_bytes < needed_bytes:
        raise NoCopy("there is no memory for a copy")


def _is_programs(handler: Any) -> bool:
    """True where a signal handler is, or calls, one of the program's: torch's calls the one that
    was there before, which a cell of it holds.
    """
    waiting, visited = [handler], set()
    while waiting:
        function = waiting.pop()
        if not callable(function) or id(function) in visited:
            continue
        visited.add(id(function))
        if not str(getattr(function, "__module__", "")).startswith(_CHILDREN_OF_TORCH):
            return True
        for cell in getattr(function, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                waiting.append(cell.cell_contents)
    return False


def _page_tables_kib() -> int:
    """What the system keeps to know where this process's pages are, and would copy."""
    size, _, _ = status_of("self").get("VmPTE", "0 kB").partition(" ")
    return int(size)


@contextlib.contextmanager
def _nobody_asks() -> Iterator[None]:
    """For a moment nobody asks for the interpreter's lock while this thread has it.

    A thread that waits for the lock asks for it after the switch interval. Those that wait by the
    program's interval ask during the sleep, when this thread has no lock to give. From then on they
    wait by ours, anew each time that the lock changes hands.
    """
    with switch_interval_of(_INTERVAL_S) as interval:
        wait(min(2 * interval, _LONGEST_WAIT_S))
        yield


def _work_and_exit(libc: Any, work: Callable[[], Any], writable: int) -> None:
    """In the copy: does the work, writes what came of it, ends."""
    try:
        _become_small(libc, writable)
        outcome: dict[str, Any] = {"answer": work()}
    except BaseException as error:
        outcome = {"error": f"{type(error).__name__}: {error}"[:500]}
    try:
        raw = json.dumps(outcome).encode()
        while raw:
            written = libc.write(writable, raw, ctypes.c_size_t(len(raw)))
            if written <= 0:
                break
            raw = raw[written:]
    finally:
        libc._exit(0)


def _become_small(libc: Any, writable: int) -> None:
    """The copy ends with the thread that made it, and in time; it leaves processor and memory to
    the program, and has no file of its.
    """
    libc.prctl(_DIES_WITH_PARENT, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    libc.signal(signal.SIGALRM, ctypes.c_void_p(_DEFAULT_ACTION))
    libc.alarm(_LONGEST_LIFE_S)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        os.nice(_NICENESS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in os.listdir("/proc/self/fd"):
        if int(name) != writable:
            libc.close(int(name))


class KnownFacts(DeviceFacts):
    """What is known of the GPUs before the process is copied: a copy can ask no driver. The facts
    are of the moment at which ``ask`` was called.
    """

    def __init__(self, gpu: Allocator) -> None:
        super().__init__(gpu)
        self._version: str | None = None
        self._devices: dict[str, dict[str, Any]] | None = None

    def ask(self) -> None:
        """Asks PyTorch and the driver."""
        super().look_at_the_end(in_trouble=False)
        self._version = super().driver_version
        self._devices = super().devices()

    @property
    def driver_version(self) -> str | None:
        """The driver's version; None where nobody tells."""
        return self._version

    def devices(self) -> dict[str, dict[str, Any]]:
        """Name, memory, limit and statistics of each device in use, by index."""
        return super().devices() if self._devices is None else self._devices

    def look_at_the_end(self, *, in_trouble: bool) -> None:
        """Keeps what ``ask`` was told, which is later asked of nobody."""
        if self._devices is None:
            super().look_at_the_end(in_trouble=in_trouble)


class AskingThread:
    """The thread that asks for a copy of the process, by what Python and PyTorch keep by thread:
    the copy runs on a thread of our own, to which that is carried.
    """

    def __init__(self) -> None:
        self._ident = get_ident()
        self._context = contextvars.copy_context()
        self._torch: Any = sys.modules.get("torch")
        self._autocast: dict[str, Any] = {}
        self._depth = 0
        self._is_caching = False
        with suppress(Exception):  # torch is not there, not whole, or of another version
            self._ask_autocast()

    def run_in_copy(self, work: Callable[[], Any]) -> Any:
        """What the work gives when it is run in the copy as if on this thread."""
        look_for(self._ident)
        with suppress(Exception):
            self._set_autocast()
        return self._context.run(work)

    def _ask_autocast(self) -> None:
        torch = self._torch
        for device in _AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                self._autocast[device] = torch.get_autocast_dtype(device)
        if self._autocast:
            self._is_caching = torch.is_autocast_cache_enabled()
            self._depth = int(torch.autocast_increment_nesting()) - 1
            torch.autocast_decrement_nesting()

    def _set_autocast(self) -> None:
        torch = self._torch
        for device, dtype in self._autocast.items():
            torch.set_autocast_enabled(device, True)
            torch.set_autocast_dtype(device, dtype)
        if self._autocast:
            torch.set_autocast_cache_enabled(self._is_caching)
        for _ in range(self._depth):
            torch.autocast_increment_nesting()
