"""Tensors that wait in shared memory for another process: in a queue that nobody drains.

``multiprocessing`` gives each tensor that is sent a file descriptor, and keeps it until the
receiver has fetched it; by then the tensor itself has left this process. The descriptors are
numbered, so that the step of each is known, and their files say how large they are.
"""

from __future__ import annotations

import os
import stat
import sys
import types
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from vramlens.ground.program_errors import own_errors
from vramlens.ground.verdict import Verdict
from vramlens.leak.leak import LeakOwner
from vramlens.live.counters.step_counters import StepCounters
from vramlens.live.growth.looks import Looks
from vramlens.live.growth.pace import pace_of
from vramlens.live.heap.objects import class_module, class_name, class_order, namespace_of
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, chain_of
from vramlens.live.holder.keeper import Keeper, Statements
from vramlens.live.holder.owner import owner_of
from vramlens.live.leaks.allocating_line import line_of_store
from vramlens.live.leaks.leak_report import LiveLeak
from vramlens.units import counted

_MODULES = ("multiprocessing.queues", "torch.multiprocessing.queue")


def handed_over_leak(
    counters: StepCounters, search: Search, statements: Statements, steps: int, looks: Looks
) -> LiveLeak | None:
    """Shared memory that each step leaves behind for others to fetch; None where it does not grow.

    Args:
        steps: how many steps have ended.
        looks: at births.
    """
    waiting = _waiting()
    pace = pace_of(_bytes_by_step(counters, waiting, steps), steps, looks)
    if pace is None or not pace.is_steady:
        return None
    owner, keeper, backlog = _queue(search, statements)
    total = sum(waiting.values())
    bytes_per_step = pace.bytes_per_step
    if backlog >= len(waiting):
        # The thread that sends lags behind; what was put is counted at once.
        put = backlog - _sent_before(counters, waiting)
        bytes_per_step = round(median(waiting.values()) * put / steps)
    return LiveLeak(
        verdict=Verdict.PROVEN if pace.is_sure else Verdict.LIKELY,
        kind="other" if owner is None else "container",
        place=line_of_store(statements, keeper),
        bytes_per_step=bytes_per_step,
        bytes=total,
        steps=pace.steps,
        first_step=pace.first,
        last_step=pace.last,
        storages=len(waiting),
        owner=owner,
        evidence=(
            f"{counted(len(waiting), 'tensor')} of {total:,} B in shared memory, each behind a"
            " file descriptor of this process, which no other process has fetched",
        ),
        fix=f"let the receiver read from {'the queue' if owner is None else owner.name}, or "
        "limit it (Queue(maxsize=...)) and stop sending when there is no receiver",
        device="cpu",
    )


def _bytes_by_step(
    counters: StepCounters, waiting: Mapping[int, int], steps: int
) -> dict[int, int]:
    """Bytes that wait, by the step that they were handed over in; the last where it has not
    ended.
    """
    by_step: dict[int, int] = {}
    for number, size in waiting.items():
        step = next((step for step, last in counters.handed_over if number <= last), steps)
        by_step[step] = by_step.get(step, 0) + size
    return by_step


def _sent_before(counters: StepCounters, waiting: Iterable[int]) -> int:
    """How many of those that wait were handed over before the watch began."""
    step, last = counters.handed_over[0]
    return 0 if step else sum(number <= last for number in waiting)


def _waiting() -> dict[int, int]:
    """Bytes in shared memory that nobody has fetched yet, by the number of the descriptor."""
    sharer = getattr(sys.modules.get("multiprocessing.resource_sharer"), "_resource_sharer", None)
    cache = getattr(sharer, "_cache", None)
    sizes: dict[int, int] = {}
    for number, pair in list(cache.items()) if type(cache) is dict else ():
        with own_errors():  # fetched meanwhile
            facts = os.fstat(_descriptor(pair[1]))
            if stat.S_ISREG(facts.st_mode) and facts.st_size:
                sizes[int(number)] = int(facts.st_size)
    return sizes


def _descriptor(close: Any) -> int:
    """The descriptor that a function of ``DupFd`` closes: its closure's variable."""
    if type(close) is types.FunctionType and close.__closure__ is not None:
        for name, cell in zip(close.__code__.co_freevars, close.__closure__, strict=True):
            if name == "new_fd" and type(cell.cell_contents) is int:
                return cell.cell_contents
    raise ValueError


def _queue(search: Search, statements: Statements) -> tuple[LeakOwner | None, Keeper | None, int]:
    """The queue in which most waits, the statement that puts things there, and how many there
    are.
    """
    queues = [
        (_backlog(value), place) for place, value in enumerate(search.order) if _is_queue(value)
    ]
    if not queues:
        return None, None, 0
    backlog, place = max(queues)
    parents = search.parents([place])
    chain = chain_of(search, search.path(place, parents), parents)
    keeper = statements.keeper(Chain(chain.root, chain.links), None, is_graph=False)
    return (
        owner_of(search, chain, len(chain.links) - 1, keeper),
        keeper,
        backlog,
    )


def _is_queue(value: Any) -> bool:
    return any(
        class_module(base) in _MODULES and "Queue" in class_name(base)
        for base in class_order(type(value))
    )


def _backlog(queue: Any) -> int:
    """How many things a queue has taken and not given; 0 where the system cannot say (macOS)."""
    with own_errors():
        names: Any = namespace_of(queue)
        return int(names["_maxsize"]) - int(names["_sem"]._semlock._get_value())
    return 0
