"""The statement that keeps something: found in the user's source by the names along a chain.

The chain says under which name the container is held (an attribute of a class, a variable of a
function, a global, a closure's variable, a parameter's default); the source says which statements
put something under that name. Statements that let things pile up come before those that merely set;
in the class, function or module that owns the name before elsewhere.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vramlens.ground.place import Place
from vramlens.ground.source_code import last_line_of
from vramlens.live.heap.objects import (
    attributes_of,
    class_module,
    class_name,
    class_path,
    code_of,
    dict_items,
    elements_of,
    is_kind,
    is_users,
    is_users_class,
    line_of_report,
)
from vramlens.live.holder.chain import Chain
from vramlens.live.holder.filed_objects import (
    filing_store,
    waiting_coroutine,
    waiting_store,
)
from vramlens.live.holder.linked_fields import field_with, given_by
from vramlens.live.holder.registrations import (
    caching_line,
    calls_with,
    hook_registrations,
    is_hook_name,
    registrations,
)
from vramlens.live.source.expressions import is_empty
from vramlens.live.source.name_candidates import candidate_stores
from vramlens.live.source.searched_names import NAMED, SearchedName, searched_names
from vramlens.live.source.source_stores import CallSite, Function, Module, Store, read_source
from vramlens.live.source.statement_scores import (
    class_around,
    is_among,
    likeness,
    strength,
    value_made_at,
)
from vramlens.live.source.users_source import UsersSource

_LONGEST_STATEMENT = 20
"""Lines of a statement that count as run where one of them ran: a ``with`` or ``if`` is not its body,
and a call with its arguments one a line is rarely longer.
"""
FEWEST_NODES = 3
"""Of a linked list: two of a class are a pair, like a parent and its child."""
_SETTING_UP = ("__init__", "reset", "setup", "clear")
_GOOD_SCORE, _MUCH_BETTER = 70, 40
"""Points (``statement_scores``) at which no name further off is asked, and by which one further off
must be better. With half, a mere mention would end the search; with twice as many, an alias far off
would win over the store, and no second name would ever be better.
"""
_LONGEST_SOURCE = 32
"""Characters of source to which a method can be added."""
_DETACHES = ("detach", "item", "cpu", "tolist", "numpy")
_MAKING = 30
"""Points less for a statement that puts the container itself there: half of what storing is worth."""
_ONCE = 15
"""Points less for a statement that has run once and keeps many: more than a name further off costs."""
_CALL_SCORE, _REGISTRATION_SCORE, _DECORATOR_SCORE = 100, 60, 200
"""Points of a call that hands it over (a good store's), of a registration (above a mention, and its
own points come to it), and of a cache's decorator (which nothing in its function outdoes).
"""


@dataclass(frozen=True, slots=True)
class Keeper:
    """A statement that keeps.

    Attributes:
        store: the statement; None where only a line is known.
        file, line, function: where.
        others: all statements found under the same names, best first.
        score: how well it fits.
        keys: between the name that it stores under and what it fills, outermost first.
    """

    file: str
    line: int
    function: str
    store: Store | None = None
    others: tuple[Store, ...] = ()
    score: int = 0
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Example:
    """An example of what is kept.

    Attributes:
        kept: it.
        is_graph: whether what is kept is an autograd graph: then nothing detached explains it.
        made: the line that asks for the memory, where it is known.
    """

    kept: Any
    is_graph: bool
    made: Place | None


class Statements(UsersSource):
    """Finds statements in the user's files."""

    def keeper(
        self,
        chain: Chain,
        kept: Any,
        *,
        is_graph: bool,
        made: Place | None = None,
        below: Sequence[Any] = (),
    ) -> Keeper | None:
        """The statement that puts things into the last object of a chain.

        Args:
            kept: an example of what it keeps.
            is_graph: whether what is kept is an autograd graph: then nothing detached explains it.
            made: the line that asks for the memory, where it is known.
            below: what is on the way from the container to the tensor.
        """
        special = (
            self._decorator(chain)
            or self._hook(chain, kept)
            or self._starting_call(chain, (kept, *below))
            or self._filing(chain, kept)
        )
        if special is not None:
            return special
        example = _Example(kept, is_graph, made)
        best = self._best_of_names(chain, example)
        linked = self._of_linked_list(chain, best, example)
        if linked is None and not _moves_on(best):
            linked = self._of_linked_field(chain, below)
        best = linked or best
        reporting_line = _reporting_line(kept)
        if reporting_line is not None:  # the container was made elsewhere, once
            return Keeper(*reporting_line) if best is None else _moved(best, reporting_line)
        return best or self._by_what_it_keeps(chain, (kept, *below)) or self._making_call(chain)

    def _best_of_names(self, chain: Chain, example: _Example) -> Keeper | None:
        """The statement that fits best under the names along a chain, the nearest first."""
        best: Keeper | None = None
        for searched in searched_names(chain):
            keeper = self._best_store(searched, example)
            if keeper is None:
                continue
            if best is None or keeper.score > best.score + _MUCH_BETTER:
                best = keeper
            if keeper.score >= _GOOD_SCORE:
                break
        return best

    def _of_linked_list(
        self, chain: Chain, keeper: Keeper | None, example: _Example
    ) -> Keeper | None:
        """Of objects that each hold the one before (``head = Node(x, head)``): the statement that
        makes the next one the head; None of anything else.
        """
        store = store_of(keeper)
        if store is None or not store.function.name.endswith("__init__"):
            return None
        kind = store.function.owner
        links = chain.links
        nodes = [at for at, link in enumerate(links) if class_path(type(link.value)) == kind]
        if len(nodes) < FEWEST_NODES:
            return None
        head = Chain(chain.root, links[: nodes[0] + 1])
        given = given_by(links[nodes[0]].value, store.name, self)
        for searched in searched_names(head):
            making = self._best_store(searched, example)
            if making is None or making.store is None:
                continue
            if making.store.refers_to_itself or (given and given.stands_in(making.store.value)):
                return making
        return None

    def _of_linked_field(self, chain: Chain, below: Sequence[Any]) -> Keeper | None:
        """Of objects that each hold the one before in a field that is a parameter of their class, as
        a dataclass's (``Node(x, parent=self)``): the call that gives it; None of anything else.
        """
        ways = [*(link.value for link in chain.links), *below]
        nodes = [node for node in ways if type(node) is type(ways[len(chain.links) - 1])]
        if not chain.links or len(nodes) < FEWEST_NODES or not is_users_class(type(nodes[0])):
            return None
        field = field_with(nodes[0], nodes[1])
        given = given_by(nodes[0], field, self) if field else None
        best = None if given is None else _best_call(given.calls(self))
        return None if best is None else _keeper_at(best, _CALL_SCORE)

    def _best_store(self, searched: SearchedName, example: _Example) -> Keeper | None:
        candidates = candidate_stores(self, searched)
        if not candidates:
            return None
        scores = {
            store: self._score(store, searched, hops, example) for store, hops in candidates.items()
        }
        ranked = sorted(scores, key=lambda store: (-scores[store], store.file, store.line))
        store = ranked[0]
        return Keeper(
            file=store.file,
            line=store.line,
            function=store.function.name,
            store=store,
            others=tuple(ranked),
            score=scores[store],
            keys=searched.keys,
        )

    def call_with(self, keyword: str) -> Keeper | None:
        """A call with a keyword argument that is not False: ``backward(create_graph=True)``; one
        that ran first.
        """
        best = _best_call(calls_with(self, keyword))
        return None if best is None else _keeper_at(best, _CALL_SCORE)

    def registration(self, code: types.CodeType) -> Keeper | None:
        """The call that registers a function, by its name or, for a lambda, by where it stands."""
        best = _best_call(registrations(self, code))
        return None if best is None else _keeper_at(best, _REGISTRATION_SCORE + best[0])

    def _decorator(self, chain: Chain) -> Keeper | None:
        """Of a function that caches its results: what makes it cache."""
        for link in reversed(chain.links):
            code = code_of(link.value) if _is_caching(link.value) else None
            place = None if code is None else caching_line(self, code)
            if place is not None:
                return Keeper(*place, score=_DECORATOR_SCORE)
            if link.how in NAMED:
                break
        return None

    def _hook(self, chain: Chain, kept: Any) -> Keeper | None:
        """Where a table of hooks grows: the registration of such a hook."""
        if not chain.links or not is_hook_name(chain.links[-1].name):
            return None
        code = code_of(kept)
        if code is not None:
            return self.registration(code) if is_users(code.co_filename) else None
        cls = class_name(type(kept))
        best = _best_call(hook_registrations(self, chain.links[-1].name, cls))
        return None if best is None else _keeper_at(best, _REGISTRATION_SCORE + best[0])

    def _filing(self, chain: Chain, kept: Any) -> Keeper | None:
        """Of what a library files by itself: the call that makes it."""
        store = filing_store(self, chain, kept) or waiting_store(self, chain)
        return None if store is None else Keeper(store.file, store.line, store.function.name, store)

    def _starting_call(self, chain: Chain, below: Sequence[Any]) -> Keeper | None:
        """Where tasks pile up in an event loop: the call that starts them."""
        code = waiting_coroutine(chain, below)
        return None if code is None else self.registration(code)

    def _by_what_it_keeps(self, chain: Chain, below: Sequence[Any]) -> Keeper | None:
        """The call that hands over a function of the user's: a registration with a library, or
        with C code.
        """
        holders = [*below, *(link.value for link in reversed(chain.links))]
        attributes = [part for holder in holders for _, part in attributes_of(holder)]
        for candidate in (*holders, *attributes):
            code = code_of(candidate)
            if code is None or not is_users(code.co_filename):
                continue
            registered = self.registration(code)
            if registered is not None:
                return registered
        return None

    def _making_call(self, chain: Chain) -> Keeper | None:
        """The call that makes an object which its library files by itself: ``finalize(…)``."""
        for link in reversed(chain.links):
            cls = link.value if is_kind(link.value, type) else type(link.value)
            if class_module(cls) == "builtins" or is_users_class(cls):
                continue
            calls = (
                (site.loops, module, site)
                for module in self.modules()
                for site in module.calls.get(class_name(cls), ())
            )
            best = _best_call(calls)
            if best is not None:
                return _keeper_at(best, _CALL_SCORE)
        return None

    def _score(self, store: Store, searched: SearchedName, hops: int, example: _Example) -> int:
        """How well a statement fits: points, from its place, its kind and what it stores."""
        score = strength(store, searched) + _receiver_points(store, searched) - 5 * hops
        if searched.is_inside:
            score -= 20
        score += 6 * min(store.loops, 2)
        if store.function.name.rpartition(".")[2] in _SETTING_UP:
            score -= 12
        if not hops:
            score += _key_points(store, searched)
        if _makes_container(store, searched):
            score -= _MAKING
        if _has_run_once(store, searched, hops):
            score -= _ONCE
        allocating_line = example.made
        if (
            allocating_line is not None
            and allocating_line.line
            and value_made_at(store, allocating_line.file, allocating_line.line)
        ):
            score += 25
        if self.lines_run is not None:
            score += 30 if self._statement_has_run(store) else -10
        if store.value is not None:
            score += likeness(
                self._search.torch, store.value, example.kept, is_graph=example.is_graph
            )
        return score

    def is_tensor(self, value: object) -> bool:
        """Whether a value is a tensor."""
        return self._search.torch.is_tensor(value)

    def is_data(self, value: object) -> bool:
        """Whether a value is a tensor, or a tuple, list or dict of some."""
        if type(value) is dict:
            return any(self.is_tensor(part) for _, part in dict_items(value))
        if type(value) in (tuple, list):
            return any(map(self.is_tensor, elements_of(value) or ()))
        return self.is_tensor(value)

    def has_passed_by(self, store: Store) -> bool:
        """Whether the function of a statement has run while lines were watched, and the
        statement has not.
        """
        return not self._statement_has_run(store) and self.function_has_run(
            store.file, store.function
        )

    def function_has_run(self, file: str, function: Function) -> bool:
        """Whether a function is known to have run while lines were watched."""
        node = function.node
        return node is not None and self.has_run(file, node.lineno, last_line_of(node))

    def was_seen_running(self, store: Store) -> bool:
        """Whether a statement has run while lines were watched."""
        return self._statement_has_run(store)

    def is_known_to_run(self, store: Store) -> bool:
        """Whether a statement has run while lines were watched, or often at any time."""
        return self._statement_has_run(store) or self.has_run_often(store)

    def has_run_often(self, store: Store) -> bool:
        """Whether a statement ran several times in any thread, as the interpreter shows."""
        return self.shows_runs(store.file, store.line, _last_line(store))

    def _statement_has_run(self, store: Store) -> bool:
        return self.has_run(store.file, store.line, _last_line(store))


