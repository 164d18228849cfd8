"""Owners: what a person would call the object that keeps, and the statement that fills it."""

from __future__ import annotations

import sys
import types

from vramlens.live.heap.objects import (
    class_module,
    class_name,
    class_path,
    code_of,
    is_kind,
    is_users,
)
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, Link, texts_of
from vramlens.live.holder.keeper import Keeper
from vramlens.live.leaks.leak_report import Owner

_LONGEST_NAME = 120
_MOST_TAILS = 8


def owner_of(search: Search, chain: Chain, at: int, keeper: Keeper | None, source: str) -> Owner:
    """The owner at an index of a chain's links; -1 is the root itself."""
    kind = class_name(type(chain.links[at].value)) if at >= 0 else "module"
    if at >= 0 and kind == "_lru_cache_wrapper":
        kind = "lru_cache"
    return Owner(
        name=(_registration_name(chain, at, keeper) or owner_name(chain, at))[:_LONGEST_NAME],
        kind=kind,
        file=keeper.file if keeper is not None else "",
        line=keeper.line if keeper is not None else 0,
        function=keeper.function if keeper is not None else "",
        chain=tuple(texts_of(search, chain)),
        source=source,
    )


def _registration_name(chain: Chain, at: int, keeper: Keeper | None) -> str:
    """``loop.call_later(…)``, where what piles up is a private part of a library's object; empty
    elsewhere.
    """
    store = None if keeper is None else keeper.store
    if store is None or store.how != "call" or at < 1:
        return ""
    holder = chain.links[at - 1].value
    is_private = chain.links[at].how == "attribute" and chain.links[at].name.startswith("_")
    if not is_private or is_kind(holder, type) or _is_users_class(type(holder)):
        return ""
    receiver = f"{store.base}.{store.name}" if store.base else store.name
    return f"{receiver}.{store.method}(…)"


def owner_name(chain: Chain, at: int) -> str:
    """``Trainer.history``, ``history``, ``logs['loss']``, ``hook.store``."""
    if at < 0:
        return "the module's variables" if chain.root is None else chain.root.name
    links = chain.links
    value = links[at].value
    if at + 1 < len(links) and links[at + 1].how == "attribute" and _is_users_class(type(value)):
        return (
            f"{class_path(type(value))}.{links[at + 1].name}"  # its attributes themselves pile up
        )
    tails: list[str] = []  # the last first
    for index in range(at, -1, -1):
        link = links[index]
        holder = links[index - 1].value if index else None
        if link.how in ("attribute", "class attribute", "gradient", "base") and holder is not None:
            cls = holder if is_kind(holder, type) else type(holder)
            if is_kind(holder, type) or _is_users_class(cls):
                return f"{class_path(cls)}.{link.name}{_joined(tails)}"
            tails.append(f".{link.name}")  # a library's object is called what the user calls it
        elif link.how == "attribute":
            return f"{link.name}{_joined(tails)}"
        elif link.how in ("global", "variable"):
            return f"{_plain(link)}{_joined(tails)}"
        elif link.how in ("closure", "default"):
            code = code_of(holder)
            function = "" if code is None else code.co_name
            name = (link.name or "closure") + _joined(tails)
            return name if function in ("", "<lambda>") else f"{function}.{name}"
        elif link.how == "root":
            return f"{link.name}{_joined(tails)}"
        elif link.how in ("key", "index"):
            tails.append(f"[{link.name}]")
        elif link.how == "cached":
            code = code_of(holder)
            return ("lru_cache" if code is None else f"{code.co_name} (lru_cache)") + _joined(tails)
    last = links[at].value
    if isinstance(last, types.FunctionType):
        return last.__name__
    return f"a {class_path(type(last))}{_joined(tails)}"


def _joined(tails: list[str]) -> str:
    """Keys and attributes, given from the last to the first, as one writes them; of many the
    first and the last.
    """
    if len(tails) <= _MOST_TAILS:
        return "".join(reversed(tails))
    return "".join((*tails[: -_MOST_TAILS // 2 - 1 : -1], "…", *tails[_MOST_TAILS // 2 - 1 :: -1]))


def _is_users_class(cls: type) -> bool:
    """Whether a class is from the user's code; a library's object is called what the user calls
    it.
    """
    names = getattr(sys.modules.get(class_module(cls)), "__dict__", {})
    file = names.get("__file__")
    return (
        is_users(file) if type(file) is str else class_module(cls) not in sys.builtin_module_names
    )


def _plain(link: Link) -> str:
    return link.name or "a variable"
