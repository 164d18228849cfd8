"""Removals: the statements that take things away again, and whether they keep up with growth."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from vramlens.ground.source_code import last_name
from vramlens.live.excuses.container_bounds import Growth
from vramlens.live.excuses.numbered_keys import keeps_nearly_all
from vramlens.live.excuses.removal_calls import calls_of, is_of_another_entry
from vramlens.live.heap.objects import length_of
from vramlens.live.holder.keeper import Statements
from vramlens.live.source.bounds import length_limit, never_holds
from vramlens.live.source.expression_forms import asks_for_presence, compares, is_operation
from vramlens.live.source.expressions import (
    has_length_of,
    is_call_of,
    is_empty,
    names_read,
    nodes_in,
    receiver_of,
)
from vramlens.live.source.source_stores import CallSite, Function, Store
from vramlens.live.source.source_tree import loop_around
from vramlens.live.source.statement_scores import ends_its_call, takes_from
from vramlens.units import counted

_LONGEST_STATEMENT = 60
"""Characters of a statement in a sentence: a line of 80 has room for no more."""
_MOST_YOUNGER = 1.25
"""Entries for each that is known to be younger than the watch, and for each step that left some, where
all are younger: one of five steps is not looked at. With twice as many, half of what the interpreter
shows may be older.
"""
_SOME_STEPS, _MANY_STEPS = 16, 100
"""In so many steps a removal that ran, and any other, must have taken something away. Windows of 8 and
of 64 are common: below 16 the first has not been full, below 100 the second has not.
"""
_NEARLY_MANY = 96
"""For a removal that waits for nothing that comes with time: a watch of 100 steps judges so many."""
_WATCHED_STEPS, _KEPT_STEPS = 64, 128
"""Instead of the many: of a store that was watched for so many and holds what came in so many, as a
process does that has run for days. A window of 100 holds no more than that.
"""
_MANY_ENTRIES = 4
"""For each call that goes on: those of one call are a few. With as many, one entry that is left would
be a leak in a server at rest.
"""
_MANY_MORE = 1.25
"""Times the steps watched, from which on those that its entries stand for are told instead."""
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "now", "utcnow")


@dataclass(frozen=True, slots=True)
class _Effect:
    """What a removal does to what it takes from, in words: ``empties it``, ``empty it``."""

    does: str
    do: str


_SHORTENS = _Effect("shortens it", "shorten it")
_TAKES_ONE = _Effect("takes an entry out", "take an entry out")
_EMPTIES = _Effect("empties it", "empty it")


@dataclass(frozen=True, slots=True)
class Evidence:
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

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys between the name that the statement stores under and what grows."""
        return () if self.growth.keeper is None else self.growth.keeper.keys

    def stores_of(self, name: str) -> Iterator[Store]:
        """Yields the statements of the same file that store under a name."""
        for module in self.statements.modules():
            if module.file == self.store.file:
                yield from module.stores.get(name, ())


def removal_text(removal: Store, store: Store) -> str:
    """The sentence about a removal that runs: one entry is not all of them.

    Args:
        store: the statement that fills it.
    """
    return f"line {removal.line} {_effect(removal, store).does}: {short_text(removal)}"


def emptied_text(removal: Store, evidence: Evidence) -> str:
    """The sentence about a removal that may have run, or never yet."""
    if _has_run(removal, evidence):
        return removal_text(removal, evidence.store)
    is_long_unseen = _is_long_unseen(removal, evidence)
    so_far = f", but was not seen to in {_steps_text(evidence.growth)}" if is_long_unseen else ""
    effect = _effect(removal, evidence.store)
    return f"line {removal.line} would {effect.do}{so_far}: {short_text(removal)}"


def outgrown_text(removal: Store, evidence: Evidence) -> str:
    """The sentence about a removal that takes less than comes, or nothing."""
    sentence = emptied_text(removal, evidence)
    if keeps_nearly_all(evidence.growth.container):
        return f"{removal_text(removal, evidence.store)}, but more comes than goes"
    if evidence.growth.is_rising:
        if _has_run(removal, evidence) and _drains(removal, evidence.store):
            sentence = f"line {removal.line} takes entries out: {short_text(removal)}"
        elif _takes_often(removal, evidence):
            sentence = removal_text(removal, evidence.store)
        return f"{sentence}, but more comes than goes"
    return sentence if _is_long_unseen(removal, evidence) else f"{sentence}, but none of it went"


def _is_long_unseen(removal: Store, evidence: Evidence) -> bool:
    return evidence.growth.kept_steps >= _MANY_STEPS and not _has_run(removal, evidence)


