"""Out of memory: the recording is written while the request fails, the verdict travels with the
exception.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vramlens.capture.failure_facts.batch_tables import batch_numbers
from vramlens.capture.failure_facts.failed_expression import failed_expression, failed_node
from vramlens.capture.failure_facts.idle_checkpointing import idle_checkpointing
from vramlens.capture.failure_facts.ignored_labels import ignored_labels
from vramlens.capture.failure_facts.padded_batch import padded_batch
from vramlens.capture.failure_facts.row_lengths import row_lengths
from vramlens.capture.torch_api import Allocator
from vramlens.capture.warn import harmless

VerdictOf = Callable[[str, str], str]
"""Gives the text for the exception, from a recording's path and the exception's own text."""

RECORDED = "vramlens: recording of this failure:"
_FAILURES_IN_FULL = 8
_SECONDS_BETWEEN = 60.0  # after that many: some programs try batch after batch


@dataclass
class RefusedRequest:
    """A request that failed.

    Attributes:
        device, requested_bytes, device_free_bytes: as PyTorch told the observer.
        expression: of the program that asked; None where nobody knows.
        node: the operation whose gradient was being computed; None outside of a backward pass.
        while_handling: whether this thread is handling another such error.
        thread: the number of the thread that asked.
        padded_batch: how much of the batch is padding; None where nobody knows, or it is not recorded.
        ignored_labels: how many of its positions have no label, likewise.
        row_lengths: how long its rows are, where most of it is padding, likewise.
        idle_checkpointing: the class of a layer in eval mode that has gradient checkpointing; None without one.
        path: the recording that was written; None where that failed or was left out.
        is_another_try: whether a library made it because one before it had failed.
        takes_place_of: the recording of the one before it; None where there is none.
    """

    device: int
    requested_bytes: int
    device_free_bytes: int
    expression: str | None = None
    node: str | None = None
    while_handling: bool = False
    thread: int = field(default_factory=threading.get_ident)
    padded_batch: dict[str, int] | None = None
    ignored_labels: dict[str, int] | None = None
    row_lengths: list[dict[str, int]] = field(default_factory=list)
    idle_checkpointing: str | None = None
    path: str | None = None
    is_another_try: bool = False
    takes_place_of: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For the recording's meta data."""
        return {
            "device": self.device,
            "requested_bytes": self.requested_bytes,
            "device_free_bytes": self.device_free_bytes,
            "expression": self.expression,
            "node": self.node,
            "while_handling": self.while_handling,
            "padded_batch": self.padded_batch,
            "ignored_labels": self.ignored_labels,
            "row_lengths": self.row_lengths,
            "idle_checkpointing": self.idle_checkpointing,
        }


class OutOfMemoryWatch:
    """Hears of failed requests, writes a recording for each, and gives the exception that
    follows its note.

    A library may ask for less where a request fails, as cuDNN does with one algorithm after the
    other: a request that fails where no exception followed the one before. It is recorded once it
    has become an exception, in place of the one that was survived.
    """

    def __init__(
        self, write: Callable[[RefusedRequest], str | None], verdict: VerdictOf | None
    ) -> None:
        self._write, self._verdict = write, verdict
        self._device_type = ""
        self._latest: RefusedRequest | None = None
        self._hears_exceptions = False
        self._count = 0
        self._last_written = 0.0
        self.enabled = True

    def attach(self, gpu: Allocator) -> None:
        """Begins to watch."""
        self._device_type = gpu.kind
        gpu.attach_observer(self._failed)
        error = gpu.out_of_memory_error()
        if error is not None:
            self._annotate(error)
            self._hears_exceptions = True

    @harmless("recording an out-of-memory error")
    def _failed(self, device: int, requested: int, _total: int, free: int) -> None:
        if not self.enabled:
            return
        failure = RefusedRequest(
            device=int(device),
            requested_bytes=int(requested),
            device_free_bytes=int(free),
            expression=failed_expression(),
            node=failed_node(),
            while_handling=_is_handling_failure(),
        )
        before, self._latest = self._latest, failure
        if self._hears_exceptions and before is not None and before.thread == failure.thread:
            failure.is_another_try = True
            failure.takes_place_of = before.path or before.takes_place_of
        else:
            self._record(failure)

    def _record(self, failure: RefusedRequest) -> None:
        self._count += 1
        if (
            self._count <= _FAILURES_IN_FULL
            or time.monotonic() - self._last_written > _SECONDS_BETWEEN
        ):
            # Before the snapshot of a recording: that is millions of objects more to look through.
            batch = batch_numbers(self._device_type)
            failure.padded_batch = padded_batch(batch.tables)
            failure.ignored_labels = ignored_labels(batch.tables)
            failure.row_lengths = row_lengths(batch)
            failure.idle_checkpointing = idle_checkpointing()
            failure.path = self._write(failure)
            self._last_written = time.monotonic()

    def _annotate(self, error: type[BaseException]) -> None:
        """Has every new exception of this type take the latest failure's verdict with it."""
        before = error.__init__

        def initialise(exception: BaseException, *args: Any) -> None:
            before(exception, *args)
            self._add_note(exception)

        patched: Any = error
        patched.__init__ = initialise

    @harmless("explaining an out-of-memory error")
    def _add_note(self, exception: BaseException) -> None:
        failure = self._latest
        if failure is None or not self.enabled:
            return
        if _as_pytorch_says(failure.requested_bytes) not in str(exception):
            return  # the program raised it itself, or another allocator did
        self._latest = None
        if failure.is_another_try:
            self._record(failure)
        if failure.path is None:
            return
        exception.__vramlens_path__ = failure.path  # type: ignore[attr-defined]
        lines = [f"{RECORDED} {failure.path}"]
        if self._verdict is not None:
            try:
                lines.insert(0, self._verdict(failure.path, str(exception)).strip("\n"))
            except Exception as error:
                lines.append(
                    f"vramlens: the failure could not be explained here ({error}); run vramlens "
                    f"explain {failure.path}"
                )
        note = "\n".join(lines)
        if hasattr(exception, "add_note"):
            exception.add_note(note)
        else:  # Python 3.10 has no notes
            exception.__vramlens_note__ = note  # type: ignore[attr-defined]
            _print_notes_of_uncaught()


def _is_handling_failure() -> bool:
    """Whether this thread is in an except block of an out-of-memory error."""
    return type(sys.exc_info()[1]).__name__ == "OutOfMemoryError"


def _as_pytorch_says(size: int) -> str:
    """A size as the error's text gives it (``format_size`` in
    c10/cuda/CUDACachingAllocator.cpp).
    """
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if 1024 < size <= factor * 1024:
            return f"{size / factor:.2f} {unit}"
    return f"{size} bytes" if size <= 1024 else f"{size / (1 << 30):.2f} GiB"


def _print_notes_of_uncaught() -> None:
    """Has notes printed before the traceback of an exception that nobody catches."""
    hook = sys.excepthook
    if getattr(hook, "prints_vramlens_notes", False):
        return

    def print_first(kind: type[BaseException], exception: BaseException, trace: Any) -> None:
        note = getattr(exception, "__vramlens_note__", None)
        if note is not None and sys.stderr is not None:
            sys.stderr.write(f"{note}\n")
        hook(kind, exception, trace)

    print_first.prints_vramlens_notes = True  # type: ignore[attr-defined]
    sys.excepthook = print_first
