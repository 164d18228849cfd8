"""Removals as fixes: a statement of the program that empties what grows, or takes the same keys out of
a table beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain

from vramlens.ground.source_code import last_name
from vramlens.live.holder.keeper import Keeper
from vramlens.live.holder.kept_value import Kept
from vramlens.live.source.expressions import names_read
from vramlens.live.source.source_stores import Store, read_source
from vramlens.live.source.source_tree import loop_around
from vramlens.live.source.statement_scores import ends_its_call, is_removal, takes_from

_LONGEST_STATEMENT = 70
_TAKING_A_KEY = ("pop", "remove", "discard")


def removal_of(keeper: Keeper | None) -> Store | None:
    """A statement with which the program empties what another one fills; None where there is
    none.
    """
    if keeper is None or keeper.store is None:
        return None
    other_stores = (other for other in keeper.others if other.how != "assign")
    return next((other for other in other_stores if takes_from(other, keeper.store)), None)


def removal_fix(keeper: Keeper | None, kept: Kept) -> str:
    """For a container that the program empties, but not of these: a limit beside that may take
    what is still to be used. "" where the program does not empty it.
    """
    removal = removal_of(keeper)
    if removal is None or keeper is None or keeper.store is None:
        return ""
    place = _place_of(removal)
    if ends_its_call(removal, keeper.store):
        return f"put {place} into a finally: it is passed over where its call fails or is cancelled"
    if not kept.is_emptied:
        return f"make {place} take these entries out, which it has not done so far"
    return f"make {place} take these entries out{_early_end_of_loop(removal)}"


def removal_beside(keeper: Keeper | None) -> str:
    """For a table whose keys another table of the same object has, too, and the program takes them
    out of that one: there they are done. "" where there is none.
    """
    store = None if keeper is None else keeper.store
    key = None if store is None else _key_of(store)
    if store is None or key is None or not store.base:
        return ""
    for other in _removals_beside(store):
        if _key_of(other) == key and _is_filled_beside(other, store, key):
            table = f"{store.base}.{store.name}"
            return f"take the key out of {table}, too, where {_place_of(other)} is done with it"
    return ""


def _removals_beside(store: Store) -> Iterator[Store]:
    """Yields the statements that take a key out of another attribute of the same object."""
    return (
        other
        for other in _stores_of_class(store)
        if _takes_a_key(other) and other.base == store.base and other.name != store.name
    )


def _takes_a_key(store: Store) -> bool:
    return store.how == "delete" or store.method in _TAKING_A_KEY


def _is_filled_beside(removal: Store, store: Store, key: str) -> bool:
    """True if a statement of the class puts the same key where a removal takes it out."""
    return any(
        other.name == removal.name and not is_removal(other) and _key_of(other) == key
        for other in _stores_of_class(store)
    )


def _stores_of_class(store: Store) -> Iterator[Store]:
    module = read_source(store.file)
    stores = () if module is None else chain.from_iterable(module.stores.values())
    return (other for other in stores if other.function.owner == store.function.owner)


def _key_of(store: Store) -> str | None:
    """The name under which a statement puts or takes something: ``ticket``; None where it is none."""
    key = store.key
    if key is None and store.how == "call" and store.arguments:
        key = store.arguments[0]
    return last_name(key) if isinstance(key, ast.Name | ast.Attribute) else None


def _place_of(removal: Store) -> str:
    text = ast.unparse(removal.statement).partition("\n")[0]
    place = f"line {removal.line}"
    return f"{place} ({text})" if len(text) <= _LONGEST_STATEMENT else place


def _early_end_of_loop(removal: Store) -> str:
    """The loop around a removal, where its condition does not look at what is emptied."""
    loop = loop_around(removal.file, removal.line)
    if not isinstance(loop, ast.While):
        return ""
    test = ast.unparse(loop.test)
    is_open = isinstance(loop.test, ast.Constant) or removal.name in names_read(loop.test)
    if is_open or len(test) > _LONGEST_STATEMENT:
        return ""
    return f": its loop (line {loop.lineno}: while {test}) can end while some are left"