def _last_line(store: Store) -> int:
    last = store.statement.end_lineno or store.line
    return min(last, store.line + _LONGEST_STATEMENT)


def store_of(keeper: Keeper | None) -> Store | None:
    """The source of the statement that keeps; None where only a line or nothing is known."""
    return None if keeper is None else keeper.store


def statement_source(keeper: Keeper | None) -> str:
    """The text of the statement that keeps, in one line."""
    if keeper is None or not keeper.line:
        return ""
    module = read_source(keeper.file)
    if module is None or not 0 < keeper.line <= len(module.lines):
        return ""
    return module.lines[keeper.line - 1].strip()


def stored_source(keeper: Keeper | None) -> str:
    """What the statement stores, as source to which a method can be added; empty where it is
    long or something else.
    """
    store = store_of(keeper)
    value = None if store is None else store.value
    if isinstance(value, ast.Call):
        called = value.func
        if isinstance(called, ast.Attribute) and called.attr in _DETACHES:
            return ""
    elif not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):
        return ""
    text = ast.unparse(value)
    return text if len(text) <= _LONGEST_SOURCE else ""


def _best_call(
    calls: Iterable[tuple[int, Module, CallSite]],
) -> tuple[int, Module, CallSite] | None:
    return max(calls, key=lambda call: call[0], default=None)


