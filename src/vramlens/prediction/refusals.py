"""What a predicted program may not do: one line that says why, and nothing invented."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vramlens.errors import InputError

_WORKERS = ("_worker_loop", "worker", "_process_worker", "_run_server")
"""Of DataLoader, multiprocessing.Pool, ProcessPoolExecutor and managers: they prepare data."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate")


class Refused(InputError):
    """A program that does what cannot be predicted; the text says what."""


def failure_words(error: Exception) -> str:
    """Why a program failed while it was predicted, in one line, with the remedy where it is known."""
    text = one_line_of(str(error))
    words = f"{type(error).__name__}{': ' if text else ''}{text}"
    if type(error).__name__ == "FakeTensorDeviceMismatchError":
        return f"{words.rstrip('.!')}. Move the batch to the model's device: batch.to('cuda')"
    return words


def one_line_of(text: str) -> str:
    """The first line of what a program says, shortened where it is long."""
    return text.strip().partition("\n")[0][:300]


class _TooLong(BaseException):
    """Time is up; no program catches it by catching every Exception."""


def put_refusals() -> None:
    """Makes this process refuse to start processes of its own and to build CUDA's code; for good.

    Processes that load or prepare data run as they always do.
    """
    import torch.utils.cpp_extension as cpp_extension

    process_class: Any = multiprocessing.process.BaseProcess
    start = process_class.start

    def start_worker(process: Any) -> None:
        target = getattr(process, "_target", None)
        if target is not None and getattr(target, "__name__", "") not in _WORKERS:
            raise Refused(
                f"the script starts a process of its own ({_name_of(target)}): what it asks of a"
                " GPU is not seen"
            )
        start(process)

    def refuse_extension(*args: Any, **options: Any) -> None:
        raise Refused("the script builds an extension in CUDA, whose memory nobody knows")

    for name in ("load", "load_inline"):
        setattr(cpp_extension, name, refuse_extension)
    process_class.start = start_worker
    sys.addaudithook(_refuse_processes)


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises where the script forks by itself, or starts another program of PyTorch's.

    Raises:
        Refused: it does.
    """
    if event == "os.fork" and not _forks_for_multiprocessing():
        raise Refused("the script forks by itself: what the child asks of a GPU is not seen")
    if event == "subprocess.Popen":
        program = _python_program(arguments[1])
        if program is not None:
            raise Refused(
                f"the script starts a program of its own ({program}): what that asks of a GPU is"
                " not seen"
            )


def _forks_for_multiprocessing() -> bool:
    frame = sys._getframe(2)
    return frame.f_globals.get("__name__") == "multiprocessing.popen_fork"


def _python_program(command: Any) -> str | None:
    """The launcher or the Python file that a command runs; None for other programs and for files
    of installed packages.
    """
    if not isinstance(command, Sequence) or isinstance(command, (str, bytes)):
        return None
    words = [os.fsdecode(word) for word in command if isinstance(word, (str, bytes, os.PathLike))]
    if not words:
        return None
    program = Path(words[0]).name
    if program in _LAUNCHERS:
        return program
    if not program.startswith("python"):
        return None
    installed = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib"))
    for word in words[1:]:
        is_own_file = word.endswith(".py") and not os.path.abspath(word).startswith(installed)
        if is_own_file or word in _LAUNCHER_MODULES:
            return word
    return None


def _name_of(target: Any) -> str:
    return str(getattr(target, "__qualname__", type(target).__name__))


@contextlib.contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Ends what runs inside after some seconds.

    Raises:
        Refused: it did not end by itself.
    """
    if (
        not hasattr(signal, "setitimer")
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def give_up(*args: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TooLong:
        raise Refused(
            f"the script did not end within {seconds} s: --steps N ends it after N optimizer steps"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
