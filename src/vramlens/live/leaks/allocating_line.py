"""The line that asks for the memory of a pile: as observed while steps were traced, or from the
source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vramlens.ground.place import Place
from vramlens.live.growth.line_observer import Observer, Stack, voted_line
from vramlens.live.growth.piles import Item
from vramlens.live.heap.search import Search
from vramlens.live.holder.keeper import Keeper, Statements, store_of
from vramlens.live.source.stored_values import made_at

_Stacks = dict[int, list[tuple[Stack, int]]]


@dataclass(frozen=True, slots=True)
class HeapScene:
    """What all piles of one search share.

    Attributes:
        search: the search, which has run.
        statements: the user's source.
        observer: what was seen of steps that were traced; None without it.
        parents: of each object on the way to something that may have grown, its holder and label.
    """

    search: Search
    statements: Statements
    observer: Observer | None
    parents: Mapping[int, tuple[int, str]]


def observed_line(scene: HeapScene, items: Sequence[Item]) -> Place | None:
    """The line that made what was born in one of the steps that were traced."""
    if scene.observer is None:
        return None
    stacks = _stacks_of_storages(scene, scene.observer, items)
    if not stacks:
        stacks = _stacks_of_nodes(scene, scene.observer, items)
    line = voted_line(stacks, scene.observer.steps)
    return None if line is None else Place(*line)


def _stacks_of_storages(scene: HeapScene, observer: Observer, items: Sequence[Item]) -> _Stacks:
    """By step of birth, where storages were made, with their bytes."""
    stacks: _Stacks = {}
    for item in items:
        if item.storage is None:
            continue
        # Of what was not seen, what was seen at its address was something else.
        stack = observer.made(item.storage, item.born) if item.is_seen else None
        if stack is None:
            parent = scene.parents.get(item.position, (-1, ""))[0]
            stack = _stack_of_node(scene, observer, parent)
        if stack:
            stacks.setdefault(item.born or 0, []).append((stack, item.size_bytes))
    return stacks


def _stacks_of_nodes(scene: HeapScene, observer: Observer, items: Sequence[Item]) -> _Stacks:
    """By step of birth, where autograd nodes were made, each of the same weight."""
    stacks: _Stacks = {}
    for item in items:
        if item.storage is not None:
            continue
        stack = _stack_of_node(scene, observer, item.position)
        if stack:
            stacks.setdefault(item.born or 0, []).append((stack, 1))
    return stacks


def _stack_of_node(scene: HeapScene, observer: Observer, position: int) -> Stack | None:
    """Where the autograd node at a position was made; None for all else."""
    torch = scene.search.torch
    node: Any = scene.search.order[position] if position >= 0 else None
    if node is None or not torch.is_node(node):
        return None
    number = torch.sequence_of(node)
    return None if number is None else observer.made_node(number)


def line_in_source(
    statements: Statements, keeper: Keeper | None, *, is_graph: bool
) -> Place | None:
    """The line that makes what a statement stores; the statement itself where that is all, None
    where there is none.
    """
    if keeper is None:
        return None
    if keeper.store is None:
        return Place(keeper.file, keeper.line, keeper.function)
    return made_at(statements, keeper.store, is_graph=is_graph)


def line_of_store(statements: Statements, keeper: Keeper | None) -> Place | None:
    """The line that makes what a statement stores; None where its source is not known."""
    store = store_of(keeper)
    return None if store is None else made_at(statements, store, is_graph=False)


def line_of_other_thread(
    statements: Statements, keeper: Keeper | None, *, is_key: bool
) -> Place | None:
    """The line that makes it, from the source, where this thread was seen only to wait while
    another made it.
    """
    if keeper is None or keeper.store is None:
        return None
    store = replace(keeper.store, value=keeper.store.key) if is_key else keeper.store
    maker = made_at(statements, store, is_graph=False)
    return None if maker.line == keeper.line else maker
