"""Workers: a function run for each rank, on processes of this machine or on a Dask cluster, with
the same results.

What one rank raises is that rank's; a worker that dies costs nothing but the time to do its ranks
again.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import Any, TypeVar, cast

from vramlens.errors import UsageError, VramlensError

Progress = Callable[[float], None]
_FEWEST_IN_PARALLEL = 8
"""Starting other processes takes longer than doing fewer."""
_TRIES = 3
_PATIENCE_S = 5
_DASK = "dask://"
# M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h.
_MALLOC = {-8: 1, -3: 32 << 20, -1: 1 << 30}
_Key = TypeVar("_Key", bound=int)
_Result = TypeVar("_Result")


@contextmanager
def workers(where: str | None) -> Iterator[Executor | None]:
    """What runs the map: None is here.

    Args:
        where: a number of processes, ``dask://HOST:PORT`` of a Dask scheduler, or None for as many
            as there are cores.

    Raises:
        UsageError: it is neither, or dask.distributed is not installed, or nobody answers there.
    """
    if where is None or where.isdecimal():
        count = (os.cpu_count() or 1) if where is None else int(where)
        if count < 1:
            raise UsageError("--workers: at least one")
        if count == 1:
            yield None
            return
        with _processes(count) as pool:
            yield pool
        return
    if not where.startswith(_DASK):
        raise UsageError(f"--workers {where}: say a number of processes or dask://HOST:PORT")
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "--workers dask://… needs dask.distributed: pip install 'vramlens[cluster]'"
        ) from None
    try:
        client: Any = cast(Any, distributed).Client(
            f"tcp://{where[len(_DASK) :]}", timeout=_PATIENCE_S, set_as_default=False
        )
    except OSError as error:
        raise UsageError(f"--workers {where}: no Dask scheduler answers there ({error})") from None
    try:
        yield client.get_executor(pure=False)
    finally:
        client.close()


def _processes(count: int) -> ProcessPoolExecutor:
    # Not forked: the caller may have threads.
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_keep_memory)


def _keep_memory() -> None:
    """Has glibc keep what was freed for the next rank: asking for it anew takes a fifth of the
    processor's time.
    """
    with suppress(Exception):  # another C library
        change = ctypes.CDLL(None).mallopt
        for setting, value in _MALLOC.items():
            change(setting, value)


def for_each(
    tasks: Mapping[_Key, tuple[object, ...]],
    function: Callable[..., _Result],
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> tuple[dict[_Key, _Result], dict[_Key, str]]:
    """The results by rank, and by rank why there is none.

    Args:
        tasks: the arguments, by rank.
        function: what to call; a function of a module, so that a worker finds it.
        executor: where; None is here.
        progress: called with the share that is done.
    """
    done: dict[_Key, _Result] = {}
    failed: dict[_Key, str] = {}

    def told() -> None:
        if progress is not None and tasks:
            progress((len(done) + len(failed)) / len(tasks))

    if executor is None or len(tasks) < 2:
        for rank, arguments in tasks.items():
            _settle(rank, lambda: function(*arguments), done, failed)  # noqa: B023 - called at once
            told()
        return done, failed
    left = dict(tasks)
    for attempt in range(_TRIES):
        with _fresh(executor, attempt) as pool:
            waiting: dict[Future[_Result], _Key] = {}
            with suppress(
                BrokenExecutor
            ):  # a worker may die while the last of many ranks are still handed out
                for rank, arguments in left.items():
                    waiting[pool.submit(function, *arguments)] = rank
            for future in as_completed(waiting):
                _settle(waiting[future], future.result, done, failed)
                told()
        left = {
            rank: arguments
            for rank, arguments in left.items()
            if rank not in done and rank not in failed
        }
        if not left:
            break
    if left:
        failed.update(dict.fromkeys(left, "its worker died, three times"))
        told()
    return done, failed


@contextmanager
def _fresh(executor: Executor, attempt: int) -> Iterator[Executor]:
    """The executor; a pool of processes of which one died takes no more work, so another stands
    in for it.
    """
    if attempt and isinstance(executor, ProcessPoolExecutor):
        with _processes(os.cpu_count() or 1) as pool:
            yield pool
    else:
        yield executor


def _settle(
    rank: _Key,
    result: Callable[[], _Result],
    done: dict[_Key, _Result],
    failed: dict[_Key, str],
) -> None:
    """Notes a rank's result, or why there is none; nothing where its worker died."""
    try:
        done[rank] = result()
    except VramlensError as error:
        failed[rank] = str(error)
    except BrokenExecutor:
        return
    except Exception as error:  # whatever a worker raises is its rank's: the others go on
        if type(error).__name__ == "KilledWorker":  # Dask's
            return
        failed[rank] = (
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
        )


def worth_workers(tasks: int) -> bool:
    """Whether so many tasks are worth starting processes for."""
    return tasks >= _FEWEST_IN_PARALLEL and (os.cpu_count() or 1) > 1
