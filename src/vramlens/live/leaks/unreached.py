"""What no root reaches: Python cycles that wait for the collector, cycles through autograd, and
owners written in C++.

Everything that the collector knows and the search did not reach is looked at once: what holds what
in there, which of it goes round in a circle, and whether something outside of it holds it too (then
it is no garbage, and its owner is one that Python cannot see).
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Any

from vramlens.capture.process.undisturbed import undisturbed
from vramlens.ground.verdict import Verdict
from vramlens.live.growth.autocast_cache import block_around, caching_depth, copy_bytes
from vramlens.live.growth.births import BEFORE, Births
from vramlens.live.growth.line_observer import Observer, Stack, voted_line
from vramlens.live.growth.piles import FEWEST, pace_of
from vramlens.live.heap.cycles import (
    circle_in,
    closing_edge,
    components,
    fold_circle,
    gradient_name,
)
from vramlens.live.heap.objects import (
    class_name,
    class_path,
    code_of,
    is_kind,
    is_own_file,
    namespace_of,
)
from vramlens.live.heap.roots import Root
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage, device_of
from vramlens.live.heap.unnamed_holders import unreached_tensors
from vramlens.live.holder.chain import Link, type_text
from vramlens.live.holder.keeper import Keeper, Statements
from vramlens.live.holder.leak_class import fix_of, statement_source
from vramlens.live.leaks.leak_report import LiveLeak, Owner
from vramlens.live.leaks.uncounted import FIXES
from vramlens.live.source.stored_values import MadeAt, made_at
from vramlens.units import counted

_MOST_OBJECTS = 400_000
_LOOK_AT_THE_CLOCK = 1024  # objects
_OWN_REFERENCES = 3  # our list, the loop's variable, getrefcount's argument
# What hangs on classes that are written in C, which tell the collector nothing of it.
_BORING = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.BuiltinFunctionType, weakref.ref, types.CodeType, Root,
)  # fmt: skip


@dataclass(slots=True)
class _Heap:
    """Objects that no root reaches.

    Attributes:
        objects: all of them, autograd nodes that they hold included.
        below: for each, the indexes of what it holds.
        storages: storages of those that are tensors.
    """

    objects: list[Any]
    below: list[list[int]]
    storages: dict[int, Storage]
    labels: dict[tuple[int, int], str] = field(default_factory=dict)
    savers: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Group:
    """Storages that are kept in the same way.

    Attributes:
        cycle: indexes of a circle, or of the topmost object alone.
        is_cycle: whether it is one.
        is_held: whether something that Python cannot see holds it.
    """

    cycle: tuple[int, ...]
    is_cycle: bool
    is_held: bool


def unreached_leaks(
    search: Search, births: Births, statements: Statements, observer: Observer | None
) -> list[tuple[LiveLeak, set[Storage | None]]]:
    """Leaks among what no root reaches, with the storages that are kept."""
    with undisturbed(), search.torch.torch._C.DisableTorchFunction():
        heap = _unreached(search, births)
        try:
            return _leaks_in(search, births, statements, observer, heap)
        finally:
            heap.objects.clear()  # variables of this very function can be among them: a circle of our own
            heap.below.clear()
            heap.savers.clear()


def _leaks_in(
    search: Search, births: Births, statements: Statements, observer: Observer | None, heap: _Heap
) -> list[tuple[LiveLeak, set[Storage | None]]]:
    leaks: list[tuple[LiveLeak, set[Storage | None]]] = []
    if heap.storages:
        for members in _groups(search, heap).values():
            leak = _leak(search, births, statements, observer, heap, members)
            if leak is not None:
                leaks.append((leak, {heap.storages[place] for place, _ in members}))
    return leaks


def _unreached(search: Search, births: Births) -> _Heap:
    seen, torch = search.seen, search.torch
    ours = {
        id(search.order),
        id(search.seen),
        id(search.storages),
        id(search.storage_at),
        id(search),
    }
    if unreached_tensors(search, births) < FEWEST:
        return _Heap([], [], {})
    search.go_further()
    every = gc.get_objects()
    ours.add(id(every))
    boring = {id(kind) for kind in _BORING}
    left = compress(every, map(not_, map(seen.__contains__, map(id, every))))
    objects = [value for value in left if id(type(value)) not in boring and id(value) not in ours]
    del every, left
    objects = [value for value in objects if not _is_ours(value)][:_MOST_OBJECTS]
    index = {id(value): place for place, value in enumerate(objects)}
    below: list[list[int]] = []
    labels: dict[tuple[int, int], str] = {}
    storages: dict[int, Storage] = {}
    savers: dict[int, Any] = {}
    place = 0
    while place < len(objects):
        value = objects[place]
        held: list[int] = []
        if place % _LOOK_AT_THE_CLOCK == 0 and search.is_over:
            search.skipped.append("what no root reaches: there was no time to look at all of it")
            return _Heap([], [], {})
        for referent in search.referents.of_one(value):
            found = index.get(id(referent))
            if found is not None:
                held.append(found)
        if torch.is_tensor(value):
            storage = torch.storage_of(value)
            if storage is not None and storage not in search.storages:
                storages[place] = storage
            more: list[tuple[str, Any]] = list(torch.held_by_tensor(value))
            node = torch.grad_fn(value)
            if node is not None:
                more.append((".grad_fn", node))
        elif torch.is_node(value):
            more = list(torch.held_by_node(value))
        else:
            more = []
        for label, child in more:
            found = index.get(id(child))
            if (
                found is None
                and id(child) not in seen
                and (torch.is_node(child) or torch.is_tensor(child))
            ):
                found = index[id(child)] = len(objects)
                objects.append(child)
            if found is not None:
                held.append(found)
                labels.setdefault((place, found), label)
                if label.startswith("._saved"):
                    savers.setdefault(found, value)
        below.append(held)
        place += 1
    return _Heap(objects, below, storages, labels, savers)


def _is_ours(value: Any) -> bool:
    kind = type(value)
    if kind is types.FrameType:
        return is_own_file(value.f_code.co_filename)
    return class_name(kind) in ("Search", "Births", "_Look") and kind.__module__.startswith(
        "vramlens.live"
    )


def _groups(search: Search, heap: _Heap) -> dict[Any, list[tuple[int, _Group]]]:
    """Storages by how they are kept: the same classes in a circle are the same leak."""
    component, members = components(heap.below)
    above: list[list[int]] = [[] for _ in heap.objects]
    for place, held in enumerate(heap.below):
        for child in held:
            above[child].append(place)
    held_outside = _held_outside(search, heap, above)
    cache: dict[int, _Group] = {}
    groups: dict[Any, list[tuple[int, _Group]]] = {}
    for place in heap.storages:
        tops, circles, is_held = _above(place, above, component, members, held_outside)
        if circles:
            nearest = circles[0]
            group = cache.get(nearest)
            if group is None:
                circle = circle_in(heap.below, heap.labels, members[nearest])
                group = cache[nearest] = _Group(circle, True, is_held)
        else:
            group = _Group((tops[0],), False, True)
        names = {class_name(type(heap.objects[one])) for one in group.cycle}
        if group.is_cycle and any(search.torch.is_node(heap.objects[one]) for one in group.cycle):
            # An autograd graph has many ways round; what Python can name tells them apart.
            names = {
                name for name in names if not name.endswith(("0", "1", "2", "3", "AccumulateGrad"))
            }
        key = (group.is_cycle, tuple(sorted(names)))
        groups.setdefault(key, []).append((place, group))
    return groups


def _above(
    place: int,
    above: Sequence[Sequence[int]],
    component: Sequence[int],
    members: Mapping[int, Sequence[int]],
    held_outside: set[int],
) -> tuple[list[int], list[int], bool]:
    """What holds an object: those that nothing holds, the circles (nearest first), whether any
    is held from outside.
    """
    seen, waiting = {place}, [place]
    tops, circles = [], []
    is_held = False
    for here in waiting:
        is_held = is_held or here in held_outside
        if component[here] in members and component[here] not in circles:
            circles.append(component[here])
        fresh = [holder for holder in above[here] if holder not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
        if not above[here]:
            tops.append(here)
    return tops or [waiting[-1]], circles, is_held


def _held_outside(search: Search, heap: _Heap, above: Sequence[Sequence[int]]) -> set[int]:
    """Objects with more references than the others in here and we explain: C++ or C code has
    them.
    """
    found = set()
    objects = heap.objects
    for place in range(len(objects)):
        value = objects[place]
        if search.torch.is_tensor(value) or search.torch.is_node(value):
            continue  # PyTorch's own references count here
        if sys.getrefcount(value) - _OWN_REFERENCES > len(above[place]):
            found.add(place)
    return found


def _leak(
    search: Search,
    births: Births,
    statements: Statements,
    observer: Observer | None,
    heap: _Heap,
    members: list[tuple[int, _Group]],
) -> LiveLeak | None:
    torch = search.torch
    stacks: dict[int, list[tuple[Stack, int]]] = {}
    by_step: dict[int, int] = {}
    counted_once: set[Storage] = set()
    place, group = max(members, key=lambda pair: heap.storages[pair[0]].size_bytes)
    circle = [heap.objects[one] for one in group.cycle]
    casts = (
        0 if group.is_cycle or copy_bytes(torch, circle[0]) is None else caching_depth(torch.torch)
    )
    copied = 0
    for place, _ in members:
        storage = heap.storages[place]
        if storage in counted_once:
            continue
        counted_once.add(storage)
        copy = (copy_bytes(torch, heap.objects[place]) or 0) if casts else 0
        copied += copy
        saver = heap.savers.get(place)
        born = births.born(storage, heap.objects[place])
        if born is None and saver is not None:
            born = births.step_of(saver)
        if born is not None and born > BEFORE:
            by_step[born] = by_step.get(born, 0) + storage.size_bytes + copy
            stack = None if observer is None else observer.made(storage, born)
            number = None if saver is None else torch.sequence_of(saver)
            if stack is None and observer is not None and number is not None:
                stack = observer.made_node(number)
            if stack:
                stacks.setdefault(born, []).append((stack, storage.size_bytes))
    pace = pace_of(by_step, births.steps, births.known_until)
    if pace is None:
        return None
    is_autograd = any(torch.is_node(value) for value in circle)
    kind = (
        "autograd_cycle"
        if is_autograd
        else "cycle"
        if group.is_cycle and not group.is_held
        else "other"
    )
    links = _links(search, heap, group)
    keeper, weak = closing_edge(search, statements, links)
    if casts:
        kind, keeper = "cache", block_around(statements)
        hidden = (
            f"held by the cache of {counted(casts, 'torch.autocast block')} that this thread is in"
        )
    elif kind == "other":
        kind, keeper, hidden = _hidden(search, statements, circle[0], keeper)
    else:
        hidden = ""
    lines = [link.text + ": " + type_text(search, link.value) for link in links]
    first = type_text(search, circle[0])
    chain = (
        hidden or "held by nothing but itself: a circle that waits for the collector",
        first,
        *lines,
    )
    name = "the autocast cache" if casts else weak or class_path(type(circle[0]))
    gradient = gradient_name(links)
    if is_autograd and gradient:
        name = gradient
        keeper = statements.call_with("create_graph") or keeper
    elif kind != "cycle" and not is_autograd and not weak and not casts:
        code = code_of(circle[0])
        name = name if code is None else getattr(code, "co_qualname", code.co_name)
    owner = Owner(
        name=name,
        kind=class_name(type(circle[0])),
        file=keeper.file if keeper is not None else "",
        line=keeper.line if keeper is not None else 0,
        function=keeper.function if keeper is not None else "",
        chain=chain,
        source=statement_source(keeper),
    )
    line = voted_line(stacks, observer.steps if observer is not None else set())
    made = None if line is None else MadeAt(*line)
    if made is None and keeper is not None and keeper.store is not None:
        made = made_at(statements, keeper.store, is_graph=False)
    total = sum(by_step.values())
    why = {
        "cycle": "no root reaches it: Python's collector will free it, but comes when objects pile up, not bytes",
        "autograd_cycle": "no root reaches it, and it goes round through the autograd graph",
    }.get(kind, hidden)
    if casts:
        why = (
            f"a leaf that wants a gradient is cast once in a block and kept until its end, with its copy:"
            f" {copied:,} B of {total:,} B are copies, by autocast's rule"
        )
    verdict = Verdict.LIKELY if pace.is_steady else Verdict.POSSIBLE
    if pace.is_sure:
        verdict = Verdict.PROVEN
    return LiveLeak(
        verdict=verdict,
        kind=kind,
        file=made.file if made is not None else "",
        line=made.line if made is not None else 0,
        function=made.function if made is not None else "",
        bytes_per_step=pace.bytes_per_step,
        bytes=total,
        steps=len(by_step),
        first_step=pace.first,
        last_step=pace.last,
        storages=len(counted_once),
        nodes=0,
        owner=owner,
        why=(why,),
        fix=FIXES["autocast"] if casts else fix_of(kind, keeper, owner),
        device=device_of(counted_once),
    )


def _links(search: Search, heap: _Heap, group: _Group) -> list[Link]:
    """The edges of a circle, from its first object back to it."""
    if not group.is_cycle:
        return []
    return fold_circle(search, heap.objects, group.cycle, heap.labels)


def _hidden(
    search: Search, statements: Statements, top: Any, keeper: Keeper | None
) -> tuple[str, Keeper | None, str]:
    """An owner that Python cannot see: by what it holds."""
    values = list(_values(top))
    code = code_of(top) or next(
        (found for value in values if (found := code_of(value)) is not None), None
    )
    if is_kind(top, dict) and code is not None and all(type(key) is int for key in dict.keys(top)):
        registered = statements.registration(code)
        return (
            "hook",
            registered or keeper,
            "held by hooks of an autograd node, which only C++ sees",
        )
    if code is not None:
        registered = statements.registration(code)
        text = statement_source(registered)
        kind = "cache" if "atexit" in text else "hook" if "hook" in text else "other"
        return (
            kind,
            registered or keeper,
            f"{code.co_name} is held by a C owner that Python cannot see",
        )
    if type(top) is dict and all(type(key) is str for key in dict.keys(top)):
        return "thread", keeper, "held by another thread's local storage"
    del search
    return "other", keeper, "held by a C++ owner that Python cannot see"


def _values(top: Any) -> Iterable[Any]:
    if is_kind(top, dict):
        return list(dict.values(top))
    names = namespace_of(top)
    return list(names.values()) if names is not None else []
