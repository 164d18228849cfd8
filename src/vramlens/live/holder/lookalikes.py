"""Look-alikes: growth that ends by itself. Each rule gives the reason, or nothing.

What grows may be bounded (a deque with a length, a cache with a limit, a ring), emptied in its time
(an epoch's metrics), or of no weight. A rule can lower a verdict, never raise it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from vramlens.ground.verdict import Verdict
from vramlens.live.heap.objects import is_kind, length_of
from vramlens.live.holder.container_bounds import (
    Excuse,
    Growth,
    container_excuse,
    distant_bound,
    eviction_limit,
)
from vramlens.live.holder.keeper import Statements
from vramlens.live.holder.leak_class import looks_up
from vramlens.live.holder.missed_removals import key_types
from vramlens.live.leaks.leak_report import LiveLeak
from vramlens.live.source.bounds import always_holds, cut_off, length_limit, never_holds
from vramlens.live.source.expression_forms import (
    asks_for_presence,
    compares,
    constant_text,
    exclude_each_other,
    has_remainder,
    is_of_small_set,
    is_operation,
    moves_to_cpu,
)
from vramlens.live.source.expressions import (
    is_call_of,
    names_in,
    names_read,
    nodes_in,
    receiver_of,
    text_of,
)
from vramlens.live.source.source_stores import CallSite, Module, Store, read_source
from vramlens.live.source.statement_scores import is_removal
from vramlens.live.source.stored_values import is_converted
from vramlens.units import format_size

POSSIBLE, NONE = Verdict.POSSIBLE, Verdict.NOT_A_PROBLEM
_TINY_BYTES = 64
"""A step without a graph: PyTorch rounds each storage up to that. A million steps are 64 MB."""
_NUMBER_BYTES, _MANY_NUMBERS_BYTES = 8, 1024
"""Where storages are of one number each (a double), as many as a metric for each of 128 classes or
layers: a million steps are 1 GB, which half as long shows.
"""
_HOPS = 3
"""Assignments from what is stored back to its own name: ``new = f(self.x)``, ``out = g(new)``,
``self.x = out``; a longer way goes through a function that is not followed.
"""
_LONGEST_STATEMENT = 60
"""Characters of a statement in a sentence: a line of 80 has room for no more."""
_MOST_YOUNGER = 1.25
"""Entries for each step that left some, where all are younger than the watch: one of five steps is not
looked at. With twice as many, half of what the interpreter shows may be older.
"""
_SOME_STEPS, _MANY_STEPS = 16, 100
"""In so many steps a removal that ran, and any other, must have taken something away. Windows of 8 and
of 64 are common: below 16 the first has not been full, below 100 the second has not.
"""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What rules look at.

    Attributes:
        growth: what grows.
        store: the statement that fills it.
        others: all statements under its names.
        statements: the user's source.
    """

    growth: Growth
    store: Store
    others: tuple[Store, ...]
    statements: Statements

    def stores_of(self, name: str) -> Iterator[Store]:
        """Yields the statements of the same file that store under a name."""
        for module in self.statements.modules():
            if module.file == self.store.file:
                yield from module.stores.get(name, ())


def gate(statements: Statements, growth: Growth) -> Excuse | None:
    """The verdict that growth is lowered to, and why; None where nothing speaks against a leak.

    A bound that lets too much come is no excuse.
    """
    if distant_bound(growth):
        return None
    excuse = container_excuse(growth)
    if excuse is not None:
        return excuse
    if growth.keeper is not None and growth.store is not None:
        evidence = _Evidence(growth, growth.store, growth.keeper.others, statements)
        excuse = _excuse_in_source(evidence)
        if excuse is not None:
            return excuse
    if growth.is_remade and (growth.store is None or not made_of_itself(growth.store)):
        return (
            POSSIBLE,
            "nothing in it comes from the step before: its inputs may be getting larger",
        )
    return None


