"""Look-alikes: growth that ends by itself. Each gate gives the reason, or nothing.

What grows may be bounded (a deque with a length, a cache with a limit, a ring), emptied in its time
(an epoch's metrics), or of no weight. A gate can lower a verdict, never raise it.
"""

from __future__ import annotations

import ast
from collections import deque
from contextlib import suppress
from typing import Any

from vramlens.ground.verdict import Verdict
from vramlens.live.heap.objects import (
    QUEUES,
    attributes_of,
    class_module,
    class_name,
    is_kind,
    length_of,
)
from vramlens.live.holder.keeper import Keeper, Statements
from vramlens.live.holder.leak_class import looks_up
from vramlens.live.leaks.leak_report import LiveLeak
from vramlens.live.source.bounds import always_holds, cut_off, length_limit, never_holds
from vramlens.live.source.expressions import names_in, receiver_of, text_of
from vramlens.live.source.source import Store, read_source
from vramlens.live.source.statement_scores import is_removal
from vramlens.units import GIB, counted, format_size

POSSIBLE, NONE = Verdict.POSSIBLE, Verdict.NOT_A_PROBLEM
_TINY_BYTES = 64
_NUMBER_BYTES, _MANY_NUMBERS_BYTES = 8, 1024
_HOPS = 3
_MOST_TO_COME = GIB


def gate(
    statements: Statements,
    value: Any,
    keeper: Keeper | None,
    *,
    is_graph: bool,
    is_remade: bool,
    holder: object,
    kept_bytes: int = 0,
) -> tuple[str, str] | None:
    """The verdict that growth is lowered to, and why; None where nothing speaks against a leak.

    A bound that lets too much come is no excuse.

    Args:
        value: the object that keeps.
        is_graph: whether autograd graphs are kept.
        is_remade: whether it is one tensor that is made anew, larger, in each step.
        holder: the object whose attribute `value` is; None where it is none.
        kept_bytes: what it keeps now.
    """
    if distant_bound(value, keeper, holder, kept_bytes):
        return None
    found = _bounded(value, keeper)
    if found is not None:
        return found
    if keeper is not None and keeper.store is not None:
        store = keeper.store
        reasons = (
            _ring(store, statements),
            _guarded(store, holder),
            _flagged(store),
            _written_anew(store, keeper),
        )
        for reason in (*reasons, _cut_off(store), _evicted(keeper, holder)):
            if reason:
                return NONE, reason
        reason = "" if is_graph else _emptied(store, keeper, statements, holder)
        if reason:
            return POSSIBLE, reason
        if _only_replaces(store, value, keeper):
            return NONE, f"a list that is written by index does not get longer (line {store.line})"
        if store.key is not None and looks_up(store) and _few_keys(store.key, store, statements):
            return POSSIBLE, "a cache whose keys may run out: its key is a shape or a remainder"
        if not is_graph and _moved_away(store, statements):
            return POSSIBLE, "it is moved to the host's memory on purpose, and grows there"
    if is_remade and (keeper is None or keeper.store is None or not made_of_itself(keeper.store)):
        return (
            POSSIBLE,
            "nothing of it comes from the one before: what it is made of may be getting larger",
        )
    return None


def are_numbers(leak: LiveLeak) -> str:
    """Why what a statement keeps in each step is of no weight; empty where it is."""
    if leak.nodes or not leak.storages:
        return ""
    each = leak.bytes / leak.storages
    if leak.bytes_per_step > (_MANY_NUMBERS_BYTES if each <= _NUMBER_BYTES else _TINY_BYTES):
        return ""
    return f"{format_size(leak.bytes_per_step)} a step without a graph: single numbers"


def distant_bound(value: object, keeper: Keeper | None, holder: object, kept_bytes: int) -> str:
    """What a bound still lets come, where that is too much for an excuse; empty elsewhere."""
    length = length_of(value)
    limit = _limit_of(keeper, holder)
    if limit is None:
        limit = _own_limit(value)
    if limit is None or not length:
        return ""
    to_come = max(limit - length, 0) * kept_bytes // length
    return (
        f"bounded at {limit:,}: {format_size(to_come)} to come" if to_come > _MOST_TO_COME else ""
    )


def _limit_of(keeper: Keeper | None, holder: object) -> int | None:
    """The length at which what grows is held back or evicted, by the source."""
    if keeper is None or keeper.store is None:
        return None
    limit = length_limit(keeper.store.guards, keeper.store, holder)
    if limit is not None:
        return limit
    limits = (
        length_limit(other.guards, keeper.store, holder)
        for other in keeper.others
        if is_removal(other)
    )
    return next((limit for limit in limits if limit is not None), None)


def _own_limit(value: object) -> int | None:
    """The limit that a container itself has."""
    return deque.maxlen.__get__(value) if is_kind(value, deque) else None


def _evicted(keeper: Keeper, holder: object) -> str:
    """``if len(x) > n: x.pop(...)``: a bound, whatever the entries are."""
    if keeper.store is None:
        return ""
    for other in keeper.others:
        limit = length_limit(other.guards, keeper.store, holder) if is_removal(other) else None
        if limit is not None:
            return f"line {other.line} takes away what is more than {limit:,}: {_short(other)}"
    return ""


