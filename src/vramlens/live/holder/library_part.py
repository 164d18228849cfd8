"""Private parts of a library's object: the user cannot limit them, so the advice is about what the
user calls.
"""

from __future__ import annotations

from vramlens.live.heap.objects import class_module, class_name, is_kind, is_users_class
from vramlens.live.heap.tees import is_tee
from vramlens.live.holder.chain import Chain
from vramlens.live.holder.keeper import Keeper, store_of
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
    if kind not in _KINDS or _fills_it(store_of(keeper), chain):
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