def _excuse_in_source(evidence: _Evidence) -> Excuse | None:
    """What the source says against a leak; None where it says nothing."""
    outgrown: Excuse | None = None
    for verdict, rule in _RULES:
        reason = rule(evidence)
        if not reason:
            continue
        contrast = _outgrown_text(evidence) if rule is _emptied else ""
        if not contrast:
            return verdict, reason
        outgrown = Verdict.LIKELY, contrast
    return outgrown


def _outgrown_text(evidence: _Evidence) -> str:
    """How removals fall behind: they take less than comes, or nothing; empty where they may not."""
    growth = evidence.growth
    removals = list(_removals(evidence))
    mismatches = [key_types(growth.container, removal) for removal in removals]
    if all(mismatches):
        line, text = removals[0].line, _short(removals[0])
        return (
            f"0 of the removals at line {line} in {growth.steps:,} steps took something out:"
            f" {text}; {mismatches[0]}"
        )
    if not _outgrows_removals(evidence):
        return ""
    contrast = "more comes than goes" if growth.is_rising else "none of it went"
    return f"{_emptied(evidence)}, but {contrast}"


def are_numbers(leak: LiveLeak) -> str:
    """The reason why what a statement keeps in each step is of no weight; empty where it is."""
    if leak.nodes or not leak.storages:
        return ""
    mean_bytes = leak.bytes / leak.storages
    most_bytes = _MANY_NUMBERS_BYTES if mean_bytes <= _NUMBER_BYTES else _TINY_BYTES
    if leak.bytes_per_step > most_bytes:
        return ""
    return f"{format_size(leak.bytes_per_step)} per step without a graph: single numbers"


def made_of_itself(store: Store) -> bool:
    """Whether what is stored is made from what was there, also by way of variables: ``y =
    cat((self.x, new))``. ``x = x.detach()`` is as large as before: other statements decide.
    """
    module = read_source(store.file)
    if store.refers_to_itself:
        elsewhere = _elsewhere(store, module)
        return not elsewhere or any(map(made_of_itself, elsewhere))
    names = {store.name, *map(constant_text, store.arguments)}
    stores = {} if module is None else module.stores
    expressions = store.stored_expressions
    for _ in range(_HOPS):
        pairs = list(chain.from_iterable(map(names_in, expressions)))
        if any(_is_that_name(base, name, store, names) for base, name in pairs):
            return True
        assigned = (stores.get(name, []) for base, name in pairs if not base)
        expressions = _values_beside(store, chain.from_iterable(assigned))
    return False


def _elsewhere(store: Store, module: Module | None) -> list[Store]:
    """The other statements that make anew what a statement only converts."""
    if module is None or not is_converted(store):
        return []
    return [
        other
        for other in module.stores.get(store.name, ())
        if other.line != store.line and other.base == store.base and not is_converted(other)
    ]


def _is_that_name(base: str, name: str, store: Store, names: set[str]) -> bool:
    return name in names and (name != store.name or bool(base) == bool(store.base))


def _values_beside(store: Store, candidates: Iterable[Store]) -> tuple[ast.expr, ...]:
    """What assignments in the same function give."""
    values = (other.value for other in candidates if other.assigns_beside(store))
    return tuple(filter(None, values))


def _only_replaces(evidence: _Evidence) -> str:
    """A list is only written to at places that it has."""
    store = evidence.store
    if not is_kind(evidence.growth.container, list) or store.how != "item":
        return ""
    if isinstance(store.key, ast.Slice) or store.keys or any(map(_lengthens, evidence.others)):
        return ""
    return f"a list that is written by index does not get longer (line {store.line})"


def _lengthens(store: Store) -> bool:
    is_insertion = store.method in ("append", "extend", "insert")
    return is_insertion or store.how == "add" or store.refers_to_itself


def _written_anew(evidence: _Evidence) -> str:
    """``if ...: x.append(new)``, ``else: x[i] = new``."""
    store = evidence.store
    for other in evidence.others:
        if other.how != "item" or other.function is not store.function:
            continue
        if exclude_each_other(store.guards, other.guards):
            return f"line {other.line} overwrites it otherwise"
    return ""


