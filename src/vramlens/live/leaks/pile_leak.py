"""The leak that a pile is: who keeps it, by which statement, what makes it, and what to change."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.leak.fixes import fix_of_class
from vramlens.leak.leak import LeakOwner
from vramlens.live.excuses.container_bounds import Growth
from vramlens.live.excuses.removals import waits_for_keys
from vramlens.live.growth.births import BEFORE
from vramlens.live.growth.pace import FEWEST, LEAST_OF_A_STEP
from vramlens.live.growth.piles import Item, Pile, bytes_by_birth
from vramlens.live.heap.ancestors import Ancestors
from vramlens.live.heap.objects import is_array, is_users, length_of
from vramlens.live.heap.tensors import device_of
from vramlens.live.holder.chain import Chain, chain_of
from vramlens.live.holder.filed_objects import (
    filing_fix,
    waiters_fix,
    waiting_coroutine,
    waiting_fix,
)
from vramlens.live.holder.keeper import Keeper, statement_source, store_of
from vramlens.live.holder.keeper_position import (
    first_of_run,
    holder_of,
    index_of,
    is_linked,
    is_result,
    is_shell,
    outermost_table,
)
from vramlens.live.holder.kept_value import Kept, stored_form
from vramlens.live.holder.leak_class import class_of
from vramlens.live.holder.leak_fix import WORTH_DETACHING, fix_of
from vramlens.live.holder.library_part import library_fix
from vramlens.live.holder.object_fix import linked_fix
from vramlens.live.holder.owner import name_of_parts, owner_of
from vramlens.live.holder.removal_fix import removal_of
from vramlens.live.holder.route import route_of
from vramlens.live.leaks.allocating_line import (
    HeapScene,
    line_in_source,
    line_of_other_thread,
    observed_line,
)
from vramlens.live.leaks.leak_report import LiveLeak
from vramlens.live.leaks.pile_verdict import pile_verdict, read_in_vain
from vramlens.live.source.statement_scores import example_of
from vramlens.live.source.stored_values import only_waits
from vramlens.units import format_size

_PINNED_SHARE = 8
"""A view that looks at less than an eighth of its storage pins the rest: a quarter is one of four
gates, which are kept together; a sixteenth would leave out one row of a batch of 8 to 16.
"""
_LEAST_PINNED_BYTES = 1024
"""Of a storage that is worth a copy: a smaller one is a row of numbers itself."""
_MANY_IN_ONE = 16
"""Times as many things in one of a table's entries as there are entries: a table of sessions, each with
some turns, has fewer, and lets go of whole sessions.
"""
_MOST_NODES = 1000
"""That are asked for what they saved: they are of one kind, and the first few decide."""


def pile_leak(scene: HeapScene, pile: Pile) -> LiveLeak:
    """The leak, or look-alike, that a pile is."""
    return _PileCase(scene, pile).leak()


class _PileCase:
    """One pile with the chain to an example of what it keeps.

    Attributes are computed once, in the order in which they rest on each other: the chain, the
    place in it of the object that keeps, and what that object keeps there.
    """

    def __init__(self, scene: HeapScene, pile: Pile) -> None:
        self._scene, self._pile = scene, pile
        search = scene.search
        parents = dict(scene.parents)
        path = search.path(_example(pile).position, parents)
        self._chain = chain_of(search, path, parents)
        self._at, innermost = self._keeping_link()
        following = self._chain.links[self._at + 1 :]
        self._below = [link.value for link in following]
        self._coroutine = self._name_of_waiting_coroutine()
        self._kept_by_key = bool(following) and following[0].name == "a key"
        self._kept: Any = following[0].value if following else example_of(innermost)
        self._nodes = sum(item.storage is None for item in pile.items)
        in_graph = (item for item in pile.items if search.in_graph(item.position))
        self._graph_bytes = sum(item.size_bytes for item in in_graph)
        is_mostly_graph = 2 * self._graph_bytes > pile.bytes > 0
        self._is_graph = is_mostly_graph or (self._nodes > 0 and _is_repeated(pile))

    def _keeping_link(self) -> tuple[int, Any]:
        """The index of the link that keeps, and the object at the pile's own position."""
        chain = self._chain
        if self._pile.is_spread:
            at, innermost = 0, chain.links[0].value
        else:
            at, innermost = index_of(self._scene.search, chain, self._pile.position)
        at = outermost_table(chain, first_of_run(chain, at))
        if at > 0 and is_shell(chain.links[at - 1].value):
            at -= 1  # not its insides
        if self._pile.is_in_parts and at + 1 < len(chain.links):
            return at + 1, chain.links[at + 1].value
        return at, innermost

    @property
    def _container(self) -> Any:
        """The object that keeps; None where there is none."""
        if self._at >= 0:
            return self._chain.links[self._at].value
        return None if self._chain.root is None else self._chain.root.value

    @property
    def _way_to_container(self) -> Chain:
        return Chain(self._chain.root, tuple(self._chain.links[: self._at + 1]))

    def _name_of_waiting_coroutine(self) -> str:
        """Of the user's coroutine whose tasks pile up in an event loop; empty elsewhere."""
        code = waiting_coroutine(self._way_to_container, self._below)
        if code is None:
            return ""
        definition = self._scene.statements.function_of(code)
        return code.co_name if definition is None else definition[1].name

    def leak(self) -> LiveLeak:
        """The leak."""
        scene, pile, chain, at = self._scene, self._pile, self._chain, self._at
        search, pace = scene.search, pile.pace
        observed = observed_line(scene, pile.items)
        keeper = self._without_limits_on_keys(self._keeper(observed))
        kind = class_of(search, chain, at, keeper, scene.statements, is_graph=self._is_graph)
        owner = self._owner(keeper)
        maker = self._made(keeper, observed)
        kept_things = self._kept_things(keeper)
        views_text = _views_text(kept_things)
        growth = Growth(
            container=self._container,
            keeper=keeper,
            holder=holder_of(chain, at, keeper),
            is_graph=self._is_graph,
            is_remade=pile.is_remade,
            is_linked=is_linked(chain, at),
            kept_bytes=pile.bytes,
            is_backlog=pile.is_backlog,
            is_rising=pile.is_rising,
            is_turning=pile.is_turning,
            steps=max(pace.steps, pile.whole_steps),
            span=pile.span,
            kept_steps=_kept_steps(pile, self._container),
            whole_steps=pile.whole_steps,
            is_parameter_state=pile.is_parameter_state,
            is_in_use=pile.is_in_use,
            late_share=_late_share(pile),
            young_entries=_young_entries(scene, pile),
            is_of_views=bool(views_text),
        )
        in_vain = views_text or read_in_vain(scene.statements, growth)
        verdict, evidence, reason = pile_verdict(search, scene.statements, pile, growth, in_vain)
        has_fix = self._is_to_change(verdict, kind, keeper)
        return LiveLeak(
            verdict=verdict,
            kind=kind,
            place=maker,
            bytes_per_step=pace.bytes_per_step,
            bytes=pile.bytes,
            steps=pace.steps if pile.is_remade else _steps_of(pile),
            first_step=pace.first,
            last_step=pace.last,
            storages=len(pile.items) - self._nodes,
            nodes=self._nodes,
            owner=owner,
            evidence=evidence,
            reason=reason,
            fix=self._fix(kind, keeper, owner, kept_things) if has_fix else None,
            device=kept_things.device,
            route=route_of(self._way_to_container),
            is_freed=kind == "graph" and self._is_freed(),
            is_remade=pile.is_remade,
            is_late=pace.is_late,
            has_stopped=not pace.is_steady and not pace.is_late,
            in_vain=in_vain,
            fix_share=_fix_share(kind, kept_things),
            frees_more=_frees_more(kind, kept_things),
        )

    def _without_limits_on_keys(self, keeper: Keeper | None) -> Keeper | None:
        """The statement that keeps, without removals that look at the number of keys, where few of a
        table's entries grow: these never have their turn.
        """
        if keeper is None or not (self._pile.is_in_parts or self._is_one_of_few()):
            return keeper
        other_stores = tuple(other for other in keeper.others if not waits_for_keys(other))
        return replace(keeper, others=other_stores)

    def _is_one_of_few(self) -> bool:
        """Whether the object that keeps is one of a table's entries, and has many times as much in it
        as the table has entries.
        """
        at, links = self._at, self._chain.links
        if at < 1 or links[at].how not in ("key", "index"):
            return False
        entries, inside = length_of(links[at - 1].value) or 0, length_of(links[at].value) or 0
        return inside >= _MANY_IN_ONE * entries > 0

    def _is_to_change(self, verdict: Verdict, kind: str, keeper: Keeper | None) -> bool:
        """Whether anything is to be done: what may be a leak may also be emptied in its time."""
        if verdict == Verdict.POSSIBLE:
            return kind == "graph" or removal_of(keeper) is None
        return verdict != Verdict.NOT_A_PROBLEM

    def _fix(self, kind: str, keeper: Keeper | None, owner: LeakOwner, kept_things: Kept) -> str:
        if self._coroutine:
            return waiting_fix(self._coroutine, statement_source(keeper))
        if self._pile.is_of_new_calls and self._thread_function:
            return fix_of_class("waiting_threads", self._thread_function)
        store = store_of(keeper)
        way = self._way_to_container
        filed = filing_fix(store, way, self._kept) or waiters_fix(store, way)
        of_library = filed or library_fix(kind, self._chain, self._at, keeper)
        entries = length_of(self._container)
        if not of_library and entries is not None and 2 * entries < self._pile.pace.steps:
            of_library = linked_fix(owner, self._chain, self._at, entries)
        return of_library or fix_of(kind, keeper, owner, kept_things)

    @property
    def _thread_function(self) -> str:
        """The function of another thread whose variable leads to what is kept; empty elsewhere."""
        root = self._chain.root
        if root is None or root.code is None or not root.thread:
            return ""
        return root.code.co_name

    def _keeper(self, observed: Place | None) -> Keeper | None:
        """The statement that keeps; of threads' variables, what began the threads."""
        statements, root = self._scene.statements, self._chain.root
        keeper = statements.keeper(
            self._way_to_container,
            self._kept,
            is_graph=self._is_graph,
            made=observed,
            below=self._below,
        )
        if not self._pile.is_spread or root is None or not root.thread or root.code is None:
            return keeper
        if not is_users(root.code.co_filename):
            return keeper
        return statements.registration(root.code) or keeper

    def _owner(self, keeper: Keeper | None) -> LeakOwner:
        owner = owner_of(self._scene.search, self._chain, self._at, keeper)
        root = self._chain.root
        if self._coroutine:
            return replace(owner, name=f"{self._coroutine}()", kind="Task")
        if self._pile.is_in_parts:
            return replace(owner, name=name_of_parts(owner.name))
        if not self._pile.is_spread or root is None or root.code is None:
            return owner
        return replace(owner, name=f"{root.code.co_name}.{owner.name}")

    def _made(self, keeper: Keeper | None, observed: Place | None) -> Place | None:
        """The line that asks for the memory: as observed, unless that only waited."""
        statements = self._scene.statements
        if observed is None:
            return line_in_source(statements, keeper, is_graph=self._is_graph)
        if is_result(self._below) or only_waits(observed.file, observed.line):
            elsewhere = line_of_other_thread(statements, keeper, is_key=self._kept_by_key)
            return elsewhere or observed
        return observed

    def _kept_things(self, keeper: Keeper | None) -> Kept:
        pile, search = self._pile, self._scene.search
        stored = stored_form(search, self._chain, self._at, keeper, self._kept)
        pinned_size, viewed_share = _pinned_by_views(
            self._scene, pile, length_of(self._container) or 0
        )
        removal = removal_of(keeper)
        is_emptied = removal is not None and self._scene.statements.is_known_to_run(removal)
        return replace(
            stored,
            is_remade=pile.is_remade,
            is_emptied=is_emptied,
            pinned_size=pinned_size,
            viewed_share=viewed_share,
            device=device_of(pile.storages),
            is_number=search.torch.is_tensor(stored.value) and search.torch.is_number(stored.value),
            graph_share=self._graph_bytes / pile.bytes if pile.bytes else 1.0,
        )

    def _is_freed(self) -> bool:
        """Whether backward passes have let go of all that a pile's autograd nodes saved."""
        search = self._scene.search
        nodes = [search.order[item.position] for item in self._pile.items if item.storage is None]
        return {search.torch.still_saves(node) for node in nodes[:_MOST_NODES]} - {None} == {False}


