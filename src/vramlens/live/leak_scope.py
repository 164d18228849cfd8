"""``with no_leaks():`` for tests, and letting go of what exceptions hold."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator, closing, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from vramlens.argument_types import number_given, takes
from vramlens.capture.process.undisturbed import undisturbed
from vramlens.errors import VramlensError
from vramlens.foreign_text import text_of
from vramlens.ground.program_errors import own_errors
from vramlens.live.heap.objects import frame_variables, is_kind, running_frames
from vramlens.live.heap.roots import Root, module_roots
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage, loaded
from vramlens.live.leaks.leak_report import LeakReport
from vramlens.live.watch import LeakWatch
from vramlens.schema import SCHEMA
from vramlens.units import counted, format_size

_LEAST_STEPS = 5
"""With fewer a report says that it cannot tell."""


class LeakError(VramlensError, AssertionError):
    """Something grew; the text names the owner. ``report`` is the whole report."""

    def __init__(self, text: str, report: LeakReport) -> None:
        super().__init__(text)
        self.report = report


class _NoLeaks(ContextDecorator):
    """A block that raises at its end if something grew in it."""

    def __init__(self, steps: int) -> None:
        self._wanted = max(steps, 1)
        self._watch: LeakWatch | None = None
        self._stop: Any = None

    def _recreate_cm(self) -> _NoLeaks:  # as a decorator: a watch for each call
        return _NoLeaks(self._wanted)

    def __enter__(self) -> LeakWatch:
        watch = self._watch = LeakWatch()
        self._stop = _hear_steps(watch)
        return watch

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        __tracebackhide__ = True  # pytest then shows the block, not this
        watch, self._watch = self._watch, None
        self._stop()
        if kind is not None or watch is None:
            return
        report = watch.report()
        if report.found or report.unexplained is not None:
            raise LeakError(str(report), report)
        if report.steps < self._wanted:
            raise LeakError(
                f"no_leaks: {counted(report.steps, 'step')} ended in the block, but "
                f"{self._wanted} are needed: call step() on the block's object at the end of "
                "each step",
                report,
            )


@takes(steps=number_given)
def no_leaks(steps: int = _LEAST_STEPS) -> _NoLeaks:
    """Raises at the block's end if something grew in it: for tests.

    A step ends with ``step()`` on what the block gets, or with ``vramlens.step()``.

        with vramlens.no_leaks(steps=5) as watch:
            for batch in batches:
                train_step(batch)
                watch.step()

    Args:
        steps: how many steps must have ended at least, or the block has proven nothing.

    Raises:
        LeakError: a leak is proven or likely, or fewer steps ended.
    """
    return _NoLeaks(steps)


def _hear_steps(watch: LeakWatch) -> Any:
    """Has ``vramlens.step()`` count for a watch; gives what ends that."""
    from vramlens.capture.recording.step_marks import manual_step_listeners

    manual_step_listeners.append(watch.step)

    def stop() -> None:
        with suppress(ValueError):
            manual_step_listeners.remove(watch.step)

    return stop


@dataclass(frozen=True, slots=True)
class Released:
    """What letting go of an exception freed.

    Attributes:
        exceptions, frames: how many were in the chain.
        bytes: of storages that are gone.
        storages: how many.
        still_held: why more is not gone, one sentence each.
    """

    exceptions: int
    frames: int
    bytes: int
    storages: int
    still_held: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As data."""
        return {
            "schema": SCHEMA,
            "exceptions": self.exceptions,
            "frames": self.frames,
            "bytes": self.bytes,
            "storages": self.storages,
            "still_held": list(self.still_held),
        }

    def __str__(self) -> str:
        first = (
            f"Released {format_size(self.bytes)}: {counted(self.storages, 'storage')} that"
            f" {counted(self.frames, 'frame')} of {counted(self.exceptions, 'exception')} held."
        )
        return text_of((first, *self.still_held))


