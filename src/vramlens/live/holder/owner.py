"""Owners: what a person would call the object that keeps, and the statement that fills it."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from vramlens.leak.leak import LeakOwner
from vramlens.live.heap.objects import (
    class_name,
    class_path,
    code_of,
    is_kind,
    is_users,
    is_users_class,
)
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, Link, texts_of
from vramlens.live.holder.keeper import Keeper, statement_source, store_of
from vramlens.live.source.stored_values import target_of

_LONGEST_NAME = 120
"""Characters, a line and a half of a terminal: longer ones hide what is said of them."""
_MOST_TAILS = 8
"""Keys and attributes of a name: of more the first and last four name the place."""
_ATTRIBUTES = ("attribute", "class attribute", "gradient", "base")
_PUBLIC_KINDS = {"_lru_cache_wrapper": "lru_cache", "_tee": "tee"}
"""What a person calls classes of the interpreter."""


def owner_with(keeper: Keeper | None, name: str, kind: str, chain: Sequence[str]) -> LeakOwner:
    """An owner at the statement that keeps, where that is known."""
    if keeper is None:
        return LeakOwner(name, kind, chain=tuple(chain))
    return LeakOwner(
        name=name,
        kind=kind,
        file=keeper.file,
        line=keeper.line,
        function=keeper.function,
        chain=tuple(chain),
        source=statement_source(keeper),
    )


def owner_of(search: Search, chain: Chain, at: int, keeper: Keeper | None) -> LeakOwner:
    """The owner at an index of a chain's links; -1 is the root itself."""
    kind = class_name(type(chain.links[at].value)) if at >= 0 else "module"
    kind = _PUBLIC_KINDS.get(kind, kind)
    name = _registration_name(chain, at, keeper) or owner_name(chain, at)
    return owner_with(keeper, name[:_LONGEST_NAME], kind, texts_of(search, chain))


def has_no_name(chain: Chain, owner: LeakOwner) -> bool:
    """Whether an owner has no name of the user's: a variable of a library's function that runs,
    or no root at all.
    """
    if owner.line and is_users(owner.file):
        return False
    root = chain.root
    return root is None or (root.kind == "variable" and root.tier > 0)


def _registration_name(chain: Chain, at: int, keeper: Keeper | None) -> str:
    """``loop.call_later(…)``, ``request.app[RESULTS]``, where what piles up is a private part of a
    library's object; empty elsewhere.
    """
    store = store_of(keeper)
    if store is None:
        return ""
    if store.how == "item" and any(_is_private(chain, place) for place in range(1, at)):
        return target_of(store)
    if store.how != "call" or at < 1 or not _is_private(chain, at):
        return ""
    receiver = f"{store.base}.{store.name}" if store.base else store.name
    return f"{receiver}.{store.method}(…)"


def _is_private(chain: Chain, at: int) -> bool:
    """Whether a link is a private attribute of a library's object."""
    link, holder = chain.links[at], chain.links[at - 1].value
    is_private = link.how == "attribute" and link.name.startswith("_")
    return is_private and not is_kind(holder, type) and not is_users_class(type(holder))


def owner_name(chain: Chain, at: int) -> str:
    """``Trainer.history``, ``history``, ``logs['loss']``, ``hook.store``."""
    if at < 0:
        return "the module's variables" if chain.root is None else chain.root.name
    links = chain.links
    owner = links[at].value
    if _attributes_pile_up(owner, links[at + 1 :]):
        return f"{class_path(type(owner))}.{links[at + 1].name}"
    tails: list[str] = []  # the last first
    for index in range(at, -1, -1):
        link = links[index]
        holder = links[index - 1].value if index else None
        start = _start_of_name(link, holder)
        if start is not None:
            return start + _joined(tails)
        if link.how in ("key", "index"):
            tails.append(f"[{link.name}]")
        elif link.how in _ATTRIBUTES:
            tails.append(f".{link.name}")  # a library's object is called what the user calls it
    if isinstance(owner, types.FunctionType):
        return owner.__name__
    return f"a {class_path(type(owner))}{_joined(tails)}"


def name_of_parts(name: str) -> str:
    """``Sessions.by_user[...]`` of ``Sessions.by_user['a']``: all parts of one thing."""
    return f"{name.partition('[')[0]}[...]"


def _attributes_pile_up(owner: Any, following: Sequence[Link]) -> bool:
    is_attribute = bool(following) and following[0].how == "attribute"
    return is_attribute and is_users_class(type(owner))


def _start_of_name(link: Link, holder: Any) -> str | None:
    """What a name can begin with at a link; None where it goes on to the holder."""
    if link.how in _ATTRIBUTES and holder is not None:
        cls = holder if is_kind(holder, type) else type(holder)
        has_name = cls is holder or is_users_class(cls)
        return f"{class_path(cls)}.{link.name}" if has_name else None
    if link.how in ("attribute", "root", "context variable"):
        return link.name
    if link.how in ("global", "variable"):
        return link.name or "a variable"
    if link.how in ("closure", "default", "cached"):
        return _start_in_function(link, code_of(holder))
    return None


def _start_in_function(link: Link, code: types.CodeType | None) -> str:
    if link.how == "cached":
        return "lru_cache" if code is None else f"{code.co_name} (lru_cache)"
    name = link.name or "closure"
    return name if code is None or code.co_name == "<lambda>" else f"{code.co_name}.{name}"


def _joined(tails: list[str]) -> str:
    """Keys and attributes, given from the last to the first, as one writes them; of many the
    first and the last.
    """
    if len(tails) <= _MOST_TAILS:
        return "".join(reversed(tails))
    return "".join((*tails[: -_MOST_TAILS // 2 - 1 : -1], "…", *tails[_MOST_TAILS // 2 - 1 :: -1]))
