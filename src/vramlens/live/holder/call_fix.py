"""Fixes that name another line than the one that keeps: where a heap is to be shortened, where saved
tensors are read, where a function is handed over.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vramlens.ground.source_code import last_name
from vramlens.leak.leak import LeakOwner
from vramlens.live.heap.objects import code_of
from vramlens.live.holder.keeper import Keeper, store_of
from vramlens.live.holder.kept_value import Kept
from vramlens.live.source.expressions import arguments_of, receiver_of, text_of
from vramlens.live.source.source_stores import CallSite, Module, Store, read_source
from vramlens.live.source.source_tree import tree_of

_LONGEST_CALL = 60
_SELECTING = ("nlargest", "nsmallest", "sorted")
"""Functions that give a new list, and leave the one that they are given."""


def heap_fix(owner: LeakOwner, keeper: Keeper | None) -> str:
    """For a list that ``heapq`` fills: its smallest entries go; any other cut would break its order.
    Empty for all else.
    """
    store = store_of(keeper)
    if store is None or store.method != "heappush" or not isinstance(store.statement, ast.Expr):
        return ""
    call = store.statement.value
    if not isinstance(call, ast.Call) or not call.args:
        return ""
    heap = text_of(call.args[0])
    popped = f"heapq.heappop({heap}) while it has more than n"
    idle = next(_idle_selections(store.file, heap), None)
    if idle is None:
        return f"limit {owner.name} ({popped}) or empty it once its entries have been used"
    line = f"line {idle.lineno} ({text_of(idle)})"
    return f"limit {owner.name} ({popped}): {line} only gives a new list, which nothing uses"


def _idle_selections(file: str, name: str) -> Iterator[ast.Call]:
    """Yields calls such as ``heapq.nlargest(10, self.heap)`` whose result nothing uses."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Expr(value=ast.Call() as call) if last_name(call.func) in _SELECTING:
                if name in map(text_of, call.args):
                    yield call


def saved_tensors_fix(keeper: Keeper | None) -> str:
    """For what a hook for saved tensors packs into a container, and its counterpart only reads there:
    each is read once. Empty for all else.
    """
    store = store_of(keeper)
    module = None if store is None else read_source(store.file)
    if store is None or module is None:
        return ""
    pack = store.function.name.rpartition(".")[2]
    for site in module.calls.get("saved_tensors_hooks", ()):
        hooks = [last_name(argument) for argument in arguments_of(site.call)]
        if len(hooks) == 2 and hooks[0] == pack:
            for read in _reads_in(module, hooks[1], store):
                taken = f"{text_of(read.value)}.pop({text_of(read.slice)})"
                return (
                    f"take each out where {hooks[1]} reads it (line {read.lineno}): {taken} instead"
                    f" of {text_of(read)}"
                )
    return ""


def _reads_in(module: Module, function: str, store: Store) -> Iterator[ast.Subscript]:
    """Yields what a function reads by key where a statement stores."""
    for candidate in module.all_functions():
        is_it = candidate.node is not None and candidate.name.rpartition(".")[2] == function
        for node in ast.walk(candidate.node) if is_it and candidate.node is not None else ():
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                receiver = receiver_of(node.value)
                if receiver is not None and receiver[:2] == (store.name, store.base):
                    yield node


def handing_over(keeper: Keeper | None, kept: Kept) -> str:
    """``: line 51 (bus.on('weights', self.refresh)) adds each``, for a function that a call hands over
    to the one that stores it; empty where several calls may, or none in the file.
    """
    store, code = store_of(keeper), code_of(kept.value)
    module = None if store is None else read_source(store.file)
    if store is None or module is None or code is None:
        return ""
    stored = [part.id for part in store.stored_expressions if isinstance(part, ast.Name)]
    if not set(stored) & set(store.function.parameters):
        return ""
    sites = [
        site
        for site in module.calls.get(store.function.name.rpartition(".")[2], ())
        if code.co_name in map(last_name, arguments_of(site.call))
    ]
    return _place_of(sites[0]) if len(sites) == 1 else ""


def _place_of(site: CallSite) -> str:
    text = text_of(site.call)
    shown = f" ({text})" if len(text) <= _LONGEST_CALL else ""
    return f": line {site.call.lineno}{shown} adds each"
