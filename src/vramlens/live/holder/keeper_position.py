"""Where in a chain the object is that keeps, and what stands around it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from vramlens.live.heap.objects import (
    QUEUES,
    class_module,
    class_name,
    code_of,
    is_kind,
    namespace_of,
)
from vramlens.live.heap.search import Search
from vramlens.live.heap.tees import is_tee
from vramlens.live.holder.chain import Chain
from vramlens.live.holder.keeper import FEWEST_NODES, Keeper

_TABLES = ("pandas",)
"""Libraries whose objects are tables: what keeps is the table, not its blocks and columns."""
_LINKING = ("attribute", "key", "index", "closure", "argument")


def index_of(search: Search, chain: Chain, position: int) -> tuple[int, Any]:
    """The link of an object at a position; of the instance for an instance's dict; -1 for the
    root.
    """
    for index, link in enumerate(chain.links):
        if link.position == position:
            return index, link.value
    target = search.order[position]
    for index, link in enumerate(chain.links):
        if link.position > position:
            return index - 1, target
        if type(target) is dict and namespace_of(link.value) is target:
            return index, link.value
    return len(chain.links) - 1, target


def first_of_run(chain: Chain, at: int) -> int:
    """Of functions that close over the one before (``f = lambda x: g(f(x))``): the first, which
    a name leads to; of a view's base, the view.
    """
    links = chain.links
    while at > 0 and links[at].how == "base":
        at -= 1
    while at > 0 and links[at].how == "closure":
        code = code_of(links[at].value)
        if code is None or code is not code_of(links[at - 1].value):
            break
        at -= 1
    return at


def is_linked(chain: Chain, at: int) -> bool:
    """Whether the way goes on through objects that each hold the one before under the same name: a
    linked list, the ancestors of a tree's node, a closure over the last one, a partial with it as an argument.
    """
    return linking_step(chain, at) is not None


def linking_step(chain: Chain, at: int) -> tuple[type, str] | None:
    """The class of such objects, and the name under which each holds the one before; None of others."""
    steps = ((type(link.value), link.how, link.name) for link in chain.links[max(at, 0) :])
    for (kind, how, name), run in groupby(steps):
        if how in _LINKING and sum(1 for _ in run) >= FEWEST_NODES:
            return kind, name
    return None


def holder_of(chain: Chain, at: int, keeper: Keeper | None) -> object:
    """The object whose attribute the statement fills, where the chain goes through it."""
    for index in range(at, 0, -1):
        link = chain.links[index]
        if link.how == "attribute" and keeper is not None and keeper.store is not None:
            return chain.links[index - 1].value if link.name == keeper.store.name else None
    return None


def is_result(below: Sequence[Any]) -> bool:
    """Whether what is kept is the result of a task that another thread ran."""
    return any(
        class_module(type(value)).startswith(("concurrent.futures", "multiprocessing.pool"))
        for value in below
    )


def is_shell(value: object) -> bool:
    """Whether an object is what a person means where its insides pile up: a cached function, a
    queue, a half of a tee, a table with weak keys.
    """
    kind = type(value)
    is_cache = class_name(kind) == "_lru_cache_wrapper"
    is_weak = is_kind(value, weakref.WeakKeyDictionary)
    return is_cache or is_weak or class_module(kind) in QUEUES or is_tee(value)


def outermost_table(chain: Chain, at: int) -> int:
    """The link of the data frame that a link is inside of; the link itself elsewhere."""
    for index in range(at):
        if is_table(chain.links[index].value):
            return index
    return at


def is_table(value: object) -> bool:
    """Whether an object is a data frame, or one of its parts."""
    return class_module(type(value)).partition(".")[0] in _TABLES