def _fix_share(kind: str, kept: Kept) -> float:
    """How much of its bytes the fix frees: a detached tensor keeps its own storage, a copy of a
    view what the view shows.
    """
    if kept.pinned_size and not kept.is_number:
        return 1.0 - kept.viewed_share
    is_detached = kind == "graph" and not kept.pinned_size
    return kept.graph_share if is_detached and kept.graph_share >= WORTH_DETACHING else 1.0


def _views_text(kept: Kept) -> str:
    """Why most of what views keep is of no use to anybody; empty where none keep so much."""
    if not kept.pinned_size or kept.is_number:
        return ""
    return f"each entry is a view that needs little of the {kept.pinned_size} that it keeps"


def _frees_more(kind: str, kept: Kept) -> bool:
    """Whether objects that are detached in part free more than is known."""
    is_detached = kind == "graph" and kept.graph_share >= WORTH_DETACHING
    return is_detached and kept.form == "object"


def _pinned_by_views(scene: HeapScene, pile: Pile, entries: int) -> tuple[str, float]:
    """The size of the storages, where only small views of them are kept, and the share of the
    pile's bytes that the views show; "" and 0 elsewhere.

    Args:
        entries: how many the object that keeps has: several may be views of one storage.
    """
    in_storages = [
        item
        for item in pile.items
        if item.storage is not None and not scene.search.in_graph(item.position)
    ]
    views = max(entries // max(len(in_storages), 1), 1)
    pinned = viewed_bytes = 0
    sizes = []
    for item in in_storages:
        sizes.append(item.size_bytes)
        shown = _viewed_bytes(scene, item.position)
        viewed = None if shown is None else shown * views
        is_small = viewed is not None and viewed * _PINNED_SHARE < item.size_bytes
        pinned += is_small and item.size_bytes > _LEAST_PINNED_BYTES
        viewed_bytes += min(viewed or 0, item.size_bytes)
    if not sizes or pinned * 2 <= len(sizes):
        return "", 0.0
    return format_size(median(sizes)), viewed_bytes / max(pile.bytes, 1)


def _viewed_bytes(scene: HeapScene, position: int) -> int | None:
    """How much of its storage a tensor shows, or the NumPy array that looks at this tensor."""
    order = scene.search.order
    parent, edge = scene.parents.get(position, (-1, ""))
    if edge == ".base" and is_array(order[parent]):
        return int(order[parent].nbytes)
    return scene.search.torch.viewed_bytes(order[position])


def _steps_of(pile: Pile) -> int:
    """How many steps left something: the scalar that a graph's latest node made is next to nothing,
    and of a step of which the rest is not kept here.
    """
    by_step = bytes_by_birth(pile.items)
    pace = pile.pace
    least_bytes = LEAST_OF_A_STEP * pace.bytes_per_step
    steps = [step for step, size in by_step.items() if step > BEFORE and size >= least_bytes]
    return len(steps) + pace.unlooked_steps


def _kept_steps(pile: Pile, container: Any) -> int:
    """How many steps it took until all of a container's entries were there. An entry of several
    storages makes them fewer.
    """
    storages = sum(born >= pile.pace.first for born in pile.storage_births)
    entries = length_of(container) or 0
    return max(pile.span, entries * pile.span // storages if storages else 0)


def _young_entries(scene: HeapScene, pile: Pile) -> int:
    """How many parts of the object that keeps hold what was born while it was watched."""
    parents = scene.parents
    parts = Ancestors(parents, lambda at: at in parents and parents[at][0] == pile.position)
    entries = {parts.nearest(item.position) for item in pile.items if item.born != BEFORE}
    return len(entries - {-1})


def _late_share(pile: Pile) -> float:
    """Of a pile's bytes, those that came in the second half of its span."""
    middle = (pile.pace.first + pile.pace.last) / 2
    late = sum(item.size_bytes for item in pile.items if (item.born or 0) > middle)
    return late / pile.bytes if pile.bytes else 0.5


def _example(pile: Pile) -> Item:
    """The largest thing that is kept from the middle of the run."""
    births = {item.born for item in pile.items if item.born is not None}
    steps = sorted(step for step in births if step > BEFORE)
    middle = steps[len(steps) // 2]
    candidates = (item for item in pile.items if item.born == middle)
    return max(candidates, key=lambda item: item.size_bytes)


def _is_repeated(pile: Pile) -> bool:
    """Whether autograd nodes of several steps are kept."""
    return len({item.born for item in pile.items if item.storage is None}) >= FEWEST