def _keeper_at(call: tuple[int, Module, CallSite], score: int) -> Keeper:
    _, module, site = call
    return Keeper(module.file, site.statement.lineno, site.function.name, score=score)


def _moves_on(keeper: Keeper | None) -> bool:
    """Whether a statement makes the next of linked objects the first: ``node = node.explore()``."""
    store = store_of(keeper)
    return store is not None and store.how == "assign" and store.refers_to_itself


def _moved(keeper: Keeper, place: tuple[str, int, str]) -> Keeper:
    file, line, function = place
    return replace(keeper, file=file, line=line, function=function)


def _reporting_line(kept: Any) -> tuple[str, int, str] | None:
    """Where a recorded warning was given, or a record was logged: file, line and function; None of
    anything else, and outside of the user's source.
    """
    place = line_of_report(kept)
    if place is None:
        return None
    file, line = place
    module = read_source(file) if is_users(file) else None
    sites = () if module is None else module.all_calls()
    around = [
        site for site in sites if site.statement.lineno <= line <= last_line_of(site.statement)
    ]
    if not around:
        return None
    innermost = max(around, key=lambda site: site.statement.lineno)
    return file, innermost.statement.lineno, innermost.function.name


def _is_caching(holder: Any) -> bool:
    return class_name(type(holder)) == "_lru_cache_wrapper"