def _cut_off(evidence: _Evidence) -> str:
    """``x = (x + [new])[-n:]``, and ``del x[:-n]`` wherever something was put there."""
    store = evidence.store
    cut = cut_off(store)
    if cut:
        return f"it is cut to length each time: {cut} (line {store.line})"
    cuts = (other for other in evidence.others if _cuts_each_time(other, store))
    cutting = next(cuts, None)
    if cutting is None:
        return ""
    return f"it is cut to length each time: {_short(cutting)} (line {cutting.line})"


def _cuts_each_time(other: Store, store: Store) -> bool:
    is_slice = other.how == "delete" and isinstance(other.key, ast.Slice)
    is_beside = other.function is store.function and other.loops >= store.loops
    return is_slice and is_beside and set(other.guards) <= set(store.guards)


def _evicted(evidence: _Evidence) -> str:
    """``if len(x) > n: x.pop(...)``: a bound, whatever the entries are."""
    for other in evidence.others:
        limit = eviction_limit(other, evidence.growth)
        if limit is not None:
            return f"line {other.line} takes away what is more than {limit:,}: {_short(other)}"
    return ""


def _ring(evidence: _Evidence) -> str:
    """``ring[i % n] = x``, also where the remainder is taken elsewhere."""
    store = evidence.store
    if store.how != "item" or store.key is None:
        return ""
    if has_remainder(store.key):
        return "a ring buffer: its index is a remainder (%)"
    for name in _names(store.key):
        for other in evidence.stores_of(name):
            if other.value is not None and has_remainder(other.value):
                return f"a ring buffer: {name} is a remainder (%, line {other.line})"
            if _begins_anew(other, store):
                return f"a ring buffer: {name} starts over (line {other.line})"
    return ""


def _begins_anew(index: Store, store: Store) -> bool:
    """``if i == n: i = 0``, where things are stored."""
    is_number = isinstance(index.value, ast.Constant) and type(index.value.value) is int
    if not is_number or not index.assigns_beside(store):
        return False
    comparisons = (node for node in nodes_in(index.guards) if isinstance(node, ast.Compare))
    return any(name == index.name for node in comparisons for _, name in names_in(node))


def _guarded(evidence: _Evidence) -> str:
    """``if len(x) < n: x.append(...)``, ``if len(x) == n: return``."""
    store = evidence.store
    for guard in store.guards:
        if not _measures(guard, store):
            continue
        is_crossed = any(isinstance(node, (ast.Eq, ast.NotEq)) for node in ast.walk(guard))
        if is_crossed or not always_holds(guard, store, evidence.growth.holder):
            return f"it grows only as long as {ast.unparse(guard)} holds (line {store.line})"
    return ""


def _flagged(evidence: _Evidence) -> str:
    """``if not self.full: x.append(...)``, where ``full`` is set once ``x`` is long enough."""
    store = evidence.store
    module = read_source(store.file)
    if module is None:
        return ""
    for base, name in chain.from_iterable(map(names_in, store.guards)):
        for setter in module.stores.get(name, ()):
            if bool(setter.base) == bool(base) and _is_set_by_length(setter, store):
                return f"it grows only until {name} is set (line {setter.line})"
    return ""


def _is_set_by_length(setter: Store, store: Store) -> bool:
    if setter.how != "assign" or setter.value is None:
        return False
    return any(_measures(part, store) for part in (*setter.guards, setter.value))


def _measures(expression: ast.expr, store: Store) -> bool:
    """Whether an expression compares the length of what is stored to."""
    comparisons = (node for node in ast.walk(expression) if isinstance(node, ast.Compare))
    sides = (side for node in comparisons for side in (node.left, *node.comparators))
    return any(_is_length(side, store) for side in sides)


