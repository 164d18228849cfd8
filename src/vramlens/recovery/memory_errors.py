"""Failures: which exceptions are out of memory, and how to let go of what they hold."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from vramlens.capture.process.own_thread import started_without_signals
from vramlens.errors import UsageError
from vramlens.units import parse_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

OUT_OF_MEMORY = "out of memory"
STICKY = "sticky"
OTHER = "other"

_OUT_OF_MEMORY_TEXT = re.compile(
    r"CUDA out of memory|HIP out of memory|MPS backend out of memory|XPU out of memory"
    r"|(?:CUDA|HIP)(?: runtime| driver)? error: out of memory"
    r"|(?:cuda|hip)ErrorMemoryAllocation|(?:CUDA|HIP)_ERROR_OUT_OF_MEMORY"
    r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|ROCBLAS|HIPBLAS)_STATUS_(?:INTERNAL_ERROR_HOST_)?ALLOC_FAILED"
    r"|CUFFT_ALLOC_FAILED|CUDNN_STATUS_NOT_SUPPORTED.*memory"
    r"|DefaultCPUAllocator: (?:can't|not enough)|NCCL.*out of memory"
    r"|Failed to CUDA (?:c|m|host)alloc|Triton Error \[(?:CUDA|HIP)\]: out of memory"
    r"|NVML_SUCCESS == .*INTERNAL ASSERT FAILED at .*CUDACachingAllocator",  # while it words an out-of-memory error
    re.IGNORECASE,
)
_STICKY_TEXT = re.compile(
    r"illegal memory access|device-side assert|misaligned address|unspecified launch failure|illegal instruction"
    r"|uncorrectable ECC|hardware stack error|(?:CUDA|HIP) error: an? |cudaErrorLaunchFailure|Xid",
    re.IGNORECASE,
)
_TRIED = re.compile(r"Tried to allocate ([0-9.]+ (?:bytes?|[KMGT]iB))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MemoryFailure:
    """An out-of-memory error as words and numbers: it holds neither the exception nor a frame.

    Attributes:
        text: the first line of the exception.
        tried_bytes: what the failed request asked for; None where the text does not say.
        phase: forward, backward, step, or None where unknown.
    """

    text: str
    tried_bytes: int | None
    phase: str | None = None


def kind_of(error: BaseException) -> str:
    """``out of memory``, ``sticky`` (the device's context is lost: nothing works any more) or
    ``other``.

    Only the exception itself is judged, not what it was raised from: an error of the program's own
    while it handled one is its own.
    """
    if not isinstance(error, Exception):
        return OTHER
    text = str(error)
    if _STICKY_TEXT.search(text):
        return STICKY
    typed = tuple(
        kind
        for kind in (
            getattr(torch, "OutOfMemoryError", None),
            getattr(torch.cuda, "OutOfMemoryError", None),
        )
        if isinstance(kind, type)
    )
    if typed and isinstance(error, typed):
        return OUT_OF_MEMORY
    # Libraries raise RuntimeError, torch.AcceleratorError and their own types with PyTorch's words.
    if isinstance(error, (RuntimeError, MemoryError)) and _OUT_OF_MEMORY_TEXT.search(text):
        return OUT_OF_MEMORY
    return OTHER


def failure_of(error: BaseException, phase: str | None = None) -> MemoryFailure:
    """What an exception says, in words."""
    text = str(error).strip().partition("\n")[0]
    match = _TRIED.search(text)
    tried = None
    if match:
        try:
            tried = parse_size(match[1])
        except UsageError:
            tried = None
    return MemoryFailure(text[:2000], tried, phase)


def let_go(error: BaseException) -> None:
    """Clears the frames of an exception and of all that it came from, and takes the tracebacks
    away.

    The frames of a failed attempt hold its activations. Whoever keeps the exception (a logger,
    ``sys.last_exc``, a future) keeps them. Clearing a frame empties its variables, but not those
    that an inner function shares with it (``Module._call_impl`` has such); so the traceback goes as
    well, and stays to be read as text in ``__vramlens_traceback__``.
    """
    waiting: list[BaseException | None] = [error]
    visited: set[int] = set()
    while waiting:
        linked = waiting.pop()
        if linked is None or id(linked) in visited:
            continue
        visited.add(id(linked))
        if linked.__traceback__ is not None:
            with contextlib.suppress(Exception):
                linked.__vramlens_traceback__ = "".join(traceback.format_tb(linked.__traceback__))  # type: ignore[attr-defined]
            traceback.clear_frames(linked.__traceback__)
            linked.__traceback__ = None
        waiting += [linked.__cause__, linked.__context__]
        waiting += getattr(linked, "exceptions", ())  # of a group
    with contextlib.suppress(Exception):
        _empty_the_backwards_queue()


class OutOfMemoryCaught:
    """Suppresses an out-of-memory error, and has it let go of what it held.

    Attributes:
        happened: whether there was one.
        text: what it said.
    """

    def __init__(self) -> None:
        self.happened, self.text = False, ""

    def __enter__(self) -> OutOfMemoryCaught:
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if error is None or kind_of(error) != OUT_OF_MEMORY:
            return False
        self.happened, self.text = True, failure_of(error).text
        let_go(error)
        return True


def _empty_the_backwards_queue() -> None:
    """Has PyTorch let go of the branches that a failed backward had not begun yet.

    On the CPU they wait in a queue of this thread, with their part of the graph, until a later
    backward comes to them (``torch/csrc/autograd/engine.cpp``, ``ReadyQueue``; pytorch#82218).
    Nodes that were made last go first, by a number
    that each thread counts for itself: a node from a new thread is the oldest, and has all others
        go before it.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    old_nodes: list[torch.Tensor] = []

    def make() -> None:
        old_nodes.append(torch.zeros((), requires_grad=True, device="cpu") * 1)

    maker = threading.Thread(target=make)
    started_without_signals(maker.start)
    maker.join()
    with _disable_current_modes():
        old_nodes[0].backward()  # type: ignore[no-untyped-call]


def let_go_of_the_last() -> None:
    """The same for the exception that an interactive Python keeps to be inspected."""
    for name in ("last_exc", "last_value"):
        last_error = getattr(sys, name, None)
        if isinstance(last_error, BaseException) and kind_of(last_error) == OUT_OF_MEMORY:
            let_go(last_error)
