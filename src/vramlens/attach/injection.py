"""Asking a foreign interpreter to run a text of Python.

Where the main thread works, it is stopped and made to call
``Py_AddPendingCall(PyRun_SimpleString, text)``: both take and give what the other wants. That call
allocates nothing and needs no interpreter lock; it takes the lock of the queue, so it is made only
where the thread cannot hold that lock itself:

- in a system call (nothing that holds the lock makes one);
- in a library that is neither Python nor the C library (nothing that holds the lock calls one);
- in an exported function of Python's that has nothing to do with that lock.

Elsewhere the thread goes on for a millisecond and is stopped again. The text runs in the main
thread between two bytecodes, when that next looks for signals; it must catch everything, as
PyRun_SimpleString would print it, and what answers -1 would raise in the program.

Where the main thread has been waiting in a system call (for a lock, a socket, time, a child),
nobody knows when it looks for signals again. There it is made to start a thread of the system,
``thread_code``, which asks for the interpreter's lock as any foreign thread does. Starting one
allocates: the calls in ``_WAITS`` are those in which nobody waits who is in the middle of
allocating or of loading a library (a mutex waits by another operation of the futex).

Text and code lie in a page of their own, which ``take_back`` unmaps when they have been used.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass, replace

from vramlens.attach.python_symbols import PythonImage, mappings_of, python_image
from vramlens.attach.stopped_thread import Registers, StoppedThread, ThreadLost
from vramlens.attach.thread_code import NEEDED_OF_LIBC, NEEDED_OF_PYTHON, thread_code

_GOOD_PLACE_WITHIN_S = 3.0
_BETWEEN_STOPS_S = 0.001
_CALL_WITHIN_S = 0.25
_START_WITHIN_S = 1.0
_ROOM_BYTES = 4 * mmap.PAGESIZE
_MMAP, _MUNMAP = 9, 11  # asm/unistd_64.h
_FUTEX, _FUTEX_OPERATION, _FUTEX_WAIT_BITSET = 202, 0x7F, 9  # linux/futex.h
_WAITS = frozenset(
    {
        0,  # read
        7,  # poll
        23,  # select
        34,  # pause
        35,  # nanosleep
        43,  # accept
        45,  # recvfrom
        47,  # recvmsg
        61,  # wait4
        128,  # rt_sigtimedwait
        230,  # clock_nanosleep
        232,  # epoll_wait
        247,  # waitid
        270,  # pselect6
        271,  # ppoll
        281,  # epoll_pwait
        288,  # accept4
        441,  # epoll_pwait2
    }
)
_PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_NEAR_THE_LOCK = ("Pending", "PyThread", "PyMutex", "_PyParkingLot", "_PyRawMutex", "_PySemaphore")
"""In the names of functions that hold the queue's lock, or that are called with it."""


class NoPython(Exception):
    """No interpreter that could be asked is in the process."""


@dataclass(frozen=True)
class Injected:
    """A text that waits in a foreign process.

    Attributes:
        way: "pending_call", or "thread": which runs it.
        page: where it lies.
        stopped_s: how long the main thread stood still for it, in all.
    """

    way: str
    page: int
    stopped_s: float


def inject(pid: int, text: bytes, *, is_parked: bool = False) -> Injected:
    """Has a process run a text of Python soon; what lies in it now.

    Args:
        is_parked: whether its main thread was seen to wait for something.

    Raises:
        ThreadLost: its main thread cannot be stopped, or at no good place; nothing was changed.
        NoPython: it is not Python.
    """
    thread = StoppedThread(pid)
    try:
        image = python_image(mappings_of(pid), thread.read)
        if image is None or "PyRun_SimpleString" not in image.elf.addresses:
            raise NoPython
        return _ask(thread, image, text, may_start_thread=is_parked)
    finally:
        thread.close()


def take_back(pid: int, injected: Injected) -> Injected:
    """Unmaps the text of an injection; gives it with the time that took."""
    thread = StoppedThread(pid)
    try:
        image = python_image(mappings_of(pid), thread.read)
        if image is None:
            return replace(injected, stopped_s=0.0)
        began = time.perf_counter()
        thread.stop()
        _unmap(thread, image, injected.page)
        return replace(injected, stopped_s=time.perf_counter() - began)
    finally:
        thread.close()


