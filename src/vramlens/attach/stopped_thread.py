"""One thread of another process, stopped by ptrace: its registers, its memory, one call in it.

Nothing here asks what the thread is doing: ``injection`` decides whether a call is safe. Whatever
happens in between, ``close`` gives the thread back the registers, the vector registers and the
signal mask that it was stopped with; a system call that was interrupted goes on as after a stop
by a debugger (the kernel restarts it from the registers).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import time
from typing import Any

WORD_BYTES = 8
_STOPS_WITHIN_S = 1.0
_PAUSE_BETWEEN_LOOKS_S = 0.0002
_RED_ZONE_BYTES = 128
"""Below the stack pointer a leaf function keeps variables (System V ABI for x86-64, 3.2.2)."""
_TRAP_AND_DIRECTION = 0x100 | 0x400
# linux/ptrace.h, linux/elf.h, linux/wait.h
_GETREGS, _SETREGS, _DETACH, _CONT, _SINGLESTEP = 12, 13, 17, 7, 9
_SEIZE, _INTERRUPT, _GETREGSET, _SETREGSET = 0x4206, 0x4207, 0x4204, 0x4205
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_XSTATE = 0x202
_WALL = 0x40000000
_EVENT_STOP = 128
_JOB_CONTROL = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_MOST_XSTATE_BYTES = 1 << 16
_SYNCHRONOUS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
_REGISTER_NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp"
    " ss fs_base gs_base ds es fs gs"
)
_NO_SYSTEM_CALL = (1 << 64) - 1
_WORD = (1 << 64) - 1


class ThreadLost(Exception):
    """The thread could not be stopped, or is gone; its text says which."""


class NotPermitted(ThreadLost):
    """The system does not let this user trace it."""


class CallTookTooLong(ThreadLost):
    """The call did not come back in time; the thread goes on as if it had not been made."""


class Registers(ctypes.Structure):
    """``user_regs_struct`` of sys/user.h for x86-64."""

    _fields_ = [(name, ctypes.c_uint64) for name in _REGISTER_NAMES.split()]


class _Span(ctypes.Structure):
    """``iovec``."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def is_supported() -> bool:
    """True where this module knows the machine: Linux on x86-64."""
    is_64_bit = ctypes.sizeof(ctypes.c_void_p) == WORD_BYTES
    return platform.system() == "Linux" and platform.machine() == "x86_64" and is_64_bit


