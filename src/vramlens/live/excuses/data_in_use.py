"""Data that the program goes on using, as against what piles up: read whole, by chance, or where a
search found it, in most steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from vramlens.ground.live_objects import class_module, class_name, class_order
from vramlens.ground.verdict import Verdict
from vramlens.live.excuses.container_bounds import Excuse, Growth
from vramlens.live.growth.pace import RARE
from vramlens.live.heap.objects import elements_of, is_kind
from vramlens.live.holder.keeper import Statements
from vramlens.live.source.source_stores import Store, read_source
from vramlens.live.source.whole_reads import (
    lines_that_combine,
    lines_that_draw,
    lines_that_pick,
)

_MOST_ENTRIES = 100
"""Whose types are read: of a list of all kinds, as many show each."""


def data_in_use(statements: Statements, growth: Growth) -> Excuse | None:
    """``bank = torch.stack(self.vectors)`` in most steps that were traced: data that the program
    goes on using. So are the entries that a search in them picks: ``texts[best]``. So is what grows
    now and then, and is drawn from: a pool that is labelled in rounds; but no replay buffer without
    an end. A deque without a length has lost it.
    """
    store = growth.store
    if store is None or growth.is_graph or store.keys or not is_kind(growth.container, list):
        return None
    entries = list(islice(elements_of(growth.container) or (), _MOST_ENTRIES))
    if not all(statements.is_data(entry) or _is_data_set(entry) for entry in entries):
        return None
    lines = lines_that_combine(store)
    if any(_run_in_steps(statements, index, lines_that_combine(index)) for index in _beside(store)):
        lines += lines_that_pick(store)
    if growth.steps * RARE <= growth.span:
        lines += lines_that_draw(store)
    for line in _run_in_steps(statements, store, lines):
        return Verdict.POSSIBLE, f"line {line} reads its older entries in each step: data in use"
    return None


def _is_data_set(entry: object) -> bool:
    """Whether it is one of torch.utils.data: ConcatDataset makes one of several."""
    return any(
        class_name(base) == "Dataset" and class_module(base).startswith("torch.utils.data")
        for base in class_order(type(entry))
    )


def _run_in_steps(statements: Statements, store: Store, lines: Iterable[int]) -> list[int]:
    return [line for line in lines if statements.runs_in_steps(store.file, line)]


def _beside(store: Store) -> Iterator[Store]:
    """Yields the statements that append to other lists whenever one appends to its own: entries of
    one place belong together.
    """
    module = read_source(store.file)
    for beside in () if module is None else chain.from_iterable(module.stores.values()):
        is_list_of_the_same = beside.method == "append" and beside.base == store.base
        runs_with_it = beside.function is store.function and beside.guards == store.guards
        if is_list_of_the_same and runs_with_it and beside.name != store.name:
            yield beside