def _bounded(value: Any, keeper: Keeper | None) -> tuple[str, str] | None:
    for name, limit in attributes_of(value) if class_module(type(value)) in QUEUES else ():
        if name.lstrip("_") == "maxsize" and type(limit) is int and limit > 0:
            return NONE, f"a queue that never holds more than {limit:,}"
    if is_kind(value, deque):
        longest = deque.maxlen.__get__(value)
        if longest is not None:
            return NONE, f"a deque that never holds more than {longest:,}"
    if class_name(type(value)) == "_lru_cache_wrapper":
        with suppress(Exception):
            facts = type(value).cache_info(value)
            if facts.maxsize is not None:
                if facts.hits:
                    return (
                        NONE,
                        f"a cache of at most {facts.maxsize:,}, and it is hit: {counted(facts.hits, 'time')}",
                    )
                return (
                    POSSIBLE,
                    f"a cache of at most {facts.maxsize:,}; none of its {facts.currsize:,} results was used again",
                )
    is_appended = keeper is not None and keeper.store is not None and keeper.store.how != "item"
    if (
        is_kind(value, list)
        and not is_appended
        and any(part is None for part in list.__iter__(value))
    ):
        return NONE, "a list with places that are still empty: it was made with its full length"
    if class_name(type(value)) in ("LRUCache", "TTLCache", "LFUCache"):
        return POSSIBLE, "a cache with a limit"
    return None


def made_of_itself(store: Store) -> bool:
    """Whether what is stored is made from what was there, also by way of variables: ``y =
    cat((self.x, new))``.
    """
    if store.refers_to_itself:
        return True
    module = read_source(store.file)
    names = {
        store.name,
        *(str(one.value) for one in store.arguments if isinstance(one, ast.Constant)),
    }
    waiting: list[ast.expr] = [
        *store.arguments,
        *([store.value] if store.value is not None else []),
    ]
    for _ in range(_HOPS):
        found = [pair for value in waiting for pair in names_in(value)]
        if any(
            name in names and (bool(base) == bool(store.base) or name != store.name)
            for base, name in found
        ):
            return True
        waiting = [
            other.value
            for base, name in found
            for other in (() if module is None or base else module.stores.get(name, ()))
            if other.how == "assign"
            and other.value is not None
            and other.function is store.function
        ]
    return False


def _only_replaces(store: Store, value: object, keeper: Keeper) -> bool:
    """Whether a list is only written to at places that it has."""
    if (
        not is_kind(value, list)
        or store.how != "item"
        or isinstance(store.key, ast.Slice)
        or store.keys
    ):
        return False
    return not any(
        other.how == "add"
        or other.method in ("append", "extend", "insert")
        or other.refers_to_itself
        for other in keeper.others
    )


def _written_anew(store: Store, keeper: Keeper) -> str:
    """``if ...: x.append(new)``, ``else: x[i] = new``."""
    for other in keeper.others:
        if other.how != "item" or other.function is not store.function:
            continue
        mine, its = ({ast.dump(guard) for guard in one.guards} for one in (store, other))
        contrary = {ast.dump(ast.UnaryOp(ast.Not(), guard)) for guard in store.guards} & its
        contrary |= {ast.dump(ast.UnaryOp(ast.Not(), guard)) for guard in other.guards} & mine
        if contrary:
            return f"else line {other.line} writes over what is there"
    return ""


def _cut_off(store: Store) -> str:
    """``x = (x + [new])[-n:]``."""
    cut = cut_off(store)
    return f"it is cut off each time: {cut} (line {store.line})" if cut else ""


def _ring(store: Store, statements: Statements) -> str:
    """``ring[i % n] = x``, also where the remainder is taken elsewhere."""
    if store.how != "item" or store.key is None:
        return ""
    if _has_remainder(store.key):
        return "a ring: it is filled at a remainder (%)"
    for name in _names(store.key):
        for module in statements.modules():
            if module.file != store.file:
                continue
            for other in module.stores.get(name, ()):
                if other.value is not None and _has_remainder(other.value):
                    return f"a ring: {name} is a remainder (%, line {other.line})"
                if _begins_anew(other, store):
                    return f"a ring: {name} begins anew (line {other.line})"
    return ""


def _begins_anew(index: Store, store: Store) -> bool:
    """``if i == n: i = 0``, where things are stored."""
    is_zero = isinstance(index.value, ast.Constant) and type(index.value.value) is int
    return (
        index.how == "assign"
        and is_zero
        and index.function is store.function
        and any(
            isinstance(node, ast.Compare) and any(name == index.name for _, name in names_in(node))
            for guard in index.guards
            for node in ast.walk(guard)
        )
    )


