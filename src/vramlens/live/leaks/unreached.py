"""Leaks that no root reaches: Python cycles that wait for the collector, cycles through autograd,
and owners written in C++.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vramlens.capture.process.undisturbed import undisturbed
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.leak.fixes import fix_of_class
from vramlens.leak.leak import LeakOwner
from vramlens.live.growth.autocast_cache import block_around, caching_depth, copy_bytes
from vramlens.live.growth.births import BEFORE, Births
from vramlens.live.growth.line_observer import Observer, Stack, voted_line
from vramlens.live.growth.pace import WARM_UP, Pace, pace_of
from vramlens.live.heap.cycles import closing_edge, fold_circle, gradient_name
from vramlens.live.heap.objects import (
    class_module,
    class_name,
    class_path,
    code_of,
    is_kind,
    namespace_of,
)
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage, device_of
from vramlens.live.heap.unreached_heap import (
    GroupMembers,
    UnreachedGroup,
    UnreachedHeap,
    grouped_storages,
    read_unreached,
)
from vramlens.live.holder.chain import Link, type_text
from vramlens.live.holder.keeper import Keeper, Statements, statement_source
from vramlens.live.holder.leak_fix import fix_of
from vramlens.live.holder.owner import owner_with
from vramlens.live.leaks.allocating_line import line_of_store
from vramlens.live.leaks.leak_report import UNSEEN_CODE, LiveLeak
from vramlens.units import counted, format_size

_WAITS_FOR_COLLECTOR = "a reference cycle that waits for Python's garbage collector"
_MOSTLY_FREED = 10
"""Times as many objects freed as wait: circles that end in a step go with the next run over young objects,
but for those that are in use when it comes. Three times as many could be other circles of a library.
"""
_LATE, _FEWEST_RUNS, _MOST_PAUSES = 1 / 3, 2, 4
"""Of the run, beyond which a collection leaves too little of it to see growth; and collections that come
again and again, the next within so many of the longest pauses: heaps grow, and pauses with them. With
one, an import in the second step would excuse the rest of the run, and so would two without an end.
"""
_UNSEEN_KIND = "object that Python cannot see"
_WHY = {
    "cycle": "nothing else refers to it. Python's garbage collector will free it, but it runs "
    "by the number of objects, not by bytes",
    "uncollected": "nothing else refers to it, and Python's garbage collector is off"
    " (gc.disable()): nothing frees it before gc.collect()",
    "autograd_cycle": "nothing else refers to it, and the cycle goes through the autograd graph",
}


@dataclass(slots=True)
class _KeptStorages:
    """The storages of one group, each once.

    Attributes:
        storages: all of them.
        bytes_by_step: those that were born while they were watched, copies of the autocast cache
            included.
        stacks: by step of birth, where they were made, with their bytes.
        copied_bytes: bytes of copies in the autocast cache.
    """

    storages: set[Storage] = field(default_factory=set)
    bytes_by_step: dict[int, int] = field(default_factory=dict)
    stacks: dict[int, list[tuple[Stack, int]]] = field(default_factory=dict)
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Holder:
    """What keeps a group.

    Attributes:
        kind: the class of the leak.
        name: as a person would write it.
        keeper: the statement that makes it keep.
        hidden: the object that Python cannot see; empty for circles, which hold themselves.
    """

    kind: str
    name: str
    keeper: Keeper | None
    hidden: str = ""


def unreached_leaks(
    search: Search, births: Births, statements: Statements, observer: Observer | None
) -> list[tuple[LiveLeak, set[Storage | None]]]:
    """Leaks among what no root reaches, with the storages that are kept."""
    with undisturbed(), search.torch.torch._C.DisableTorchFunction():
        finder = _UnreachedLeaks(search, births, statements, observer)
        try:
            return finder.leaks()
        finally:
            finder.heap.clear()  # variables of this very function can be in it: a circle of our own


class _UnreachedLeaks:
    """The leaks in one heap of unreached objects."""

    def __init__(
        self, search: Search, births: Births, statements: Statements, observer: Observer | None
    ) -> None:
        self._search, self._births = search, births
        self._statements, self._observer = statements, observer
        self.heap: UnreachedHeap = read_unreached(search, births)

    def leaks(self) -> list[tuple[LiveLeak, set[Storage | None]]]:
        """Each leak with the storages that it keeps."""
        if not self.heap.storages:
            return []
        leaks: list[tuple[LiveLeak, set[Storage | None]]] = []
        for members in grouped_storages(self._search, self.heap):
            leak = self._leak(members)
            if leak is not None:
                leaks.append((leak, {self.heap.storages[place] for place, _ in members}))
        return leaks

    def _leak(self, members: GroupMembers) -> LiveLeak | None:
        _, group = max(members, key=lambda member: self.heap.storages[member[0]].size_bytes)
        circle = [self.heap.objects[place] for place in group.places]
        casts = self._autocast_depth(group, circle[0])
        group_storages = self._kept_storages(members, counts_copies=casts > 0)
        pace = pace_of(group_storages.bytes_by_step, self._births.steps, self._births.looks)
        if pace is None:
            return None
        links = self._links(group)
        holder = self._holder(group, circle, links, casts)
        chain = (
            holder.hidden or _WAITS_FOR_COLLECTOR,
            type_text(self._search, circle[0]),
            *(f"{link.text}: {type_text(self._search, link.value)}" for link in links),
        )
        is_unseen = holder.name == UNSEEN_CODE
        kind = _UNSEEN_KIND if is_unseen else class_name(type(circle[0]))
        owner = owner_with(holder.keeper, holder.name, kind, chain)
        total_bytes = sum(group_storages.bytes_by_step.values())
        freed = self._freed_text(members, total_bytes) if holder.kind == "cycle" else ""
        return LiveLeak(
            verdict=Verdict.POSSIBLE if freed else _verdict(pace),
            kind=holder.kind,
            place=self._made(group_storages, holder.keeper),
            bytes_per_step=pace.bytes_per_step,
            bytes=total_bytes,
            steps=len(group_storages.bytes_by_step),
            first_step=pace.first,
            last_step=pace.last,
            storages=len(group_storages.storages),
            owner=owner,
            evidence=(
                _autocast_why(group_storages.copied_bytes, total_bytes)
                if casts
                else _WHY.get(self._row_of(holder.kind), f"kept by {holder.hidden}"),
            ),
            reason=freed,
            fix=_fix(holder, owner, is_cast=casts > 0),
            device=device_of(group_storages.storages),
        )

    def _freed_text(self, members: GroupMembers, waiting_bytes: int) -> str:
        """How the collector frees what waits for it; empty where it was not seen to, or not for most
        of the run.
        """
        births, runs = self._births, self._births.collections
        waiting = sum(map(len, {group.places for _, group in members}))
        if births.is_collecting and runs.freed >= _MOSTLY_FREED * waiting:
            return (
                f"Python's collector frees most of it while it is young: {runs.freed:,} objects so"
                f" far, {waiting:,} wait for a full run"
            )
        pause = births.steps + 1 - runs.last
        is_recent = runs.last - WARM_UP > (births.steps - WARM_UP) * _LATE
        comes_again = runs.count >= _FEWEST_RUNS and pause <= _MOST_PAUSES * runs.longest_pause
        if not births.is_collecting or not (is_recent or comes_again):
            return ""
        most_bytes = waiting_bytes * max(runs.longest_pause, pause) // max(pause, 1)
        runs_text = counted(runs.count, "full run")
        return (
            f"Python's collector frees it: {runs_text} so far, the last in step {runs.last:,};"
            f" about {format_size(most_bytes)} wait at most"
        )

    def _row_of(self, kind: str) -> str:
        is_off = kind == "cycle" and not self._births.is_collecting
        return "uncollected" if is_off else kind

    def _autocast_depth(self, group: UnreachedGroup, top: Any) -> int:
        """How many autocast blocks keep copies of it; 0 where it is not theirs."""
        torch = self._search.torch
        if group.is_cycle or copy_bytes(torch, top) is None:
            return 0
        return caching_depth(torch.torch)

    def _kept_storages(self, members: GroupMembers, *, counts_copies: bool) -> _KeptStorages:
        group_storages = _KeptStorages()
        for place, _ in members:
            storage, tensor = self.heap.storages[place], self.heap.objects[place]
            if storage in group_storages.storages:
                continue
            group_storages.storages.add(storage)
            copied = (copy_bytes(self._search.torch, tensor) or 0) if counts_copies else 0
            group_storages.copied_bytes += copied
            born = self._born(place)
            if born is None or born <= BEFORE:
                continue
            size = storage.size_bytes
            group_storages.bytes_by_step[born] = (
                group_storages.bytes_by_step.get(born, 0) + size + copied
            )
            stack = self._stack(place, born)
            if stack:
                group_storages.stacks.setdefault(born, []).append((stack, size))
        return group_storages

    def _born(self, place: int) -> int | None:
        """The step in which a tensor was born: its own, or that of the node that saved it."""
        born = self._births.born(self.heap.storages[place], self.heap.objects[place])
        saver = self.heap.savers.get(place)
        if born is None and saver is not None:
            return self._births.step_of(saver)
        return born

    def _stack(self, place: int, born: int) -> Stack | None:
        """Where a tensor was made, if its step was traced."""
        if self._observer is None:
            return None
        stack = self._observer.made(self.heap.storages[place], born)
        saver = self.heap.savers.get(place)
        if stack is not None or saver is None:
            return stack
        number = self._search.torch.sequence_of(saver)
        return None if number is None else self._observer.made_node(number)

    def _links(self, group: UnreachedGroup) -> list[Link]:
        """The edges of a circle, from its first object back to it."""
        if not group.is_cycle:
            return []
        return fold_circle(self._search, self.heap.objects, group.places, self.heap.labels)

    def _holder(
        self, group: UnreachedGroup, circle: list[Any], links: list[Link], casts: int
    ) -> _Holder:
        if casts:
            blocks = counted(casts, "torch.autocast block")
            return _Holder(
                kind="cache",
                name="the autocast cache",
                keeper=block_around(self._statements),
                hidden=f"the cache of {blocks} that this thread is in",
            )
        keeper, weak_edge = closing_edge(self._statements, links)
        name = weak_edge or class_path(type(circle[0]))
        if any(map(self._search.torch.is_node, circle)):
            gradient = gradient_name(links)
            if not gradient:
                return _Holder("autograd_cycle", name, keeper)
            asks_for_graph = self._statements.call_with("create_graph")
            return _Holder("autograd_cycle", gradient, asks_for_graph or keeper)
        if group.is_cycle and not group.is_held_outside:
            return _Holder("cycle", name, keeper)
        code = None if weak_edge else next(filter(None, map(code_of, _functions(circle[0]))), None)
        if code is not None:
            name = getattr(code, "co_qualname", code.co_name)
        return _hidden_holder(self._statements, circle[0], name, keeper)

    def _made(self, kept: _KeptStorages, keeper: Keeper | None) -> Place | None:
        """The line that makes them: as observed, else from the source."""
        traced_steps = set() if self._observer is None else self._observer.steps
        line = voted_line(kept.stacks, traced_steps)
        if line is not None:
            return Place(*line)
        return line_of_store(self._statements, keeper)


def _verdict(pace: Pace) -> Verdict:
    if pace.is_sure:
        return Verdict.PROVEN
    return Verdict.LIKELY if pace.is_steady else Verdict.POSSIBLE


def _autocast_why(copied_bytes: int, total_bytes: int) -> str:
    return (
        "autocast casts each parameter once per block and keeps the copy until the block ends: "
        f"{copied_bytes:,} B of {total_bytes:,} B are copies, by autocast's rule"
    )


def _hidden_holder(statements: Statements, top: Any, name: str, keeper: Keeper | None) -> _Holder:
    """An owner that Python cannot see, by what it holds."""
    code = next(filter(None, map(code_of, (*_functions(top), *_values(top)))), None)
    if code is not None:
        registered = statements.registration(code)
        if is_kind(top, dict) and _has_only_keys(top, int):
            hidden = "hooks of an autograd node, which only C++ sees"
            return _Holder("hook", name, registered or keeper, hidden)
        hidden = f"a C object that Python cannot see, which has {code.co_name}"
        return _Holder(_registered_kind(registered), name, registered or keeper, hidden)
    if type(top) is dict and _has_only_keys(top, str):
        return _Holder("thread", name, keeper, "another thread's local storage")
    is_plain = statements.is_tensor(top) or class_module(type(top)) == "builtins"
    told_name = UNSEEN_CODE if is_plain else name
    return _Holder("other", told_name, keeper, "a C++ object that Python cannot see")


def _fix(holder: _Holder, owner: LeakOwner, *, is_cast: bool) -> str:
    if is_cast:
        return fix_of_class("autocast")
    if holder.name == UNSEEN_CODE:
        return fix_of_class("hidden")
    return fix_of(holder.kind, holder.keeper, owner)


def _has_only_keys(table: Any, kind: type) -> bool:
    return all(type(key) is kind for key in dict.keys(table))


def _registered_kind(registered: Keeper | None) -> str:
    """The class of a leak whose function was registered with C code."""
    text = statement_source(registered)
    if "atexit" in text:
        return "cache"
    return "hook" if "hook" in text else "other"


def _functions(top: Any) -> list[Any]:
    """What C code may call: an object itself, or the functions in a list, the most frequent first.

    Python 3.14 keeps what ``atexit`` is to call in such a list, each function with its arguments.
    """
    calls = list(top) if type(top) is list else []
    if not calls or not all(type(call) is tuple and len(call) == 3 for call in calls):
        return [top]
    codes = Counter(code_of(function) for function, _, _ in calls)
    return sorted((call[0] for call in calls), key=lambda function: -codes[code_of(function)])


def _values(top: Any) -> Iterable[Any]:
    if is_kind(top, dict):
        return list(dict.values(top))
    names = namespace_of(top)
    return list(names.values()) if names is not None else []
