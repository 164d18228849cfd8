"""What to keep in place of objects that have tensors inside: a ``ctx``, a distribution, an
exception, a warning, a task.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any

from vramlens.ground.source_code import last_name
from vramlens.leak.fixes import fix_of_class
from vramlens.leak.leak import LeakOwner
from vramlens.live.heap.objects import (
    class_module,
    class_name,
    class_order,
    is_kind,
    is_log_record,
    is_recorded_warning,
    is_users_class,
)
from vramlens.live.holder.chain import Chain
from vramlens.live.holder.keeper import Keeper, store_of, stored_source
from vramlens.live.holder.keeper_position import is_table, linking_step
from vramlens.live.holder.kept_value import Kept
from vramlens.live.source.expressions import names_in, names_read
from vramlens.live.source.source_stores import Store
from vramlens.live.source.source_tree import tree_of
from vramlens.units import counted

_TRACEBACK = "its traceback holds every variable of its frames"
_GATHERING = ("gather", "wait", "as_completed")
_STARTS_TASK = ("submit", "run_in_executor", "create_task", "ensure_future")
_TAKING_EXCEPTIONS = ("print_exception", "format_exception", "set_exception", "isinstance", "type")
_LEAVING = {"set": "discard", "list": "remove", "deque": "remove"}
"""What a collection's method is called by which an entry leaves it."""


def is_exception(value: object) -> bool:
    """Whether something is an exception, or what Python keeps of one: a traceback, a frame."""
    if type(value) is tuple:
        return any(is_kind(part, types.TracebackType) for part in value)
    return is_kind(value, BaseException, types.TracebackType, types.FrameType)


def exception_fix(keeper: Keeper | None, name: str, kept: Kept) -> str:
    """For an exception: its text, unless the program uses it as an exception later.

    Args:
        name: what keeps it, as the program calls it.
    """
    value = kept.value
    if is_kind(value, types.FrameType):
        return "keep names and numbers of the frame (f_code.co_name, f_lineno), not the frame"
    store = store_of(keeper)
    if not is_kind(value, BaseException):
        return _fix_of_entry(store, name, is_trace=is_exception(value))
    error = _caught_name(store) or stored_source(keeper) or "the exception"
    inside = f"{class_name(type(value))}{kept.path}"
    if store is None or not _is_used_as_exception(store):
        reason = _TRACEBACK if _has_traceback(kept) else f"it holds {inside}"
        return f"keep repr({error}) instead of {error}: {reason}"
    if not _has_traceback(kept):
        return f"keep a number or text instead of the tensor in {inside}: {name} keeps it"
    return _without_traceback(error)


def _fix_of_entry(store: Store | None, name: str, *, is_trace: bool) -> str:
    """For an entry that contains an exception, or a traceback alone."""
    if is_trace:
        text = "keep the text, traceback.format_exc(), instead: a traceback holds every variable"
        return f"{text} of its frames"
    error = _caught_name(store)
    if store is not None and error and _is_used_as_exception(store):
        return _without_traceback(error)
    return fix_of_class("exception", name)


def _without_traceback(error: str) -> str:
    return (
        f"keep {error}.with_traceback(None) instead of {error}: {_TRACEBACK}, and text cannot be"
        " used as an exception later"
    )


def report_fix(name: str, kept: Kept) -> str:
    """For warnings that are recorded and lines that are logged; empty for all else."""
    value, path = kept.value, kept.path
    if is_log_record(value):
        return (
            f"log a number or text instead of the tensor: {name} keeps each line with its arguments"
        )
    if is_recorded_warning(value):
        path = path.removeprefix(".message")
        value = getattr(value, "message", None)
    if not is_kind(value, Warning):
        return ""
    inside = f"{class_name(type(value))}{path}"
    return f"keep a number or text instead of the tensor in {inside}: {name} keeps every warning"


def task_fix(keeper: Keeper | None, kept: Kept) -> str:
    """For tasks of asyncio and futures of executors; empty for all else."""
    store = store_of(keeper)
    if store is None or kept.container == "queue" or not _is_future(kept.value):
        return ""
    tasks = f"{store.base}.{store.name}" if store.base else store.name
    is_task = class_module(type(kept.value)).lstrip("_").startswith("asyncio")
    leaving = _LEAVING.get(kept.container)
    if is_task and leaving and not _is_gathered(store):
        task = stored_source(keeper)
        task = task if task.isidentifier() else "task"
        if _waits(kept.value):
            return (
                f"cancel each task when nobody takes its results any more ({task}.cancel()): one"
                f" that waits for good never leaves {tasks}"
            )
        return f"let each task leave when it is done: {task}.add_done_callback({tasks}.{leaving})"
    if kept.container == "dict":
        key, value = ("task", "value") if _is_key(store) else ("key", "task")
        kept_pairs = f"{{{key}: {value} for {key}, {value} in {tasks}.items() if not task.done()}}"
    else:
        kept_pairs = f"[task for task in {tasks} if not task.done()]"
        kept_pairs = f"set({kept_pairs})" if kept.container == "set" else kept_pairs
    return f"take the results of tasks that are done, and keep the others: {tasks} = {kept_pairs}"


