"""A forked copy of the process, in which its heap is searched while the program runs on.

The copy is the thread that asks for it, alone, with the memory of that moment and the interpreter's
lock. It reads, writes its answer into a pipe, and ends. The program stands still only while the
system copies its page tables.

Python's own ``os.fork`` would forget the other threads' frames, which say who holds what, and run
what the program has registered for its children. So the C library's is called, with the lock kept.
Two things follow. Nobody may be asking for the lock at that moment: the copy would hand it to a
thread that is not there (``_nobody_asks``). And a lock of C++ that another thread had is never
released in the copy: one that sleeps is ended, and its work is done without a copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from vramlens.capture.memory.memory_now import host_memory

_ROOM_BYTES = 1 << 30
"""What a search takes, and the pages that change meanwhile."""
_MOST_PAGE_TABLES_KIB = 96 * 1024
"""Copying them takes about a millisecond for each 2 MiB of program, on the machines tried."""
_INTERVAL_S = 0.3
_LONGEST_WAIT_S = 0.25
_LOOKS_EVERY_S = 0.1
_ASLEEP_LOOKS = 15
_NICENESS = 5
_PIECE_BYTES = 1 << 16
_DIES_WITH_PARENT = 1  # linux/prctl.h: PR_SET_PDEATHSIG
_CHILDREN_OF_TORCH = "torch."


class NoCopy(Exception):
    """There can be no copy, or it gave no answer."""


class ForkedCopy:
    """Some work that goes on in a copy of the process as it was when this was made.

    Attributes:
        paused_s: how long the program stood still for it.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        """Begins it.

        Args:
            work: gives what JSON can carry. It must neither start threads nor use a GPU.

        Raises:
            NoCopy: this process cannot, or should not, be copied.
        """
        _check()
        libc = ctypes.PyDLL(None)  # keeps the interpreter's lock during a call
        readable, writable = os.pipe()
        try:
            with _no_signals(), _no_collection(), _nobody_asks():
                began = time.perf_counter()
                child = libc.fork()
                if child == 0:
                    _work_and_exit(libc, work, writable)
                self.paused_s = time.perf_counter() - began
        finally:
            os.close(writable)
        if child < 0:
            os.close(readable)
            raise NoCopy("the system makes no copy of this process")
        self._child, self._pipe = child, readable

    def answer(self, seconds: float) -> Any:
        """What the work gave; waits for it without the interpreter's lock.

        Raises:
            NoCopy: it failed, hangs, or is not done in that time.
        """
        try:
            raw = self._received(time.monotonic() + seconds)
        finally:
            self.end()
        try:
            outcome = json.loads(raw)
        except ValueError:
            raise NoCopy("the copy ended without an answer") from None
        if "error" in outcome:
            raise NoCopy(str(outcome["error"]))
        return outcome["answer"]

    def end(self) -> None:
        """Ends it; nothing is left of it."""
        if self._pipe < 0:
            return
        os.close(self._pipe)
        self._pipe = -1
        with contextlib.suppress(OSError):
            os.kill(self._child, signal.SIGKILL)
        with contextlib.suppress(OSError):  # the program waits for any child
            os.waitpid(self._child, 0)

    def _received(self, deadline: float) -> bytes:
        """Everything that the copy writes until it ends.

        Raises:
            NoCopy: it hangs, or the time is over.
        """
        pieces: list[bytes] = []
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        asleep = 0
        while True:
            if poll.poll(_LOOKS_EVERY_S * 1000):
                piece = os.read(self._pipe, _PIECE_BYTES)
                if not piece:
                    return b"".join(pieces)
                pieces.append(piece)
                continue
            asleep = asleep + 1 if _sleeps(self._child) else 0
            if asleep >= _ASLEEP_LOOKS or time.monotonic() > deadline:
                raise NoCopy("the copy gave no answer")


def _check() -> None:
    """Does nothing where a copy does no harm.

    Raises:
        NoCopy: it would, or none can be made.
    """
    if sys.platform != "linux":
        raise NoCopy("copies are made on Linux")
    handler = signal.getsignal(signal.SIGCHLD)
    is_torchs = str(getattr(handler, "__module__", "")).startswith(_CHILDREN_OF_TORCH)
    if callable(handler) and not isinstance(handler, signal.Handlers) and not is_torchs:
        raise NoCopy("the program hears of each child that ends")
    if _page_tables_kib() > _MOST_PAGE_TABLES_KIB:
        raise NoCopy("to copy it would take long")
    host = host_memory()
    needed_bytes = _ROOM_BYTES + (host.rss_bytes or 0) // 2
    if host.available_bytes is not None and host.available_bytes < needed_bytes:
        raise NoCopy("there is no memory for a copy")


def _page_tables_kib() -> int:
    """What the system keeps to know where this process's pages are, and would copy."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("VmPTE:"):
                return int(line.split()[1])
    return 0


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    """The copy hears no signal: the program's handlers are not to run twice."""
    every = signal.valid_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, every)
    try:
        yield
    finally:
        # What was blocked before may hold the C library's own signals, which Python warns of.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, every - before)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No collection inside, and none in the copy: what it frees is the program's."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()


@contextlib.contextmanager
def _nobody_asks() -> Iterator[None]:
    """For a moment nobody asks for the interpreter's lock while this thread has it.

    A thread that waits for the lock asks for it after the switch interval. Those that wait by the
    program's interval ask during the sleep, when this thread has no lock to give. From then on they
    wait by ours, anew each time that the lock changes hands.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_INTERVAL_S)
    try:
        time.sleep(min(2 * interval, _LONGEST_WAIT_S))
        yield
    finally:
        sys.setswitchinterval(interval)


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
    """The copy ends with its parent, leaves processor and memory to it, and has no file of its."""
    libc.prctl(_DIES_WITH_PARENT, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        os.nice(_NICENESS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in os.listdir("/proc/self/fd"):
        if int(name) != writable:
            libc.close(int(name))


def _sleeps(pid: int) -> bool:
    """True where a process waits for something."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] == "S"
    except (OSError, IndexError):
        return False
