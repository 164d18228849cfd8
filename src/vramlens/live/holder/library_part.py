"""Objects of libraries whose insides the user cannot limit: private parts, halves of a ``tee``, tables
with weak keys. The advice is about what the user calls or stores.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

from vramlens.live.heap.objects import (
    attributes_of,
    class_dict,
    class_module,
    class_name,
    class_order,
    dict_items,
    elements_of,
    is_kind,
    is_users_class,
)
from vramlens.live.heap.tees import is_tee
from vramlens.live.holder.chain import Chain
from vramlens.live.holder.keeper import Keeper, store_of
from vramlens.live.holder.owner import owner_name
from vramlens.live.source.source_stores import Store

_KINDS = ("container", "cache")
"""The classes of leaks of which the usual advice is to limit or to empty what keeps."""
_OPTIONS = {
    ("_PredictionLoop", "_predictions"): (
        "call trainer.predict(..., return_predictions=False) and write each batch's predictions"
        " to a file, for example in a BasePredictionWriter"
    ),
}
"""What turns a library's keeping off, by class and attribute."""
_CONTAINER_MODULES = ("builtins", "collections", "queue", "asyncio", "weakref")
_MODULE_LISTS = ("torch.nn.modules.container",)
_EMPTYING = ("reset", "clear", "reset_mock", "flush", "clear_cache", "cache_clear")
_OPPOSITES = {
    "add": ("remove", "delete", "discard"),
    "register": ("unregister", "deregister", "remove"),
    "subscribe": ("unsubscribe",),
    "connect": ("disconnect",),
    "attach": ("detach",),
    "push": ("pop",),
}
"""What methods are called that take back what others do, by how their names begin."""
_CANNOT_GO = "a weak key table cannot let a key go while its own value refers to it"
_TEE_FIX = (
    "read both halves of the tee at the same pace, or drop the one that lags (del, or read ahead"
    " without tee: itertools.chain([first], rest))"
)


def library_fix(kind: str, chain: Chain, at: int, keeper: Keeper | None) -> str:
    """What to do where a library's object keeps in a private attribute of its own, and no statement
    of the user's fills that; empty elsewhere.

    Args:
        kind: the leak's class.
        chain: the way to an example of what is kept.
        at: the index in its links of the object that keeps.
        keeper: the statement that keeps, where it is known.
    """
    if at >= 0 and is_tee(chain.links[at].value):
        return _TEE_FIX
    of_own_keys = _fix_of_own_keys(chain, at)
    if of_own_keys or kind not in _KINDS:
        return of_own_keys
    store = store_of(keeper)
    return _fix_of_called(store, chain, at) or _fix_of_private_part(store, chain, at)


def _fix_of_own_keys(chain: Chain, at: int) -> str:
    """For a table with weak keys whose values refer to their own keys; empty where they do not."""
    table = chain.links[at].value if at >= 0 else None
    if not is_kind(table, weakref.WeakKeyDictionary):
        return ""
    references = dict_items(dict(attributes_of(table)).get("data"))
    on_the_way = [link.value for link in chain.links[at + 1 :]]
    entries = (pair for pair in references if any(value is pair[1] for value in on_the_way))
    reference, value = next(entries, (None, None))
    key = reference() if isinstance(reference, weakref.ref) else None
    if key is None:
        return ""
    for name, part in attributes_of(value):
        if part is key:
            where = f"{class_name(type(value))}.{name}"
            return f"keep a number, or weakref.ref(...), in {where}: {_CANNOT_GO}"
    if type(value) is types.MethodType and value.__self__ is key:
        return f"keep weakref.WeakMethod(...) in place of the bound method: {_CANNOT_GO}"
    if value is key or any(part is key for part in elements_of(value) or ()):
        return (
            f"keep a number, or weakref.ref(...), in place of the key in each value: {_CANNOT_GO}"
        )
    return ""


def _fix_of_called(store: Store | None, chain: Chain, at: int) -> str:
    called = None if store is None else _called_library_object(store, chain, at)
    if store is None or called is None:
        return ""
    return _undoing_fix(store, type(called)) or _emptying_fix(store, chain, at)