def _steps_text(growth: Growth) -> str:
    """``130 steps``; ``about 4,000 steps`` where it holds more than what came while watched."""
    if growth.kept_steps > _MANY_MORE * growth.span:
        return f"about {growth.kept_steps:,} steps"
    return f"{growth.span:,} steps"


def _effect(removal: Store, store: Store) -> _Effect:
    is_part = isinstance(removal.key, ast.Slice) and (removal.key.lower or removal.key.upper)
    if removal.how == "slice" or is_part:
        return _SHORTENS
    is_of_one = takes_one(removal) and not isinstance(removal.key, ast.Slice)
    return _TAKES_ONE if is_of_one and not _drains(removal, store) else _EMPTIES


def has_many_entries(growth: Growth) -> bool:
    """Whether what came first is old enough for a removal that asks whether it is there."""
    return (length_of(growth.container) or 0) >= _MANY_STEPS


def removals_of(evidence: Evidence) -> Iterator[Store]:
    """Yields the statements that can take things away again and again."""
    for other in evidence.others:
        store = evidence.store
        is_removal_of_it = takes_from(other, store) and not _is_first_value(other, store)
        if not is_removal_of_it or other is store or not _runs(other, evidence):
            continue
        if not is_of_another_entry(other, evidence.keys, evidence.statements):
            yield other


def outgrows_removals(removals: Sequence[Store], evidence: Evidence) -> bool:
    """Whether it grew all the time though entries were taken away, or none was in many steps."""
    growth = evidence.growth
    if growth.is_backlog:
        return True
    if not all(map(takes_one, removals)):
        return False
    have_run = all(_has_run(removal, evidence) for removal in removals)
    if growth.is_rising and (
        have_run or all(_takes_often(removal, evidence) for removal in removals)
    ):
        return True
    if any(_may_drain(removal, evidence) for removal in removals):
        takes_nothing = have_run and all(map(_may_take_nothing, removals))
        return takes_nothing and growth.whole_steps >= _MANY_STEPS
    if keeps_nearly_all(growth.container):
        return True
    if have_run:
        return growth.whole_steps >= _SOME_STEPS
    has_long_grown = growth.whole_steps >= _WATCHED_STEPS and growth.kept_steps >= _KEPT_STEPS
    return growth.whole_steps >= _MANY_STEPS or has_long_grown


def has_expired(removal: Store, evidence: Evidence) -> bool:
    """Whether a removal of all there is has not run in many steps, and waits for nothing that comes
    with time: what it would have taken is there.
    """
    growth = evidence.growth
    takes_all = removal.method == "clear" or (removal.how == "assign" and is_empty(removal.value))
    is_old = growth.steps >= _SOME_STEPS and growth.kept_steps >= _NEARLY_MANY
    return takes_all and is_old and not _is_awaited(removal, evidence)


def expired_text(removal: Store, evidence: Evidence) -> str:
    """The sentence about a removal that has not run in many steps."""
    return (
        f"line {removal.line} would empty it, but has not in {_steps_text(evidence.growth)}:"
        f" {short_text(removal)}"
    )


def abandoned_text(removals: Sequence[Store], evidence: Evidence) -> str:
    """The sentence about entries whose calls were to take them out, and have ended without it;
    empty where there are not many more entries than calls that go on.
    """
    store, entries = evidence.store, length_of(evidence.growth.container) or 0
    if not all(ends_its_call(removal, store) for removal in removals):
        return ""
    calls = evidence.statements.calls_going_on(store.file, store.function)
    if entries < _MANY_ENTRIES * max(calls, 1):
        return ""
    name = store.function.name.rpartition(".")[2]
    return (
        f"line {removals[0].line} takes an entry out as its call of {name}() ends, but there are"
        f" {entries:,} entries, and {counted(calls, 'call goes', 'calls go')} on"
    )


def _is_awaited(removal: Store, evidence: Evidence) -> bool:
    """Whether the turn of a removal comes with time: at a length, a step, an hour, the end of a
    loop.
    """
    if removal.function is evidence.store.function:
        is_counted = _come_with_time(removal.guards, removal.function, evidence)
        return is_counted or not removal.guards or _comes_after_loop(removal, evidence.store)
    if _is_called_by_framework(removal.function.name.rpartition(".")[2]):
        return True
    sites = list(calls_of(removal, evidence.statements))
    return not sites or any(_site_is_awaited(file, site, evidence) for file, site in sites)


def _site_is_awaited(file: str, site: CallSite, evidence: Evidence) -> bool:
    """Whether the turn of a call comes with time, or nobody knows that it was ever asked for."""
    function = site.function
    is_beside = function is evidence.store.function
    is_asked_for = is_beside or evidence.statements.function_has_run(file, function)
    is_plain = not site.guards or not is_asked_for
    return is_plain or _come_with_time(site.guards, function, evidence)


