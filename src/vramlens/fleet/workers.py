"""Workers: a function run for each rank, on processes of this machine or on a Dask cluster, with
the same results.

What one rank raises is that rank's; a worker that dies costs nothing but the time to do its ranks
again.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar, cast

from vramlens.api import Progress
from vramlens.errors import UsageError, VramlensError


class FutureLike(Protocol):
    """What an executor hands out for a call."""

    def result(self) -> Any:
        """What the call gave; raises what it raised."""


class ExecutorLike(Protocol):
    """Whatever runs a function elsewhere as ``concurrent.futures`` does: a pool of processes or
    threads, Dask's client or its executor.
    """

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> FutureLike:
        """Hands a call over."""


_FEWEST_IN_PARALLEL = 8
"""Starting other processes takes longer than doing fewer."""
_TRIES = 3
_PATIENCE_S = 5
_DASK = "dask://"
_DASK_DEATH = "KilledWorker"
# M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h.
_MALLOC = {-8: 1, -3: 32 << 20, -1: 1 << 30}
_Key = TypeVar("_Key", bound=int)
_Result = TypeVar("_Result")


@contextmanager
def workers(where: str | ExecutorLike | None) -> Iterator[ExecutorLike | None]:
    """Yields what runs the map: None is here.

    Args:
        where: a number of processes, ``dask://HOST:PORT`` of a Dask scheduler, an executor, or None
            for as many processes as there are cores.

    Raises:
        UsageError: it is neither, or dask.distributed is not installed, or nobody answers there.
    """
    if where is not None and not isinstance(where, str):
        yield where
        return
    if where is None or where.isdecimal():
        count = (os.cpu_count() or 1) if where is None else int(where)
        if count < 1:
            raise UsageError("--workers: must be at least 1")
        with nullcontext() if count == 1 else _processes(count) as pool:
            yield pool
        return
    if not where.startswith(_DASK):
        raise UsageError(f"--workers {where}: use a number of processes or dask://HOST:PORT")
    with closing(_dask_client(where)) as client:
        yield client.get_executor(pure=False)


def _dask_client(where: str) -> Any:
    """A client of the Dask scheduler there.

    Raises:
        UsageError: dask.distributed is not installed, or nobody answers.
    """
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "--workers dask://… needs dask.distributed: pip install 'vramlens[cluster]'"
        ) from None
    address = f"tcp://{where.removeprefix(_DASK)}"
    try:
        return cast(Any, distributed).Client(address, timeout=_PATIENCE_S, set_as_default=False)
    except OSError as error:
        raise UsageError(f"--workers {where}: no Dask scheduler answers there ({error})") from None


def _processes(count: int) -> ProcessPoolExecutor:
    # Not forked: the caller may have threads.
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_prepare)


def _prepare() -> None:
    """Prepares a worker for its work."""
    _keep_memory()
    Thread(target=_end_with_parent, name="vramlens-parent", daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when its parent has gone: killed, it tells nobody, and a worker would wait
    for work for ever.
    """
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _keep_memory() -> None:
    """Has glibc keep what was freed for the next rank: asking for it anew takes a fifth of the
    processor's time.
    """
    with suppress(Exception):  # another C library
        change = ctypes.CDLL(None).mallopt
        for setting, bytes_or_count in _MALLOC.items():
            change(setting, bytes_or_count)


def for_each(
    tasks: Mapping[_Key, tuple[object, ...]],
    function: Callable[..., _Result],
    executor: ExecutorLike | None = None,
    progress: Progress | None = None,
) -> tuple[dict[_Key, _Result], dict[_Key, str]]:
    """The results by rank, and by rank why there is none.

    Args:
        tasks: the arguments, by rank.
        function: what to call; a function of a module, so that a worker finds it.
        executor: where; None is here.
        progress: called with the share that is done.
    """
    outcomes: _Outcomes[_Key, _Result] = _Outcomes(len(tasks), progress)
    if executor is None or len(tasks) < 2:
        for rank, arguments in tasks.items():
            outcomes.settle(rank, partial(function, *arguments))
        return outcomes.done, outcomes.failed
    for attempt in range(_TRIES):
        unsettled = outcomes.unsettled(tasks)
        if not unsettled:
            break
        with _fresh(executor, attempt) as pool:
            waiting: dict[FutureLike, _Key] = {}
            # A worker may die while the last of many ranks are still handed out.
            with suppress(BrokenExecutor):
                for rank in unsettled:
                    waiting[pool.submit(function, *tasks[rank])] = rank
            for future in _as_completed(waiting):
                outcomes.settle(waiting[future], future.result)
    for rank in outcomes.unsettled(tasks):
        outcomes.failed[rank] = "its worker died, three times"
        outcomes.tell_progress()
    return outcomes.done, outcomes.failed


def _as_completed(futures: Iterable[FutureLike]) -> Iterator[FutureLike]:
    """Yields futures as they are done; those of other libraries in the order of their ranks."""
    waiting = list(futures)
    pool_futures = [future for future in waiting if isinstance(future, Future)]
    yield from as_completed(pool_futures) if len(pool_futures) == len(waiting) else waiting


@contextmanager
def _fresh(executor: ExecutorLike, attempt: int) -> Iterator[ExecutorLike]:
    """The executor; a pool of processes of which one died takes no more work, so another stands
    in for it.
    """
    if attempt and isinstance(executor, ProcessPoolExecutor):
        with _processes(os.cpu_count() or 1) as pool:
            yield pool
    else:
        yield executor


class _Outcomes(Generic[_Key, _Result]):
    """The results by rank, and by rank why there is none."""

    def __init__(self, count: int, progress: Progress | None) -> None:
        self._count, self._progress = count, progress
        self.done: dict[_Key, _Result] = {}
        self.failed: dict[_Key, str] = {}

    def unsettled(self, ranks: Iterable[_Key]) -> list[_Key]:
        """The ranks that have neither result nor reason."""
        return [rank for rank in ranks if rank not in self.done and rank not in self.failed]

    def settle(self, rank: _Key, call: Callable[[], _Result]) -> None:
        """Notes a rank's result, or why there is none; nothing where its worker died."""
        try:
            self.done[rank] = call()
        except VramlensError as error:
            self.failed[rank] = str(error)
        except Exception as error:  # whatever a worker raises is its rank's: the others go on
            is_of_worker = isinstance(error, BrokenExecutor) or type(error).__name__ == _DASK_DEATH
            if not is_of_worker:
                reason = next(iter(str(error).splitlines()), "no reason given")
                self.failed[rank] = f"{type(error).__name__}: {reason}"
        self.tell_progress()

    def tell_progress(self) -> None:
        """Calls with the share that is done."""
        if self._progress is not None:
            self._progress((len(self.done) + len(self.failed)) / self._count)


def worth_workers(tasks: int) -> bool:
    """True if so many tasks are worth starting processes for."""
    return tasks >= _FEWEST_IN_PARALLEL and (os.cpu_count() or 1) > 1
