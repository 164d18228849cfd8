"""Objects that a library files in a table of its own when the program makes them: timers and tasks of
an event loop, loggers, parametrizations, an optimizer's groups of parameters.

No name of the user's leads to such a table: the statement is the call that makes them.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vramlens.live.heap.objects import (
    class_module,
    class_name,
    class_order,
    code_of,
    is_users,
    is_users_class,
)
from vramlens.live.holder.chain import Chain
from vramlens.live.source.source_stores import Module, Store
from vramlens.live.source.users_source import UsersSource


@dataclass(frozen=True, slots=True)
class _Filing:
    """How a library files objects.

    Attributes:
        makers: what is called to make one.
        fix: what to change; ``{call}`` is that call, and ``{receiver}`` what it is called on.
    """

    makers: tuple[str, ...]
    fix: str


_FILINGS = {
    ("asyncio.events", "TimerHandle"): _Filing(
        ("call_later", "call_at"),
        "keep the timer, handle = {call}(...), and call handle.cancel() when it is no longer"
        " needed: the event loop keeps its arguments until its time has come",
    ),
    ("logging", "Logger"): _Filing(
        ("getLogger",),
        "ask {call}(...) for the same few names, and give what differs with each line"
        " (extra=...): logging keeps every logger, with its filters and handlers",
    ),
    ("torch.nn.utils.parametrize", "ParametrizationList"): _Filing(
        ("register_parametrization",),
        "call torch.nn.utils.parametrize.remove_parametrizations(...) before the next"
        " {call}(...): each one is added to those before",
    ),
    ("torch.optim.optimizer", "Optimizer"): _Filing(
        ("add_param_group",),
        "take replaced parameters out: their group from {receiver}.param_groups, and each of them"
        " from {receiver}.state (a new optimizer would begin without the states of the others)",
    ),
}
"""By module and class: of what is filed, of the table, or of the object that has the table."""


_CREATES_TASK = re.compile(r"[\w.]*(?:create_task|ensure_future)\(.*\)")
"""A statement that is nothing but the call, so that a name can be set before it."""
_NAMES_TASK = re.compile(rf"(?P<name>[A-Za-z_][\w.]*) = {_CREATES_TASK.pattern}$")
_WAITING = {"_waiters": ("wait", "acquire"), "_getters": ("get",), "_putters": ("put",)}
"""What asyncio's locks, events and queues call those who wait, and the methods that make them wait."""
_LOOPS = ("asyncio", "_asyncio", "selectors", "uvloop")
"""Modules whose objects wait in an event loop: timers, futures, what a selector looks at."""


def filing_store(source: UsersSource, chain: Chain, kept: Any) -> Store | None:
    """The call that makes what a library files; None of anything else, and where no file of the
    user's has such a call.

    Args:
        chain: the way to the table.
        kept: an example of what is in it.
    """
    filing = _filing_of(chain, kept)
    if filing is None:
        return None
    calls = [store for module in source.modules() for store in _calls_of(module, filing)]
    return max(calls, key=lambda store: _weight(source, store), default=None)


def filing_fix(store: Store | None, chain: Chain, kept: Any) -> str:
    """What to change about such a call; empty of any other statement."""
    filing = _filing_of(chain, kept)
    if store is None or filing is None or not _makes(store, filing):
        return ""
    receiver = f"{store.base}.{store.name}" if store.base else store.name
    call = receiver if store.method == "()" else f"{receiver}.{store.method}"
    return filing.fix.format(call=call, receiver=receiver)


def waiting_coroutine(chain: Chain, below: Sequence[Any]) -> types.CodeType | None:
    """The user's coroutine whose tasks pile up in a private table of an event loop, as those that
    sleep do; None of anything else.

    Args:
        chain: the way to the table.
        below: what is on the way from it to a tensor.
    """
    if len(chain.links) < 2 or not below or not _is_of_event_loop(below[0]):
        return None
    holder, table = chain.links[-2:]
    if table.how != "attribute" or not table.name.startswith("_"):
        return None
    if is_users_class(type(holder.value)):
        return None
    for task, coroutine in pairwise(below):
        if class_name(type(task)) == "Task" and type(coroutine) is types.CoroutineType:
            code = code_of(coroutine)
            return code if code is not None and is_users(code.co_filename) else None
    return None


def waiting_store(source: UsersSource, chain: Chain) -> Store | None:
    """The call that waits, of those that pile up in what asyncio's locks, events and queues keep of their
    waiters; None of anything else.
    """
    methods = _waiting_methods(chain)
    calls = [
        store
        for module in (source.modules() if methods else ())
        for store in module.stores.get(chain.links[-2].name, ())
        if store.method in methods
    ]
    return max(calls, key=lambda store: _weight(source, store), default=None)


def waiters_fix(store: Store | None, chain: Chain) -> str:
    """What to do about waiters that pile up; empty of any other statement."""
    if store is None or store.method not in _waiting_methods(chain):
        return ""
    call = ast.unparse(store.statement)
    task = _NAMES_TASK.match(call)
    if task is None:
        return "end what waits there once nobody needs it: asyncio.timeout(...), or task.cancel()"
    return f"call {task['name']}.cancel() once nobody needs it: a task that waits keeps its context"


def _waiting_methods(chain: Chain) -> tuple[str, ...]:
    """The methods that fill a table of waiters; none of any other container."""
    if len(chain.links) < 2 or not _is_of_event_loop(chain.links[-2].value):
        return ()
    return _WAITING.get(chain.links[-1].name, ())


def waiting_fix(coroutine: str, statement: str) -> str:
    """What to do about tasks that pile up.

    Args:
        coroutine: its name, qualified.
        statement: that starts them, as source.
    """
    is_plain_call = _CREATES_TASK.fullmatch(statement) is not None
    task = f"its task, task = {statement}," if is_plain_call else "its task"
    return (
        f"let {coroutine}() return once nobody needs it, or keep {task} and cancel it then:"
        " task.cancel()"
    )


def _is_of_event_loop(value: Any) -> bool:
    return class_module(type(value)).partition(".")[0] in _LOOPS


def _filing_of(chain: Chain, kept: Any) -> _Filing | None:
    holders = [kept, *(link.value for link in chain.links[:-3:-1])]
    for holder in holders:
        for base in class_order(type(holder)):
            filing = _FILINGS.get((class_module(base), class_name(base)))
            if filing is not None:
                return filing
    return None


def _calls_of(module: Module, filing: _Filing) -> Iterator[Store]:
    if not any(maker in module.calls for maker in filing.makers):
        return
    for stores in module.stores.values():
        for store in stores:
            if _makes(store, filing):
                yield store


def _makes(store: Store, filing: _Filing) -> bool:
    if store.how != "call":
        return False
    called = store.name if store.method == "()" else store.method
    return called in filing.makers


def _weight(source: UsersSource, store: Store) -> tuple[bool, int, bool]:
    """Calls that ran come first, then those in loops, then those whose arguments may differ each time."""
    is_constant = all(isinstance(argument, ast.Constant) for argument in store.arguments)
    return source.has_run(store.file, store.line), store.loops, not is_constant