def _is_length(expression: ast.expr, store: Store) -> bool:
    """``len(x)``; of an object, its own ``__len__``."""
    if not isinstance(expression, ast.Call):
        return False
    if text_of(expression.func) == f"{store.base}.__len__":
        return True
    if text_of(expression.func) != "len" or not expression.args:
        return False
    measured = expression.args[0]
    receiver = receiver_of(measured)
    return receiver is not None and (receiver[0] == store.name or text_of(measured) == store.base)


def _emptied(evidence: _Evidence) -> str:
    """A statement that takes things away again, and that runs some time."""
    if evidence.growth.is_graph:
        return ""
    removal = next(_removals(evidence), None)
    return "" if removal is None else _emptied_text(removal)


def emptied_by(statements: Statements, growth: Growth) -> str:
    """The statement that takes all away again and again; empty where none does."""
    if growth.keeper is None or growth.store is None:
        return ""
    removals = _removals(_Evidence(growth, growth.store, growth.keeper.others, statements))
    clearing = next((removal for removal in removals if not _takes_one(removal)), None)
    return "" if clearing is None else _emptied_text(clearing)


def _emptied_text(removal: Store) -> str:
    return f"line {removal.line} empties it: {_short(removal)}"


def _removals(evidence: _Evidence) -> Iterator[Store]:
    """Yields the statements that can take things away again and again."""
    for other in evidence.others:
        is_removal_of_it = is_removal(other) and not _is_first_value(other, evidence.store)
        if is_removal_of_it and _takes_from_it(other, evidence) and _runs(other, evidence):
            yield other


def _outgrows_removals(evidence: _Evidence) -> bool:
    """Whether it grew all the time though entries were taken away, or none was in many steps."""
    growth = evidence.growth
    if growth.is_backlog:
        return True
    removals = list(_removals(evidence))
    if not all(map(_takes_one, removals)):
        return False
    have_run = all(_has_run(removal, evidence) for removal in removals)
    if growth.is_rising and have_run:
        return True
    if any(_drains(removal, evidence.store) for removal in removals):
        return False
    return growth.whole_steps >= (_SOME_STEPS if have_run else _MANY_STEPS)


def _has_run(removal: Store, evidence: _Evidence) -> bool:
    """Whether a removal was seen to run since the watch began: by its line, or where nothing is
    older than the watch by what the interpreter shows of all time.
    """
    growth, statements = evidence.growth, evidence.statements
    if statements.was_seen_running(removal):
        return True
    length = length_of(growth.container) or 0
    is_younger = length <= _MOST_YOUNGER * growth.steps + 2
    return is_younger and statements.has_run_often(removal)


def _takes_by_age(removal: Store) -> bool:
    """``x.pop(step - 100, None)``: what is so old."""
    keys = filter(None, (removal.key, *removal.arguments))
    return any(is_operation(node, ast.Sub) for node in nodes_in(keys))


def _takes_one(removal: Store) -> bool:
    """Whether a removal takes one entry, which is not always the one of a certain age."""
    is_of_one = removal.how == "delete" or (removal.how == "call" and removal.method != "clear")
    return is_of_one and not _takes_by_age(removal)


def _drains(removal: Store, store: Store) -> bool:
    """Whether a removal is in a loop of its own: what it takes may be all, once in a long time."""
    loops_around = store.loops if removal.function is store.function else 0
    return removal.loops > loops_around


def _takes_from_it(removal: Store, evidence: _Evidence) -> bool:
    if removal is evidence.store:
        return False
    is_queue = evidence.store.method in ("put", "put_nowait")
    return is_queue or removal.method not in ("get", "get_nowait")


def _is_first_value(removal: Store, store: Store) -> bool:
    """Whether an assignment makes the container, instead of emptying it."""
    if removal.how != "assign":
        return False
    makes_variable = not removal.base and not _encloses(removal, store)
    return makes_variable or any(map(asks_for_presence, removal.guards))  # at its first use