def _guarded(store: Store, holder: object) -> str:
    """``if len(x) < n: x.append(...)``, ``if len(x) == n: return``."""
    for guard in store.guards:
        if not _measures(guard, store):
            continue
        is_crossed = any(isinstance(node, (ast.Eq, ast.NotEq)) for node in ast.walk(guard))
        if is_crossed or not always_holds(guard, store, holder):
            return f"it grows only as long as {ast.unparse(guard)} holds (line {store.line})"
    return ""


def _flagged(store: Store) -> str:
    """``if not self.full: x.append(...)``, where ``full`` is set once ``x`` is long enough."""
    module = read_source(store.file)
    for guard in store.guards:
        for base, name in names_in(guard):
            for other in () if module is None else module.stores.get(name, ()):
                if other.how != "assign" or bool(other.base) != bool(base) or other.value is None:
                    continue
                if any(_measures(one, store) for one in (*other.guards, other.value)):
                    return f"it grows only until {name} is set (line {other.line})"
    return ""


def _measures(expression: ast.expr, store: Store) -> bool:
    """Whether an expression compares the length of what is stored to."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                if not isinstance(side, ast.Call):
                    continue
                if text_of(side.func) == f"{store.base}.__len__":
                    return True
                if text_of(side.func) == "len" and side.args:
                    found = receiver_of(side.args[0])
                    if found is not None and (
                        found[0] == store.name or text_of(side.args[0]) == store.base
                    ):
                        return True  # of an object, its own __len__
    return False


def _emptied(store: Store, keeper: Keeper, statements: Statements, holder: object) -> str:
    """A statement that takes things away again, and that runs some time."""
    takes_from_queue = store.method in ("put", "put_nowait")
    for other in keeper.others:
        if other is store or not is_removal(other):
            continue
        if other.method in ("get", "get_nowait") and not takes_from_queue:
            continue
        if other.how == "assign" and not other.base and not _encloses(other, store):
            continue  # it makes the variable
        if other.how == "assign" and any(_asks_whether_there(guard) for guard in other.guards):
            continue  # it makes it at its first use
        if other.function is not store.function and not _is_called(other, statements):
            continue
        if statements.has_passed_by(other) and not _is_counted(other):
            continue
        if other.function is store.function and never_holds(other.guards, store, holder):
            continue
        return f"line {other.line} empties it: {_short(other)}"
    return ""


def _encloses(other: Store, store: Store) -> bool:
    """Whether an assignment is in an outer loop of what fills."""
    return (
        other.function is store.function
        and 0 < other.loops < store.loops
        and other.line < store.line
    )


def _is_called(store: Store, statements: Statements) -> bool:
    last = store.function.name.rpartition(".")[2]
    if store.function.node is None or last == "<lambda>":
        return True
    if last.startswith("on_") or "epoch" in last:
        return True  # a framework calls it
    owner = store.function.owner.rpartition(".")[2]
    return any(
        caller is not store.function
        for module in statements.modules()
        if module.file == store.file or not owner or any(owner in line for line in module.lines)
        for _, caller, _, _ in module.calls.get(last, ())
    )


def _asks_whether_there(guard: ast.expr) -> bool:
    """``if not hasattr(x, "y")``, ``if x is None``, ``if k not in x``."""
    for node in ast.walk(guard):
        if isinstance(node, ast.Compare) and isinstance(
            node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)
        ):
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "hasattr"
        ):
            return True
    return False


def _is_counted(store: Store) -> bool:
    """Whether a statement stands under a condition that a number decides: a length, a step."""
    for guard in store.guards:
        for node in ast.walk(guard):
            if isinstance(node, ast.Compare) and isinstance(
                node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
            ):
                return True
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "len"
            ):
                return True
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                return True
    return False


def _few_keys(key: ast.expr, store: Store, statements: Statements) -> bool:
    """Whether keys come from a small set: shapes, lengths, types, remainders."""
    waiting = [key]
    for name in _names(key):
        for module in statements.modules():
            if module.file == store.file:
                waiting += [
                    other.value
                    for other in module.stores.get(name, ())
                    if other.value is not None
                    and other.how == "assign"
                    and other.function is store.function
                ]
    for expression in waiting:
        for node in ast.walk(expression):
            if isinstance(node, ast.Attribute) and node.attr in (
                "shape",
                "dtype",
                "device",
                "size",
                "ndim",
            ):
                return True
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "type"
            ):
                return True
            if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv)):
                return True
    return False


def _moved_away(store: Store, statements: Statements) -> bool:
    """Whether what is stored was moved to the CPU by the program."""
    return store.value is not None and any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            node.func.attr == "cpu"
            or (
                node.func.attr == "to"
                and any(isinstance(a, ast.Constant) and a.value == "cpu" for a in node.args)
            )
        )
        for node in ast.walk(store.value)
    )


def _has_remainder(expression: ast.expr) -> bool:
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
        for node in ast.walk(expression)
    )


def _names(expression: ast.expr) -> set[str]:
    found = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return found | {
        node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)
    } - {"self"}


def _short(store: Store) -> str:
    text = ast.unparse(store.statement).partition("\n")[0]
    return text if len(text) <= 60 else text[:57] + "..."
