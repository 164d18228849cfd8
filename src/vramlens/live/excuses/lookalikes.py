"""Look-alikes: growth that ends by itself. Each rule gives the reason, or nothing.

What grows may be bounded (a deque with a length, a cache with a limit, a ring), emptied in its time
(an epoch's metrics), or of no weight. A rule can lower a verdict, never raise it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from itertools import chain, islice

from vramlens.ground.verdict import Verdict
from vramlens.live.excuses.container_bounds import (
    Excuse,
    Growth,
    container_excuse,
    distant_bound,
    eviction_limit,
    metered_bound,
)
from vramlens.live.excuses.missed_removals import missed_text
from vramlens.live.excuses.removals import (
    Evidence,
    abandoned_text,
    emptied_text,
    expired_text,
    falls_behind,
    has_expired,
    outgrown_text,
    outgrows_removals,
    removal_text,
    removals_of,
    short_text,
    takes_one,
)
from vramlens.live.heap.objects import dict_items, is_kind, length_of
from vramlens.live.holder.keeper import Statements
from vramlens.live.holder.leak_class import looks_up
from vramlens.live.source.bounds import always_holds, cut_off
from vramlens.live.source.expression_forms import (
    asks_for_presence,
    constant_text,
    exclude_each_other,
    has_remainder,
    is_of_small_set,
    modulus_of,
    moves_to_cpu,
)
from vramlens.live.source.expressions import (
    names_in,
    names_read,
    nodes_in,
    receiver_of,
    text_of,
)
from vramlens.live.source.source_stores import Module, Store, read_source
from vramlens.live.source.stored_values import is_converted

POSSIBLE, NONE = Verdict.POSSIBLE, Verdict.NOT_A_PROBLEM
_HOPS = 3
"""Assignments from what is stored back to its own name: ``new = f(self.x)``, ``out = g(new)``,
``self.x = out``; a longer way goes through a function that is not followed.
"""
_DISPLAYS = (ast.List, ast.ListComp, ast.Set, ast.SetComp, ast.Dict, ast.DictComp)
_ROUND_STEPS = 32
"""Watched, in which a dataset may be gone through for the first time. With half as many, an attach in the
middle of it would find a leak; with twice as many, a cache of 40 requests would be none.
"""
_MOST_SAMPLES = 1 << 24
"""Of a dataset, by number, which a cache may hold all: ImageNet-21k has 14 million. Seeds and hashes are
larger.
"""
_SLOWED = 0.2
"""Of a cache, that came in the second half: as many in each step make a half of it. With a tenth, a cache
that is four fifths full would be a leak; with a third, requests that come more seldom would be none.
"""
_FAR_MORE = 2
"""Times as many steps that left something as there are entries."""
_MOST_KEYS = 100
"""Whose types are read: all of a few, and enough to see two types."""


def gate(statements: Statements, growth: Growth) -> Excuse | None:
    """The verdict that growth is lowered to, and why; None where nothing speaks against a leak.

    A bound that lets too much come does not count, nor one of a few entries that lead to all before them.
    """
    if distant_bound(growth):
        return None
    excuse = container_excuse(growth)
    if excuse is not None and not _leads_to_many(growth):
        return excuse
    if growth.keeper is not None and growth.store is not None:
        evidence = Evidence(growth, growth.store, growth.keeper.others, statements)
        excuse = _excuse_in_source(evidence)
        if excuse is not None:
            return excuse
    if growth.is_turning:
        return POSSIBLE, "as much goes as comes: it may be full"
    if growth.is_remade and (growth.store is None or not made_of_itself(growth.store)):
        return (
            POSSIBLE,
            "nothing in it comes from the step before: its inputs may be getting larger",
        )
    return None


def _leads_to_many(growth: Growth) -> bool:
    """Whether far more is there than a container has entries, as each leads to the one before it."""
    entries = length_of(growth.container)
    return growth.is_linked and entries is not None and growth.steps > _FAR_MORE * entries


def _excuse_in_source(evidence: Evidence) -> Excuse | None:
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


def _outgrown_text(evidence: Evidence) -> str:
    """How removals fall behind: they take less than comes, or nothing; empty where they may not."""
    growth = evidence.growth
    removals = list(removals_of(evidence))
    misses = [missed_text(growth, removal, evidence.statements) for removal in removals]
    if all(misses):
        line, text = removals[0].line, short_text(removals[0])
        return (
            f"0 of the removals at line {line} in {growth.steps:,} steps took something out:"
            f" {text}; {misses[0]}"
        )
    lasting = [removal for removal in removals if not has_expired(removal, evidence)]
    if not lasting:
        return expired_text(removals[0], evidence)
    if not outgrows_removals(lasting, evidence):
        return abandoned_text(lasting, evidence)
    return outgrown_text(removals[0], evidence)


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


def _only_replaces(evidence: Evidence) -> str:
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


def _written_anew(evidence: Evidence) -> str:
    """``if ...: x.append(new)``, ``else: x[i] = new``; not where it depends on whether the key is
    there: then one of the two makes an entry for each new key.
    """
    store = evidence.store
    for other in evidence.others:
        if other.how != "item" or other.function is not store.function:
            continue
        apart = [guard for guard in store.guards if guard not in other.guards]
        if all(always_holds(guard, store, evidence.growth.holder) for guard in apart):
            continue  # it is never otherwise
        if exclude_each_other(store.guards, other.guards) and not any(
            map(asks_for_presence, apart)
        ):
            return f"line {other.line} overwrites it otherwise"
    return ""


def _cut_off(evidence: Evidence) -> str:
    """``x = (x + [new])[-n:]``, and ``del x[:-n]`` wherever something was put there. The graph of
    a tensor that is cut stays whole.
    """
    if evidence.growth.is_graph and evidence.statements.is_tensor(evidence.growth.container):
        return ""
    store = evidence.store
    cut = cut_off(store)
    if cut:
        return f"it is cut to length each time: {cut} (line {store.line})"
    cuts = (other for other in evidence.others if _cuts_each_time(other, store))
    cutting = next(cuts, None)
    if cutting is None:
        return ""
    return f"it is cut to length each time: {short_text(cutting)} (line {cutting.line})"


def _cuts_each_time(other: Store, store: Store) -> bool:
    is_slice = other.how == "delete" and isinstance(other.key, ast.Slice)
    is_beside = other.function is store.function and other.loops >= store.loops
    return is_slice and is_beside and set(other.guards) <= set(store.guards)


def _evicted(evidence: Evidence) -> str:
    """``if len(x) > n: x.pop(...)``: a bound, whatever the entries are."""
    for other in evidence.others:
        limit = eviction_limit(other, evidence.growth)
        if limit is not None:
            return f"line {other.line} takes away what is more than {limit:,}: {short_text(other)}"
    return ""


def _metered(evidence: Evidence) -> str:
    """``while self.bytes > self.limit: x.popitem()``, ``if n <= self.room: x.append(...)``: a
    bound by what the program counts beside it, whatever it has counted so far.
    """
    metered = metered_bound(evidence.growth)
    if metered is None:
        return ""
    statement, meter = metered
    if statement is evidence.store:
        return f"it grows only as long as {meter.condition} holds (line {statement.line})"
    return f"line {statement.line} takes away while {meter.condition}: {short_text(statement)}"


def _ring(evidence: Evidence) -> str:
    """``ring[i % n] = x``, also where the remainder is taken elsewhere; of a key of several parts
    each one has to turn.
    """
    store = evidence.store
    if store.how != "item" or store.key is None:
        return ""
    parts = _changing_parts(store.key)
    size = modulus_of(parts[0]) if len(parts) == 1 else None
    if size is not None:
        return f"holds at most {size:,} entries: its index is taken modulo {size:,}"
    turns = [_turn_of(part, evidence) for part in parts]
    return f"a ring buffer: {turns[0]}" if turns and all(turns) else ""


def _turn_of(index: ast.expr, evidence: Evidence) -> str:
    """Why an index has few values that come again and again; empty where nothing says so."""
    if has_remainder(index):
        return "its index is a remainder (%)"
    for name in _names(index):
        for other in evidence.stores_of(name):
            if other.value is not None and all(map(has_remainder, _changing_parts(other.value))):
                return f"{name} is a remainder (%, line {other.line})"
            if _begins_anew(other, evidence.store):
                return f"{name} starts over (line {other.line})"
    return ""


def _changing_parts(key: ast.expr) -> list[ast.expr]:
    """The parts of a tuple that are no constants; of anything else itself."""
    if not isinstance(key, ast.Tuple):
        return [key]
    return [part for part in key.elts if not isinstance(part, ast.Constant)]


def _begins_anew(index: Store, store: Store) -> bool:
    """``if i == n: i = 0``, where things are stored."""
    is_number = isinstance(index.value, ast.Constant) and type(index.value.value) is int
    if not is_number or not index.assigns_beside(store):
        return False
    comparisons = (node for node in nodes_in(index.guards) if isinstance(node, ast.Compare))
    return any(name == index.name for node in comparisons for _, name in names_in(node))


def _guarded(evidence: Evidence) -> str:
    """``if len(x) < n: x.append(...)``, ``if len(x) == n: return``."""
    store = evidence.store
    for guard in store.guards:
        if not _measures(guard, store):
            continue
        is_crossed = any(isinstance(node, (ast.Eq, ast.NotEq)) for node in ast.walk(guard))
        if is_crossed or not always_holds(guard, store, evidence.growth.holder):
            return f"it grows only as long as {ast.unparse(guard)} holds (line {store.line})"
    return ""


def _flagged(evidence: Evidence) -> str:
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


def _emptied(evidence: Evidence) -> str:
    """A statement that takes things away again, and that runs some time."""
    if evidence.growth.is_graph:
        return ""
    removal = next(removals_of(evidence), None)
    return "" if removal is None else emptied_text(removal, evidence)


def falls_behind_by(statements: Statements, growth: Growth) -> str:
    """The statement that takes away what is too many, and less than comes; empty where none does."""
    if growth.keeper is None or growth.store is None:
        return ""
    return falls_behind(Evidence(growth, growth.store, growth.keeper.others, statements))


def emptied_by(statements: Statements, growth: Growth) -> str:
    """The statement that takes all away again and again; empty where none does."""
    if growth.keeper is None or growth.store is None:
        return ""
    removals = removals_of(Evidence(growth, growth.store, growth.keeper.others, statements))
    clearing = next((removal for removal in removals if not takes_one(removal)), None)
    return "" if clearing is None else removal_text(clearing, growth.store)


def _few_keys(evidence: Evidence) -> str:
    """A cache whose keys come from a small set: shapes, lengths, types, remainders."""
    store = evidence.store
    if store.key is None or not looks_up(store):
        return ""
    assigned = chain.from_iterable(map(evidence.stores_of, _names(store.key)))
    expressions = (store.key, *_values_beside(store, assigned))
    if not any(map(is_of_small_set, nodes_in(expressions))):
        return ""
    return "a cache with a limited number of keys: its key is a shape or a remainder"


def _by_number(evidence: Evidence) -> str:
    """A cache by number, as of a dataset's samples: in its first steps each number is new. Where
    the program takes numbers out, they are done with.
    """
    growth, store = evidence.growth, evidence.store
    if store.key is None or growth.steps >= _ROUND_STEPS or not looks_up(store):
        return ""
    if any(map(takes_one, removals_of(evidence))):
        return ""
    keys = [key for key, _ in islice(dict_items(growth.container), _MOST_KEYS)]
    if not keys or any(type(key) is not int or key > _MOST_SAMPLES for key in keys):
        return ""
    return "a cache by number: in so few steps each number may be new, and come again later"


def _fills_up(evidence: Evidence) -> str:
    """A cache that misses more and more seldom: its keys come to an end."""
    growth = evidence.growth
    if not looks_up(evidence.store) or growth.late_share >= _SLOWED or growth.is_rising:
        return ""
    return (
        "a cache that fills up: of what it keeps"
        f" {growth.late_share:.0%} came in the second half of the steps"
    )


def _made_anew(evidence: Evidence) -> str:
    """``children = [...]`` in each turn, of new things and some that are older: what is there now
    never was more.
    """
    store = evidence.store
    is_made = store.how == "assign" and isinstance(store.value, _DISPLAYS)
    if not is_made or not is_kind(evidence.growth.container, list, tuple, set, dict):
        return ""
    is_filled = any(other.how not in ("assign", "delete") for other in evidence.others)
    if is_filled or not store.loops or made_of_itself(store):
        return ""
    return f"line {store.line} makes it anew each time: some of what is in it is older"


def _in_use(evidence: Evidence) -> str:
    """A table that makes an entry when it misses one, and goes on writing to those that it has."""
    store = evidence.store
    if not evidence.growth.is_in_use or store.key is None or not looks_up(store):
        return ""
    return "an entry for each new key, and older entries are still written to: state in use"


def _moved_away(evidence: Evidence) -> str:
    """What is stored was moved to the CPU by the program, to be kept as it is."""
    growth, stored = evidence.growth, evidence.store.value
    if growth.is_graph or growth.is_of_views:
        return ""
    if stored is None or not any(map(moves_to_cpu, ast.walk(stored))):
        return ""
    return "it is moved to host memory on purpose and grows there"


def _loop_variable(evidence: Evidence) -> str:
    """A loop's variable: it holds what its last turn was about."""
    store = evidence.store
    if not isinstance(store.statement, ast.For | ast.AsyncFor) or store.how != "assign":
        return ""
    return f"line {store.line} only goes through what others hold: {short_text(store)}"


def _names(expression: ast.expr) -> list[str]:
    return sorted(names_read(expression) - {"self"})


_RULES: tuple[tuple[Verdict, Callable[[Evidence], str]], ...] = (
    (NONE, _ring),
    (NONE, _guarded),
    (NONE, _flagged),
    (NONE, _written_anew),
    (NONE, _cut_off),
    (NONE, _evicted),
    (NONE, _metered),
    (POSSIBLE, _emptied),
    (NONE, _only_replaces),
    (POSSIBLE, _made_anew),
    (POSSIBLE, _few_keys),
    (POSSIBLE, _in_use),
    (POSSIBLE, _by_number),
    (POSSIBLE, _fills_up),
    (POSSIBLE, _moved_away),
    (POSSIBLE, _loop_variable),
)
"""The rules in the order in which they are asked: the first reason counts."""