def is_good_place(registers: Registers, image: PythonImage) -> bool:
    """True where a thread stopped like this surely does not hold the lock of the queue."""
    if _system_call_of(registers) is not None:
        return True
    at = registers.rip
    if _is_in(at, image.libc_code):
        return False
    if not _is_in(at, image.python_code):
        return True
    name = image.elf.function_at(at)
    return name is not None and not any(word in name for word in _NEAR_THE_LOCK)


def is_waiting(registers: Registers) -> bool:
    """True where a thread stopped like this waits, and is not in the middle of an allocation."""
    number = _system_call_of(registers)
    if number == _FUTEX:
        return bool((registers.rsi & _FUTEX_OPERATION) == _FUTEX_WAIT_BITSET)
    return number in _WAITS


def _system_call_of(registers: Registers) -> int | None:
    """The number of the system call that a thread is in; None where it is in none."""
    return int(registers.orig_rax) if registers.orig_rax < 1 << 63 else None


def _ask(
    thread: StoppedThread, image: PythonImage, text: bytes, *, may_start_thread: bool
) -> Injected:
    stopped_s = 0.0
    deadline = time.monotonic() + _GOOD_PLACE_WITHIN_S
    while True:
        began = time.perf_counter()
        registers = thread.stop()
        way, page = "", 0
        if may_start_thread and is_waiting(registers):
            way, page = "thread", _thread_started(thread, image, text)
        if not page and is_good_place(registers, image):
            way, page = "pending_call", _queued(thread, image, text)
        if page:
            return Injected(way, page, stopped_s + time.perf_counter() - began)
        thread.go_on()
        stopped_s += time.perf_counter() - began
        if time.monotonic() > deadline:
            raise ThreadLost("its main thread was at no place where it may be interrupted")
        time.sleep(_BETWEEN_STOPS_S)


def _queued(thread: StoppedThread, image: PythonImage, text: bytes) -> int:
    """The page of a text that waits to be run by the main thread; 0 where the queue is full.

    Raises:
        NoPython: the interpreter has not begun, or is ending.
    """
    page = _placed(thread, image, text, mmap.PROT_READ)
    addresses = image.elf.addresses
    run, add = addresses["PyRun_SimpleString"], addresses["Py_AddPendingCall"]
    is_queued = False
    try:
        if not _is_initialized(thread, image):
            raise NoPython
        is_queued = thread.call(add, run, page, seconds=_CALL_WITHIN_S) == 0
    finally:
        if not is_queued:
            _unmap(thread, image, page)
    return page if is_queued else 0


def _thread_started(thread: StoppedThread, image: PythonImage, text: bytes) -> int:
    """The page of a thread that runs a text; 0 where none could be started."""
    functions = {**image.elf.addresses, **image.thread_functions}
    if any(name not in functions for name in (*NEEDED_OF_LIBC, *NEEDED_OF_PYTHON)):
        return 0
    code = thread_code(functions)
    data = code + text
    page = _placed(thread, image, data, mmap.PROT_READ | mmap.PROT_EXEC)
    if not page:
        return 0
    is_started = False
    try:
        if not _is_initialized(thread, image):
            raise NoPython
        is_started = (
            thread.call(
                functions["pthread_create"],
                thread.scratch_address,
                0,
                page,
                page + len(code),
                seconds=_START_WITHIN_S,
            )
            == 0
        )
    finally:
        if not is_started:
            _unmap(thread, image, page)
    return page if is_started else 0


def _is_initialized(thread: StoppedThread, image: PythonImage) -> bool:
    function = image.elf.addresses.get("Py_IsInitialized")
    return function is None or thread.call(function, seconds=_CALL_WITHIN_S) != 0


def _placed(thread: StoppedThread, image: PythonImage, data: bytes, protection: int) -> int:
    """The address of new pages of the process with some data in them.

    Raises:
        ThreadLost: it gets none.
    """
    if len(data) >= _ROOM_BYTES:
        raise ThreadLost("the text is too long")
    page = thread.system_call(
        image.syscall_instruction, _MMAP, 0, _ROOM_BYTES, protection, _PRIVATE_ANONYMOUS, -1, 0
    )
    if -4096 < page <= 0:
        raise ThreadLost("the system gives it no page of memory")
    thread.write(page, data + b"\0")
    return page


def _unmap(thread: StoppedThread, image: PythonImage, page: int) -> None:
    thread.system_call(image.syscall_instruction, _MUNMAP, page, _ROOM_BYTES)


def _is_in(address: int, ranges: list[tuple[int, int]]) -> bool:
    return any(start <= address < end for start, end in ranges)