def _waits(task: Any) -> bool:
    """Whether a task has not come to its end; only asyncio's own class is asked."""
    own_class = type(task)
    is_asyncios = class_module(own_class) in ("_asyncio", "asyncio.tasks")
    return is_asyncios and class_name(own_class) == "Task" and not task.done()


def _is_key(store: Store) -> bool:
    """Whether the task is the key: a variable that is set to what a call such as ``submit`` gives."""
    body = store.function.node
    if body is None or not isinstance(store.key, ast.Name):
        return False
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last_name(node.value.func) in _STARTS_TASK
        and store.key.id in map(last_name, node.targets)
        for node in ast.walk(body)
    )


def object_fix(keeper: Keeper | None, kept: Kept) -> str:
    """For an object that a graph hangs on: it has no ``.detach()``; what it holds has."""
    source = stored_source(keeper)
    if kept.form == "node":
        return _node_fix(source or "ctx", kept.path)
    path = ".mean" if _is_distribution(kept.value) else kept.path
    store = store_of(keeper)
    if store is not None and is_table(kept.value):
        table = f"{store.base}.{store.name}" if store.base else store.name
        return (
            f"put detached tensors (.detach()) or numbers (.item()) into the cells of {table},"
            " which frees the graph behind them"
        )
    if not source or not path:
        name = source or f"the {class_name(type(kept.value))}"
        return (
            f"keep only the tensors that are needed of {name}, detached (.detach()), which frees"
            " the graph behind it"
        )
    edit = (
        f"keep {source}{path}.detach() (and what else is needed of it, detached) instead of"
        f" {source}, which frees the graph behind it"
    )
    is_made_here = store is not None and isinstance(store.value, ast.Call)
    no_graph = f"; or make {source} under torch.no_grad(), where nothing needs its gradients"
    return edit + no_graph if is_made_here else edit


def _node_fix(source: str, path: str) -> str:
    tensor = f"{source}{path}" if path else "what it saved"
    return (
        f"keep numbers (.item(), .tolist()) of {tensor} instead of {source}, which keeps its"
        " tensors and its graph"
    )


def _is_distribution(value: object) -> bool:
    return any(
        class_name(base) == "Distribution" and class_module(base).startswith("torch.distributions")
        for base in class_order(type(value))
    )


def _is_future(value: object) -> bool:
    return any(
        class_name(base) in ("Task", "Future")
        and class_module(base)
        in ("_asyncio", "asyncio.tasks", "asyncio.futures", "concurrent.futures._base")
        for base in class_order(type(value))
    )


def _has_traceback(kept: Kept) -> bool:
    return any(link.how in ("traceback", "frame") for link in kept.inside)


def _nodes_of(store: Store) -> Iterator[ast.AST]:
    tree = tree_of(store.file)
    return iter(()) if tree is None else ast.walk(tree)


def _caught_name(store: Store | None) -> str:
    """The name of a caught exception in what a statement stores; empty where there is none."""
    if store is None:
        return ""
    handlers = {node.name for node in _nodes_of(store) if isinstance(node, ast.ExceptHandler)}
    stored = (names_in(expression) for expression in store.stored_expressions)
    names = (name for pairs in stored for base, name in pairs if not base)
    return next((name for name in names if name in handlers), "")


def _is_gathered(store: Store) -> bool:
    """Whether the program waits for all of the tasks, and so wants them all."""
    calls = (node for node in _nodes_of(store) if isinstance(node, ast.Call))
    return any(
        last_name(call.func) in _GATHERING and store.name in names_read(call) for call in calls
    )


def _is_used_as_exception(store: Store) -> bool:
    """Whether the program raises what it kept, hands it over as an exception, or reads its
    attributes.
    """
    nodes = list(_nodes_of(store))
    entries = {store.name, *_names_of_entries(nodes, store.name)}
    return any(_uses_exception(node, store.name, entries) for node in nodes)


def _names_of_entries(nodes: list[ast.AST], name: str) -> Iterator[str]:
    """Yields the variables of loops over what was kept."""
    loops = (node for node in nodes if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension))
    for loop in loops:
        if name in names_read(loop.iter):
            yield from names_read(loop.target)


def _uses_exception(node: ast.AST, name: str, entries: set[str]) -> bool:
    match node:
        case ast.Raise():
            raised = [part for part in (node.exc, node.cause) if part is not None]
            return any(not entries.isdisjoint(names_read(part)) for part in raised)
        case ast.Call(func=function) if last_name(function) in _TAKING_EXCEPTIONS:
            return not entries.isdisjoint(names_read(node))
        case ast.Attribute(value=ast.Subscript(value=container)):
            return last_name(container) == name
        case ast.Attribute(value=ast.Name(id=entry)):
            return entry in entries and entry != name
    return False


def linked_fix(owner: LeakOwner, chain: Chain, at: int, entries: int) -> str:
    """What to do where a container keeps few entries, each of which leads to the one before it, long gone from
    there; empty where no attribute does.

    Args:
        entries: how many the container has.
    """
    step = linking_step(chain, at + 1)
    if step is None or not step[1].isidentifier() or not is_users_class(step[0]):
        return ""
    kind, name = step
    return (
        f"{owner.name} has {counted(entries, 'entry', 'entries')}, but each leads to the entry"
        f" before it through {class_name(kind)}.{name}: set {name} to None in the oldest one that"
        " it keeps"
    )
