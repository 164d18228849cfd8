"""Worker processes that answer one case after the other; one that dies or hangs is replaced."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

Worker = Callable[[], Callable[[Any], dict[str, Any]]]
"""Called once in a process: gives what answers its cases."""


@dataclass
class _Process:
    process: Any
    pipe: Any
    task: int | None = None
    since: float = 0.0


def answers(
    tasks: list[Any], worker: Worker, workers: int, patience_s: float, budget_s: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each task with its answer, as they come; ``error`` where a process ended.

    Args:
        patience_s: for one task; budget_s: for all: what is not begun by then is left out.
    """
    end = time.monotonic() + budget_s
    numbers = iter(range(len(tasks)))
    pool = [_begun(tasks, worker) for _ in range(min(workers, len(tasks)))]
    for place in pool:
        _next_task(place, numbers)
    while any(place.task is not None for place in pool):
        ready = wait([place.pipe for place in pool if place.task is not None], timeout=0.5)
        for index, place in enumerate(pool):
            if place.task is None:
                continue
            if place.pipe in ready:
                answer = _received(place)
            elif time.monotonic() - place.since > patience_s:
                answer = {"error": f"no answer within {patience_s:.0f} s", "gone": True}
            else:
                continue
            yield place.task, answer
            if answer.pop("gone", False):
                _end(place)
                pool[index] = place = _begun(tasks, worker)
            _next_task(place, numbers if time.monotonic() < end else iter(()))
    for place in pool:
        _end(place)


def _received(place: _Process) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = place.pipe.recv()
    except EOFError:
        place.process.join(5)
        return {"error": f"the process ended with {place.process.exitcode}", "gone": True}
    return answer


def _next_task(place: _Process, numbers: Iterator[int]) -> None:
    place.task, place.since = next(numbers, None), time.monotonic()
    if place.task is not None:
        place.pipe.send(place.task)


def _begun(tasks: list[Any], worker: Worker) -> _Process:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, tasks, worker), daemon=True)
    process.start()
    there.close()
    return _Process(process, here)


def _end(place: _Process) -> None:
    place.process.kill()
    place.process.join(10)


def _work(pipe: Any, tasks: list[Any], worker: Worker) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    answer_of = worker()
    while True:
        pipe.send(answer_of(tasks[pipe.recv()]))