def _makes_container(store: Store, searched: SearchedName) -> bool:
    """Whether a statement puts the container itself under a key: ``queues[name] = queue``,
    ``queues.setdefault(name, [])``.
    """
    if store.method == "setdefault" and is_empty(store.value):
        return bool(searched.keys)
    is_entry = store.how == "item" and not store.refers_to_itself
    return is_entry and len(store.keys) < len(searched.keys)


def _has_run_once(store: Store, searched: SearchedName, hops: int) -> bool:
    """Whether a statement is in the call that still has the variable, and in no loop of it."""
    is_of_call = searched.how == "variable" and not searched.is_returned and not hops
    return is_of_call and not store.loops


def _receiver_points(store: Store, searched: SearchedName) -> int:
    """Points for what a statement stores to: an attribute of the right class is worth the most."""
    if searched.how not in ("attribute", "class attribute"):
        return 60
    last = store.base.rpartition(".")[2]
    is_in_class = is_among(class_around(store.function), searched.classes)
    if store.base == store.function.receiver or last == "self":
        if is_in_class:
            return 60
        return 0 if searched.is_inside else -30
    is_named_class = last in (name.rpartition(".")[2] for name in searched.classes)
    if is_named_class or (last == "cls" and is_in_class):
        return 55
    return 35


def _key_points(store: Store, searched: SearchedName) -> int:
    """Points for keys: those in the source must be those in the chain."""
    if not searched.keys or not store.keys:
        return 0
    pairs = zip(searched.keys, store.keys, strict=False)
    return 20 if all(key in (None, searched_key) for searched_key, key in pairs) else -70