def release(error: BaseException | None = None) -> Released:
    """Lets go of everything that an exception's traceback holds: the variables of its frames, and
    its causes' frames.

    The exception itself stays what it is, without its traceback. Functions that still run keep
    their variables. What the frames lead to is searched once, to say what was freed; where nothing
    was, Python's collector runs.

    Args:
        error: the exception; by default the last one that nobody caught (``sys.last_value``,
            notebooks).
    """
    chain = _chain(error if error is not None else _last())
    running_ids = set(map(id, running_frames()))
    frame_ids = list(map(id, _frames(chain)))
    running = sum(frame in running_ids for frame in frame_ids)
    storages = _storages_below(chain, running_ids)
    for exception in chain:
        traceback.clear_frames(exception.__traceback__)
        BaseException.with_traceback(exception, None)
    if error is None or any(exception is _last() for exception in chain):
        _forget_last()
    count = len(chain)
    del chain, error
    if storages and not any(alive.expired() for alive in storages.values()):
        gc.collect()  # what the frames held may hold itself in a circle
    sizes = [storage.size_bytes for storage, alive in storages.items() if alive.expired()]
    return Released(
        exceptions=count,
        frames=len(frame_ids),
        bytes=sum(sizes),
        storages=len(sizes),
        still_held=_still_held(running),
    )


def _still_held(running: int) -> tuple[str, ...]:
    """Why not all is gone, where some of the frames run on."""
    if not running:
        return ()
    return (
        f"{counted(running, 'frame')} of them still runs: its variables are freed when it "
        "returns, or with del",
    )


def _frames(exceptions: Iterable[BaseException]) -> Iterator[FrameType]:
    """Yields the frames that exceptions came through."""
    for exception in exceptions:
        for frame, _ in traceback.walk_tb(exception.__traceback__):
            yield frame


def _last() -> BaseException | None:
    exception = sys.__dict__.get("last_exc") or sys.__dict__.get("last_value")
    return exception if is_kind(exception, BaseException) else None


def _forget_last() -> None:
    for name in ("last_exc", "last_value", "last_traceback"):
        sys.__dict__.pop(name, None)


def _chain(error: BaseException | None) -> list[BaseException]:
    """An exception, its causes and contexts, and what a group holds."""
    chain: list[BaseException] = []
    waiting = [error]
    while waiting:
        exception = waiting.pop()
        if exception is None or any(exception is earlier for earlier in chain):
            continue
        chain.append(exception)
        waiting += [exception.__cause__, exception.__context__]
        inner = getattr(BaseException, "exceptions", None) or getattr(
            type(exception), "exceptions", None
        )
        if inner is not None and hasattr(inner, "__get__"):
            with own_errors():
                waiting += list(inner.__get__(exception))
    return chain


def _storages_below(
    exceptions: Iterable[BaseException], running_ids: set[int]
) -> dict[Storage, Any]:
    """The storages that the frames of exceptions lead to, also by way of graphs, each with a
    reference that does not keep it; without those of frames that still run.
    """
    torch = loaded()
    frames = [frame for frame in _frames(exceptions) if id(frame) not in running_ids]
    if torch is None or not frames:
        return {}
    from torch.multiprocessing.reductions import StorageWeakRef

    weak_reference: Any = StorageWeakRef  # it has no types
    search = Search(torch)
    search.seen.update(id(module.value) for module in module_roots())
    roots = [
        Root("variable", name, value, 0)
        for frame in frames
        for name, value in frame_variables(frame).items()
    ]
    with (
        undisturbed(),
        closing(search.run(roots, tiers=(0,))),
        torch.torch._C.DisableTorchFunction(),
    ):
        holders = ((storage, search.order[place]) for storage, place in search.storages.items())
        return {
            storage: weak_reference(holder.untyped_storage() if torch.is_tensor(holder) else holder)
            for storage, holder in holders
        }