def _come_with_time(guards: Sequence[ast.expr], function: Function, evidence: Evidence) -> bool:
    """Whether conditions ask for a length, a remainder, an age, or what the program counts."""
    nodes = list(nodes_in(guards))
    if any(is_call_of(node, "len") or is_operation(node, ast.Mod) for node in nodes):
        return True
    comparisons = (node for node in nodes if isinstance(node, ast.Compare))
    sides = chain.from_iterable((node.left, *node.comparators) for node in comparisons)
    return any(_goes_up(side, function, evidence) for side in sides)


def _goes_up(side: ast.expr, function: Function, evidence: Evidence) -> bool:
    """Whether a number goes up by itself: a clock, a counter, a loop's or the caller's."""
    match side:
        case ast.BinOp(left=first, right=second):
            return any(_goes_up(part, function, evidence) for part in (first, second))
        case ast.Call():
            return _reads_clock(side)
        case ast.Name(id=name) if name in function.parameters:
            return True
    receiver = receiver_of(side)
    stores = () if receiver is None else evidence.stores_of(receiver[0])
    return any(
        store.how == "add"
        or (store.how == "assign" and (store.value is None or _reads_clock(store.value)))
        for store in stores
    )


def _reads_clock(value: ast.expr) -> bool:
    """``time.time()``, ``monotonic() - 60``."""
    calls = (node for node in ast.walk(value) if isinstance(node, ast.Call))
    return any(last_name(call.func) in _CLOCKS for call in calls)


def _has_run(removal: Store, evidence: Evidence) -> bool:
    """Whether a removal was seen to run since the watch began: by its line, or where nothing is
    older than the watch by what the interpreter shows of all time.
    """
    growth, statements = evidence.growth, evidence.statements
    if statements.was_seen_running(removal):
        return True
    length = length_of(growth.container) or 0
    is_younger = length <= _MOST_YOUNGER * max(growth.steps, growth.young_entries) + 2
    return is_younger and statements.has_run_often(removal)


def _takes_often(removal: Store, evidence: Evidence) -> bool:
    """Whether a removal of one entry has run often, before the watch perhaps: not one that empties
    it in a loop, whose turn may come again.
    """
    is_single = not _may_drain(removal, evidence)
    return is_single and evidence.statements.has_run_often(removal)


def _takes_by_age(removal: Store) -> bool:
    """``x.pop(step - 100, None)``: what is so old."""
    keys = filter(None, (removal.key, *removal.arguments))
    return any(is_operation(node, ast.Sub) for node in nodes_in(keys))


def takes_one(removal: Store) -> bool:
    """Whether a removal takes one entry, which is not always the one of a certain age."""
    is_of_one = removal.how == "delete" or (removal.how == "call" and removal.method != "clear")
    return is_of_one and not _takes_by_age(removal)


def _may_take_nothing(removal: Store) -> bool:
    """``x.pop(key, None)``: runs where the key is not there, too."""
    has_default = removal.method == "pop" and len(removal.arguments) > 1
    return has_default or removal.method == "discard"


def _may_drain(removal: Store, evidence: Evidence) -> bool:
    """Whether a removal in a loop of its own may take all, once in a long time: always where it
    takes what is too old, which comes with time.
    """
    store = evidence.store
    return _drains(removal, store) or (
        _makes_room(removal, store)
        and _come_with_time(_own_guards(removal, store), removal.function, evidence)
    )


def _drains(removal: Store, store: Store) -> bool:
    """Whether a removal is in a loop of its own, and not to make room for one entry."""
    return _has_loop_of_its_own(removal, store) and not _makes_room(removal, store)


def _has_loop_of_its_own(removal: Store, store: Store) -> bool:
    """Whether a removal is in a loop in which nothing is put there."""
    if removal.function is store.function:
        return removal.loops > store.loops
    return removal.loops > 0 and not _is_loop_of_both(removal, store)