class StoppedThread:
    """A thread that stands still from ``stop`` to ``close``."""

    def __init__(self, pid: int) -> None:
        """Begins to trace the main thread of a process; it runs on.

        Raises:
            NotPermitted: this user may not.
            ThreadLost: there is no such process.
        """
        self._pid = pid
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.restype = ctypes.c_long
        self._libc.ptrace.argtypes = [
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._is_stopped = False
        self._kept: tuple[Registers, Any, Any] | None = None
        try:
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        except PermissionError as error:
            raise NotPermitted(str(error)) from None
        except OSError as error:
            raise ThreadLost(str(error)) from None
        try:
            self._ptrace(_SEIZE)
        except BaseException:
            os.close(self._memory)
            raise

    def stop(self) -> Registers:
        """Stops the thread; its registers.

        Raises:
            ThreadLost: it does not stop: the kernel works for it without a break.
        """
        self._ptrace(_INTERRUPT)
        if self._wait_for_stop(_STOPS_WITHIN_S, delivers_signals=True) is None:
            raise ThreadLost("its main thread waits in the kernel and cannot be stopped")
        return self.registers()

    def go_on(self) -> None:
        """Lets the thread run as before."""
        self._restore()
        self._resume(_CONT)

    def registers(self) -> Registers:
        """The registers now."""
        registers = Registers()
        self._ptrace(_GETREGS, 0, ctypes.addressof(registers))
        return registers

    def read(self, address: int, size: int) -> bytes:
        """Bytes of its memory, fewer where it ends.

        Raises:
            OSError: nothing is there.
        """
        return os.pread(self._memory, size, address)

    def write(self, address: int, data: bytes) -> None:
        """Puts bytes into its memory."""
        if os.pwrite(self._memory, data, address) != len(data):
            raise ThreadLost("its memory could not be written")

    def system_call(self, instruction: int, number: int, *arguments: int) -> int:
        """The answer of a system call, made by the stopped thread and by nothing but the kernel.

        Args:
            instruction: the address of a ``syscall`` instruction.
        """
        registers = self._prepared()
        registers.rip, registers.rax, registers.orig_rax = instruction, number, _NO_SYSTEM_CALL
        names = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
        for name, argument in zip(names, arguments, strict=False):
            setattr(registers, name, argument & _WORD)
        self._ptrace(_SETREGS, 0, ctypes.addressof(registers))
        self._resume(_SINGLESTEP)
        if self._wait_for_stop(_STOPS_WITHIN_S) is None:
            self._interrupt_call()
            raise CallTookTooLong("a system call did not come back")
        return int(ctypes.c_int64(self.registers().rax).value)

    def call(self, function: int, *arguments: int, seconds: float) -> int:
        """The answer (an ``int``) of a function that the thread runs now.

        Args:
            seconds: the longest that the thread may be in it.

        Raises:
            CallTookTooLong: it was not back by then, and will never have been called.
        """
        registers = self._prepared()
        # The ABI wants (rsp + 8) % 16 == 0 at a function's first instruction.
        registers.rsp = self.scratch_address - WORD_BYTES
        self.write(registers.rsp, bytes(WORD_BYTES))  # it returns to address 0, and stops there
        registers.rip, registers.rax, registers.orig_rax = function, 0, _NO_SYSTEM_CALL
        registers.eflags &= ~_TRAP_AND_DIRECTION
        for name, argument in zip(("rdi", "rsi", "rdx", "rcx"), arguments, strict=False):
            setattr(registers, name, argument & _WORD)
        self._ptrace(_SETREGS, 0, ctypes.addressof(registers))
        self._resume(_CONT)
        stop_signal = self._wait_for_stop(seconds)
        if stop_signal is None:
            self._interrupt_call()
            raise CallTookTooLong("Python's queue of pending calls is in use")
        after = self.registers()
        if stop_signal != signal.SIGSEGV or after.rip != 0:
            raise ThreadLost(f"the call ended with signal {stop_signal}")
        return ctypes.c_int32(after.rax & 0xFFFFFFFF).value

    @property
    def scratch_address(self) -> int:
        """Where a call may write a word: on its stack, above what it uses itself."""
        registers = self._kept[0] if self._kept is not None else self.registers()
        return int(((registers.rsp - _RED_ZONE_BYTES) & ~0xF) - 2 * WORD_BYTES)

    def close(self) -> None:
        """Gives the thread back as it was, and lets go of it."""
        with contextlib.suppress(ThreadLost):
            if not self._is_stopped:
                self.stop()
            self._restore()
            self._resume(_DETACH)
        os.close(self._memory)

    def _prepared(self) -> Registers:
        """Registers to change, once what the thread was stopped with is kept and its signals
        wait.
        """
        if self._kept is None:
            vectors = self._vector_registers()
            mask = ctypes.c_uint64()
            self._ptrace(_GETSIGMASK, WORD_BYTES, ctypes.addressof(mask))
            self._kept = self.registers(), vectors, mask
            # Not the C library's own: a thread that is started meanwhile would keep them blocked for
            # good, and setuid() would wait for it.
            blocked = ctypes.c_uint64(mask.value)
            for number in signal.valid_signals().difference(_SYNCHRONOUS):
                blocked.value |= 1 << (number - 1)
            self._ptrace(_SETSIGMASK, WORD_BYTES, ctypes.addressof(blocked))
        registers = Registers()
        ctypes.pointer(registers)[0] = self._kept[0]
        return registers

    def _restore(self) -> None:
        if self._kept is None:
            return
        registers, vectors, mask = self._kept
        span = _Span(ctypes.addressof(vectors), len(vectors))
        self._ptrace(_SETREGSET, _XSTATE, ctypes.addressof(span))
        self._ptrace(_SETREGS, 0, ctypes.addressof(registers))
        self._ptrace(_SETSIGMASK, WORD_BYTES, ctypes.addressof(mask))
        self._kept = None

    def _vector_registers(self) -> Any:
        room = (ctypes.c_char * _MOST_XSTATE_BYTES)()
        span = _Span(ctypes.addressof(room), len(room))
        self._ptrace(_GETREGSET, _XSTATE, ctypes.addressof(span))
        return (ctypes.c_char * span.length).from_buffer_copy(room)

    def _interrupt_call(self) -> None:
        """Stops the thread inside of a call that does not end; ``close`` then undoes the call."""
        self._ptrace(_INTERRUPT)
        if self._wait_for_stop(_STOPS_WITHIN_S) is None:
            raise ThreadLost("its main thread cannot be stopped again")

    def _resume(self, request: int) -> None:
        self._ptrace(request)
        self._is_stopped = False

    def _wait_for_stop(self, seconds: float, *, delivers_signals: bool = False) -> int | None:
        """The signal that the thread has stopped with; None where it has not in that time.

        Args:
            delivers_signals: whether the program gets signals that come before the stop.
        """
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG | _WALL)
            if pid == self._pid and not os.WIFSTOPPED(status):
                raise ThreadLost("the process has ended")
            if pid == self._pid:
                is_own_stop = status >> 16 == _EVENT_STOP
                if is_own_stop and os.WSTOPSIG(status) in _JOB_CONTROL:
                    self._is_stopped = True
                    raise ThreadLost("it has been stopped by a signal: kill -CONT continues it")
                if is_own_stop or not delivers_signals:
                    self._is_stopped = True
                    return os.WSTOPSIG(status)
                self._ptrace(_CONT, 0, os.WSTOPSIG(status))
                continue
            if time.monotonic() > deadline:
                return None
            time.sleep(_PAUSE_BETWEEN_LOOKS_S)

    def _ptrace(self, request: int, address: int = 0, data: int = 0) -> None:
        ctypes.set_errno(0)
        if self._libc.ptrace(request, self._pid, address, data) != -1:
            return
        number = ctypes.get_errno()
        if number == errno.EPERM:
            raise NotPermitted(os.strerror(number))
        raise ThreadLost("the process has ended" if number == errno.ESRCH else os.strerror(number))
