"""The allowance of a verb for its input: the one place that states the bounds, and
what keeps to them.

Files come from anywhere. Each reader has bounds of its own (``read/values.py``,
``native/pickle_machine.cpp``, ``native/replay.h``); these here hold for a whole verb, whatever the
file does to the code behind it. They grow with the
input: with the bytes of its files, or with what those expand to. The Python API has no such bound.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MEMORY_BYTES = 200_000_000
"""What every verb may take, the interpreter and its libraries included."""
MEMORY_TIMES_THE_INPUT, MEMORY_TIMES_EXPANDED = 6, 4
"""More for each byte of the files, and for each byte that compressed ones expand to (recorded
programs: below 3).
"""
SECONDS = 10.0
"""Of the processor, on every input."""
SECONDS_A_MEGABYTE = 2.0
"""More of them for each million bytes of input."""
STREAM_SECONDS = 600.0
"""More of them for an input whose size nobody knows: standard input."""
EXPANDS_TIMES = 100
"""What a compressed file may expand to: real ones shrink 10 to 70 times, bombs 1,000 times and
more.
"""
EXPANDS_ALWAYS_BYTES = 16 << 20

_LIBRARIES_BYTES = 70_000_000
"""Of MEMORY_BYTES: the interpreter and its libraries, which are there before anything is read."""
_LOOKS_EVERY_S = 0.05
_PATIENCE_S, _FAR_TIMES = 3.0, 1.5
"""After which, or beyond which memory, a verb that does not end by itself is ended."""
EXIT_CODE = 3


class Exhausted(BaseException):
    """The verb has taken more than its input justifies. Not an Exception: nobody on the way may
    keep it.
    """


class Allowance:
    """The most that one verb may take, and what it has taken.

    Args:
        factor: how many times the seconds, where the verb was asked for several answers.
    """

    def __init__(self, factor: int = 1) -> None:
        self._factor = factor
        self._input_bytes: dict[str, int] = {}
        self._expanded_bytes = 0
        self._has_stream = False
        self._is_lake = False
        self._began_s, self._began_bytes = time.process_time(), private_bytes()
        self.reason = ""
        self.is_over = False

    def count_file(self, name: str, size_bytes: int | None) -> None:
        """Counts an input; None where its size is not known."""
        self._has_stream |= size_bytes is None
        self._input_bytes[name] = max(size_bytes or 0, self._input_bytes.get(name, 0))

    def count_lake(self, name: str, size_bytes: int, rows_bytes: int) -> None:
        """Counts the files of a lake that a question is put to, and what their rows are unpacked:
        Parquet holds a hundred equal rows in the bytes of one.
        """
        self._is_lake = True
        self.count_file(name, size_bytes)
        justified_bytes = max(EXPANDS_ALWAYS_BYTES, EXPANDS_TIMES * size_bytes)
        self.count_expanded(min(rows_bytes, justified_bytes))

    def count_expanded(self, size_bytes: int) -> None:
        """Counts bytes that came out of a compressed input."""
        self._expanded_bytes += size_bytes

    @property
    def input_bytes(self) -> int:
        """The bytes that the bounds grow with."""
        return sum(self._input_bytes.values()) + self._expanded_bytes

    @property
    def most_bytes(self) -> int:
        """Of memory, the interpreter and its libraries included."""
        files = MEMORY_TIMES_THE_INPUT * sum(self._input_bytes.values())
        return MEMORY_BYTES + files + MEMORY_TIMES_EXPANDED * self._expanded_bytes

    @property
    def most_seconds(self) -> float:
        """Of the processor."""
        seconds = SECONDS + SECONDS_A_MEGABYTE * self.input_bytes / 1e6
        return self._factor * (seconds + (STREAM_SECONDS if self._has_stream else 0))

    def is_exceeded(self) -> bool:
        """True where more was taken; ``reason`` then says what."""
        if self.is_over:
            return False
        if time.process_time() - self._began_s > self.most_seconds:
            self.reason = f"takes more than {self.most_seconds:,.0f} s of the processor"
        elif private_bytes() - self._began_bytes > self.most_bytes - _LIBRARIES_BYTES:
            self.reason = f"takes more than {self.most_bytes / 1e6:,.0f} MB of memory"
        return bool(self.reason)

    def is_far_exceeded(self) -> bool:
        """True where so much more memory was taken that nothing waits for the verb to end by
        itself.
        """
        return private_bytes() - self._began_bytes > _FAR_TIMES * self.most_bytes

    def sentence(self) -> str:
        """One line: what was given up, why, and what to do."""
        named = list(self._input_bytes)
        source = f"{named[0]}: " if len(named) == 1 else f"{len(named)} files: " if named else ""
        if self._is_lake:
            files_bytes = sum(self._input_bytes.values())
            return (
                f"{source}{self.reason}, which is all that a question to {files_bytes:,} bytes of a"
                " lake may take; vramlens stopped and wrote nothing"
                " (vramlens.fleet.Lake in Python has no such limit)"
            )
        return (
            f"{source}{self.reason}, which no recording of {self.input_bytes:,} bytes needs;"
            " vramlens stopped and"
            " wrote nothing (vramlens.load in Python has no such limit)"
        )


_current: Allowance | None = None


def count_file(name: str, size_bytes: int | None) -> None:
    """Counts an input of the verb under way, if there is one."""
    if _current is not None:
        _current.count_file(name, size_bytes)


def is_bounded() -> bool:
    """True while a verb is held to an allowance."""
    return _current is not None


def count_lake(name: str, size_bytes: int, rows_bytes: int) -> None:
    """Counts what a question to a lake reads, for the verb under way, if there is one."""
    if _current is not None:
        _current.count_lake(name, size_bytes, rows_bytes)


def release() -> None:
    """Ends the allowance of the verb under way: its input is read, and what it does now may take
    its time.
    """
    if _current is not None:
        _current.is_over = True


def count_expanded(size_bytes: int) -> None:
    """Counts bytes that came out of a compressed input of the verb under way, if there is one."""
    if _current is not None:
        _current.count_expanded(size_bytes)


@contextmanager
def allowance(factor: int = 1) -> Iterator[Allowance]:
    """Holds what is done inside to an allowance; for the main thread.

    Args:
        factor: how many times the seconds.

    Raises:
        Exhausted: it has taken more; ``Allowance.sentence`` says what.
    """
    global _current
    allowed, over = Allowance(factor), threading.Event()
    watcher = threading.Thread(
        target=_watch,
        args=(allowed, threading.get_ident(), over),
        name="vramlens-allowance",
        daemon=True,
    )
    _current = allowed
    watcher.start()
    try:
        yield allowed
    finally:
        _end(watcher, over)
        _current = None


def _end(watcher: threading.Thread, over: threading.Event) -> None:
    """Ends the watcher, and drops its exception if that comes too late.

    The exception is waited for, not taken back: Python 3.11 goes on looking for one that was taken
    back, for ever in a function that is traced.
    """
    ended = False
    while not ended:
        try:
            over.set()
            watcher.join()
            for _ in range(2):
                pass  # a pending exception is raised where a loop jumps back
            ended = True
        except Exhausted:
            continue


def _watch(allowed: Allowance, thread: int, over: threading.Event) -> None:
    """Raises Exhausted in the thread when the allowance is exceeded; ends the process where that
    does not help.
    """
    while not over.wait(_LOOKS_EVERY_S):
        if allowed.is_exceeded():
            break
    else:
        return
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Exhausted))
    ends = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends and not allowed.is_far_exceeded():
        if over.wait(_LOOKS_EVERY_S):
            return
    os.write(2, f"vramlens: {allowed.sentence()}\n".encode("ascii", "backslashreplace"))
    os._exit(EXIT_CODE)


def private_bytes() -> int:
    """This process's memory but for what it shares with files; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _size, resident, shared, *_ = map(int, file.read().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