def _is_loop_of_both(removal: Store, store: Store) -> bool:
    """Whether each turn of a removal's loop, which does not go over what is there, calls the function
    that puts something there.
    """
    loop = loop_around(removal.file, removal.line)
    if loop is None or store.name in names_read(
        loop.test if isinstance(loop, ast.While) else loop.iter
    ):
        return False
    name = store.function.name.rpartition(".")[2]
    calls = (node for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any(last_name(call.func) == name for call in calls)


def _makes_room(removal: Store, store: Store) -> bool:
    """``self.frames.append(frame)``, ``while self.size() > self.most: self.frames.popleft()``: each
    time one is put there, as many are taken out as are too many.
    """
    if removal.function is not store.function or removal.loops != store.loops + 1:
        return False
    own_guards = _own_guards(removal, store)
    return len(own_guards) == 1 and _is_limit(own_guards[0])


def _own_guards(removal: Store, store: Store) -> list[ast.expr]:
    return [guard for guard in removal.guards if guard not in store.guards]


def _is_limit(guard: ast.expr) -> bool:
    """Whether a condition compares with something else than nothing; limits on lengths are read
    elsewhere.
    """
    if any(is_call_of(node, "len") for node in ast.walk(guard)):
        return False
    match guard:
        case ast.Compare(comparators=[ast.Constant(value=value)]):
            return bool(value)
        case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]):
            return True
    return False


def _is_first_value(removal: Store, store: Store) -> bool:
    """Whether an assignment makes the container, instead of emptying it."""
    if removal.how != "assign":
        return False
    makes_variable = not removal.base and not _encloses(removal, store)
    return makes_variable or any(map(asks_for_presence, removal.guards))  # at its first use


def _runs(removal: Store, evidence: Evidence) -> bool:
    """Whether a statement can run again and again."""
    store, statements = evidence.store, evidence.statements
    is_beside = removal.function is store.function
    if not is_beside and (not _is_called(removal, statements) or _is_past_limit(removal, evidence)):
        return False
    is_awaited = (
        _is_counted(removal)
        or _comes_after_loop(removal, store)
        or _asks_for_what_is_to_come(removal, evidence.growth)
    )
    if statements.has_passed_by(removal) and not is_awaited:
        return False
    if _has_missed_its_length(removal, evidence):
        return False
    return not (is_beside and never_holds(removal.guards, store, evidence.growth.holder))


def _has_missed_its_length(removal: Store, evidence: Evidence) -> bool:
    """``if len(x) == 8: x.clear()``, where two at a time once led past it."""
    equal_guards = tuple(guard for guard in removal.guards if compares(guard, (ast.Eq,)))
    return _is_beyond(equal_guards, evidence)


def _asks_for_what_is_to_come(removal: Store, growth: Growth) -> bool:
    """Whether a removal asks for an entry, and none may be old enough yet."""
    asks = any(compares(node, (ast.In,)) for node in nodes_in(removal.guards))
    return asks and not has_many_entries(growth)


def waits_for_keys(removal: Store) -> bool:
    """Whether a removal takes an entry of a table that has too many."""
    table = f"{removal.base}.{removal.name}" if removal.base else removal.name
    return has_length_of(removal.guards, table)


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
    return any(calls_of(store, statements))


def _is_past_limit(removal: Store, evidence: Evidence) -> bool:
    """Whether a removal's function is called only at a length that the container has long passed:
    ``if len(x) == 25: flush()``, where entries come two at a time.
    """
    sites = [site for _, site in calls_of(removal, evidence.statements)]
    return bool(sites) and all(_is_beyond(site.guards, evidence) for site in sites)


def _is_beyond(guards: tuple[ast.expr, ...], evidence: Evidence) -> bool:
    """Whether a container is more than twice as long as the length that conditions ask for."""
    growth = evidence.growth
    limit = length_limit(guards, evidence.store, growth.holder)
    return limit is not None and 0 < 2 * limit < (length_of(growth.container) or 0)


def falls_behind(evidence: Evidence) -> str:
    """``line 31 takes an entry out above 48, but it has 409``: more comes each time than goes; empty
    elsewhere.
    """
    store, growth = evidence.store, evidence.growth
    for removal in removals_of(evidence):
        is_of_one = takes_one(removal) and not _has_loop_of_its_own(removal, store)
        if is_of_one and waits_for_keys(removal) and _is_beyond(removal.guards, evidence):
            limit = length_limit(removal.guards, store, growth.holder)
            entries = length_of(growth.container)
            return (
                f"line {removal.line} takes an entry out above {limit:,}, but it has {entries:,}:"
                f" {short_text(removal)}"
            )
    return ""


def _is_called_by_framework(method: str) -> bool:
    return method.startswith("on_") or "epoch" in method


def _is_counted(store: Store) -> bool:
    """Whether a statement stands under a condition that a number decides: a length, a step."""
    order = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return any(
        compares(node, order) or is_call_of(node, "len") or is_operation(node, ast.Mod)
        for node in nodes_in(store.guards)
    )


def short_text(store: Store) -> str:
    """A statement's first line, as long as a sentence has room for."""
    text = ast.unparse(store.statement).partition("\n")[0]
    return text if len(text) <= _LONGEST_STATEMENT else text[: _LONGEST_STATEMENT - 3] + "..."