def _runs(removal: Store, evidence: _Evidence) -> bool:
    """Whether a statement can run again and again."""
    store, statements = evidence.store, evidence.statements
    is_beside = removal.function is store.function
    if not is_beside and (not _is_called(removal, statements) or _is_past_limit(removal, evidence)):
        return False
    is_awaited = _is_counted(removal) or _comes_after_loop(removal, store)
    if statements.has_passed_by(removal) and not is_awaited:
        return False
    return not (is_beside and never_holds(removal.guards, store, evidence.growth.holder))


def _comes_after_loop(removal: Store, store: Store) -> bool:
    """Whether a removal stands behind a loop that fills: its turn comes when the loop is over."""
    is_beside = removal.function is store.function
    return is_beside and removal.loops < store.loops and removal.line > store.line


def _encloses(other: Store, store: Store) -> bool:
    """Whether an assignment is in an outer loop of what fills."""
    is_outside = 0 < other.loops < store.loops and other.line < store.line
    return is_outside and other.function is store.function


def _is_called(store: Store, statements: Statements) -> bool:
    last = store.function.name.rpartition(".")[2]
    if store.function.node is None or last == "<lambda>" or _is_called_by_framework(last):
        return True
    return any(_calls_of(store, statements))


def _calls_of(store: Store, statements: Statements) -> Iterator[CallSite]:
    """Yields the calls of the function that a statement is in, from other functions."""
    owner = store.function.owner.rpartition(".")[2]
    for module in statements.modules():
        if module.file == store.file or module.mentions(owner):
            for site in module.calls.get(store.function.name.rpartition(".")[2], ()):
                if site.function is not store.function:
                    yield site


def _is_past_limit(removal: Store, evidence: _Evidence) -> bool:
    """Whether a removal's function is called only at a length that the container has long passed:
    ``if len(x) == 25: flush()``, where entries come two at a time.
    """
    growth = evidence.growth
    limits = [
        length_limit(site.guards, evidence.store, growth.holder)
        for site in _calls_of(removal, evidence.statements)
    ]
    length = length_of(growth.container) or 0
    return bool(limits) and all(limit is not None and length > 2 * limit + 1 for limit in limits)


def _is_called_by_framework(method: str) -> bool:
    return method.startswith("on_") or "epoch" in method


def _is_counted(store: Store) -> bool:
    """Whether a statement stands under a condition that a number decides: a length, a step."""
    order = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return any(
        compares(node, order) or is_call_of(node, "len") or is_operation(node, ast.Mod)
        for node in nodes_in(store.guards)
    )


def _few_keys(evidence: _Evidence) -> str:
    """A cache whose keys come from a small set: shapes, lengths, types, remainders."""
    store = evidence.store
    if store.key is None or not looks_up(store):
        return ""
    assigned = chain.from_iterable(map(evidence.stores_of, _names(store.key)))
    expressions = (store.key, *_values_beside(store, assigned))
    if not any(map(is_of_small_set, nodes_in(expressions))):
        return ""
    return "a cache with a limited number of keys: its key is a shape or a remainder"


def _moved_away(evidence: _Evidence) -> str:
    """What is stored was moved to the CPU by the program."""
    stored = evidence.store.value
    if evidence.growth.is_graph or stored is None or not any(map(moves_to_cpu, ast.walk(stored))):
        return ""
    return "it is moved to host memory on purpose and grows there"


def _names(expression: ast.expr) -> list[str]:
    return sorted(names_read(expression) - {"self"})


def _short(store: Store) -> str:
    text = ast.unparse(store.statement).partition("\n")[0]
    return text if len(text) <= _LONGEST_STATEMENT else text[: _LONGEST_STATEMENT - 3] + "..."


_RULES: tuple[tuple[Verdict, Callable[[_Evidence], str]], ...] = (
    (NONE, _ring),
    (NONE, _guarded),
    (NONE, _flagged),
    (NONE, _written_anew),
    (NONE, _cut_off),
    (NONE, _evicted),
    (POSSIBLE, _emptied),
    (NONE, _only_replaces),
    (POSSIBLE, _few_keys),
    (POSSIBLE, _moved_away),
)
"""The rules in the order in which they are asked: the first reason counts."""