def _fix_of_private_part(store: Store | None, chain: Chain, at: int) -> str:
    if _fills_it(store, chain):
        return ""
    for index in range(at, 0, -1):
        link = chain.links[index]
        if link.how in ("key", "index"):
            continue
        holder = chain.links[index - 1].value
        if link.how != "attribute" or not link.name.startswith("_") or is_kind(holder, type):
            return ""
        return "" if is_users_class(type(holder)) else _fix(type(holder), link.name)
    return ""


def _fills_it(store: Store | None, chain: Chain) -> bool:
    """Whether a statement may fill a library's private part. One that calls or sets the
    user's own object only makes what is kept.
    """
    if store is None:
        return False
    receivers = [link.value for link in chain.links if link.name == store.name]
    return not receivers or not is_users_class(type(receivers[-1]))


def _called_library_object(store: Store, chain: Chain, at: int) -> Any:
    """The library's object whose method a statement calls, which keeps what it is given in an
    attribute of its own or of a part; None where the statement does anything else.
    """
    if store.how != "call":
        return None
    if store.name == "self":
        return _library_parent(store, chain, at)
    above = [link.value for link in chain.links[:at] if link.name == store.name]
    return above[-1] if above and _is_library_class(type(above[-1])) else None


def _library_parent(store: Store, chain: Chain, at: int) -> Any:
    """The user's object on the way whose method a statement calls by ``self``, if it has the method
    from a library's class; None elsewhere.
    """
    for link in chain.links[:at]:
        order = class_order(type(link.value))
        definer = next((base for base in order if store.method in class_dict(base)), None)
        if definer is not None and _is_library_class(definer):
            return link.value
    return None


def _is_library_class(cls: type) -> bool:
    module = class_module(cls)
    is_container = module.partition(".")[0] in _CONTAINER_MODULES or module in _MODULE_LISTS
    return not is_container and not is_users_class(cls)


def _undoing_fix(store: Store, cls: type) -> str:
    """The method that takes back what the called one does; empty where there is none of a usual
    name.
    """
    methods = {name for base in class_order(cls) for name in class_dict(base)}
    for beginning, opposites in _OPPOSITES.items():
        if not store.method.startswith(beginning):
            continue
        ending = store.method.removeprefix(beginning)
        for opposite in opposites:
            if f"{opposite}{ending}" in methods:
                receiver = f"{store.base}.{store.name}" if store.base else store.name
                return f"call {receiver}.{opposite}{ending}(...) for what is done"
    return ""


def _emptying_fix(store: Store, chain: Chain, at: int) -> str:
    """The method of the library's object that empties it, or what to hand over instead."""
    for index in range(at, 0, -1):
        link, holder = chain.links[index], chain.links[index - 1].value
        if link.how != "attribute" or not _is_library_class(type(holder)):
            continue
        methods = {name for base in class_order(type(holder)) for name in class_dict(base)}
        emptying = next((name for name in _EMPTYING if name in methods), None)
        kept_in = f"{class_name(type(holder))}.{link.name}"
        package = class_module(type(holder)).partition(".")[0]
        if emptying is None:
            receiver = f"{store.base}.{store.name}" if store.base else store.name
            return _OPTIONS.get((class_name(type(holder)), link.name)) or (
                f"give {receiver}.{store.method}(...) numbers (.item()) or smaller results:"
                f" {package} keeps them all in {kept_in}"
            )
        return (
            f"call {owner_name(chain, index - 1)}.{emptying}() when what it holds is done, or give"
            f" it less: {package} keeps it in {kept_in}"
        )
    return ""


def _fix(holder_class: type, attribute: str) -> str:
    cls = class_name(holder_class)
    option = _OPTIONS.get((cls, attribute))
    if option is not None:
        return option
    package = class_module(holder_class).partition(".")[0]
    return (
        f"{package} keeps this itself, in {cls}.{attribute}: look for an option of {package} that"
        " turns it off, or give it less (smaller results, on the CPU, fewer at a time)"
    )
