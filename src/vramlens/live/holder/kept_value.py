"""What is kept, as far as it decides what to write in its place: tensors, tables of them, or
objects that have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vramlens.live.heap.objects import (
    QUEUES,
    class_module,
    class_name,
    class_order,
    dict_items,
    elements_of,
    is_kind,
)
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain, Link
from vramlens.live.holder.keeper import Keeper, store_of
from vramlens.live.source.source_stores import Store

_MOST_ENTRIES, _MOST_TABLES = 200, 50
_ADDING = ("append", "appendleft", "add", "insert", "extend", "extendleft", "put")
SPREADING = ("extend", "extendleft", "update")
"""Methods that are given several things at once."""
_FORMS: dict[type, str] = {list: "list", tuple: "tuple", dict: "dict"}
IsTensor = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept, as far as it decides what to change.

    Attributes:
        is_remade: whether a tensor is made anew, larger, each time.
        pinned_size: the size of a storage that small views keep whole, as text; empty else.
        viewed_share: how much of the bytes those views show, which a copy of each would take.
        device: on which most of it is.
        is_number: whether it is a tensor of one element.
        graph_share: how much of the bytes only the autograd graph keeps: what a detached tensor
            would free.
        form: what the statement stores: a tensor, a list, tuple or dict of tensors, a node of the
            autograd graph (``ctx``), or another object with tensors inside.
        is_mixed: whether other things are stored there, too: numbers, or None.
        is_emptied: whether a statement is known to run that takes things away there.
        container: what kind of collection keeps: list, deque, dict, set or queue; empty else.
        value: an example of what the statement stores.
        inside: the links from there to a tensor.
        path: how a program reads that tensor: ``.logits``, ``['loss']``; empty where only private
            names lead there.
    """

    is_remade: bool = False
    pinned_size: str = ""
    viewed_share: float = 0.0
    device: str = ""
    is_number: bool = False
    graph_share: float = 1.0
    form: str = "tensor"
    is_mixed: bool = False
    is_emptied: bool = False
    container: str = ""
    value: Any = None
    inside: Sequence[Link] = ()
    path: str = ""

    @property
    def is_on_cpu(self) -> bool:
        """Whether most of it is in the host's memory."""
        return self.device.startswith("cpu")

    def or_off_gpu(self, advice: str) -> str:
        """An advice to move it to the host, as a last clause; empty where it is there."""
        return f", or {advice}" if advice and not self.is_on_cpu else ""

    def with_call(self, source: str, call: str) -> str:
        """The source of what to keep instead, as ``loss.detach()``; empty where what is stored has
        no such method.

        Args:
            source: what the statement stores.
            call: a method of tensors: ``detach()``.
        """
        part, changed = f"{source}.{call}", f"value.{call}"
        if self.is_mixed:
            part = f"({part} if torch.is_tensor({source}) else {source})"
            changed += " if torch.is_tensor(value) else value"
        return {
            "tensor": part,
            "list": f"[{changed} for value in {source}]",
            "tuple": f"tuple({changed} for value in {source})",
            "dict": f"{{key: {changed} for key, value in {source}.items()}}",
        }.get(self.form if source else "", "")


def stored_form(search: Search, chain: Chain, at: int, keeper: Keeper | None, kept: Any) -> Kept:
    """What a statement stores.

    Args:
        chain: the way to an example of what is kept.
        at: the index in its links of the object that keeps; -1 for a module.
        kept: what it holds.
    """
    is_tensor = search.torch.is_tensor
    store = store_of(keeper)
    container = chain.links[at].value if at >= 0 else None
    if is_tensor(container) or search.torch.is_node(container):
        return Kept()  # a graph that goes on: what is stored is its newest tensor
    entry = at + 1 + _tables_passed(store, chain.links[max(at, 0) :])
    value = chain.links[entry].value if entry < len(chain.links) else kept
    siblings = tuple(_siblings(chain.links[:entry], store))
    spreads = _spreading_form(store, container)
    if spreads and is_tensor(value):
        form, parts = spreads, siblings
    else:
        form = "node" if search.torch.is_node(value) else _form_of(value, is_tensor)
        parts = siblings if form == "tensor" else tuple(_parts_of(value))
    inside = chain.links[entry + 1 :]
    return Kept(
        form=form,
        is_mixed=not all(map(is_tensor, parts)),
        container=container_form(container),
        value=value,
        inside=inside,
        path=_path_to_tensor(inside, is_tensor),
    )


def container_form(container: object) -> str:
    """What kind of collection something is: list, deque, dict, set or queue; empty for all else."""
    if class_module(type(container)) in QUEUES:
        return "queue"
    if is_kind(container, dict):
        return "dict"
    kinds = ("list", "set", "deque")
    names = {class_name(base) for base in class_order(type(container))}
    return next((name for name in kinds if name in names), "")


def _form_of(value: Any, is_tensor: IsTensor) -> str:
    if is_tensor(value):
        return "tensor"
    form = _FORMS.get(type(value), "object")
    parts = tuple(_parts_of(value))
    is_flat = any(map(is_tensor, parts)) and all(_is_tensor_or_plain(part) for part in parts)
    return form if is_flat else "object"


def _is_tensor_or_plain(part: object) -> bool:
    """Whether a part is not a table of its own, which may have tensors inside."""
    return not is_kind(part, dict) and elements_of(part) is None


def _parts_of(value: object) -> Iterable[Any]:
    """The first elements of a list, or values of a dict."""
    elements = elements_of(value)
    if elements is None:
        elements = iter([part for _, part in dict_items(value)])
    return islice(elements, _MOST_ENTRIES)


def _siblings(links: Sequence[Link], store: Store | None) -> Iterator[Any]:
    """What the same statement may have put beside an entry, under other keys, too."""
    keys = (None,) if store is None else store.keys
    is_one_key = store is not None and store.how in ("item", "add") and keys and None not in keys
    if not links or is_one_key:
        return
    yield from _parts_of(links[-1].value)
    if len(links) > 1 and links[-1].how == "key" and None in keys:
        for table in islice(_parts_of(links[-2].value), _MOST_TABLES):
            yield from _parts_of(table)


def _tables_passed(store: Store | None, links: Sequence[Link]) -> int:
    """How many tables are between what keeps and what the statement adds: one for
    ``series[name].append(value)`` where the dict keeps, one for a queue's own deque.
    """
    if len(links) < 2:
        return 0
    container, inner = links[:2]
    if container_form(container.value) == "queue":
        return 1
    if store is None or store.how != "call" or store.method not in _ADDING:
        return 0
    is_table = is_kind(container.value, dict) and inner.how == "key"
    return int(is_table and elements_of(inner.value) is not None)


def _spreading_form(store: Store | None, container: object) -> str:
    """What ``outputs.extend(parts)`` is given, a list or a dict; empty for other statements."""
    if store is None:
        return ""
    is_table = is_kind(container, dict)
    if store.how == "call" and store.method in SPREADING:
        return "dict" if is_table else "list"
    is_sum = store.how == "add" and not store.keys and elements_of(container) is not None
    return "list" if is_sum else ""


def _path_to_tensor(links: Sequence[Link], is_tensor: IsTensor) -> str:
    """``.logits``, ``['loss']``; empty where it goes through a private name."""
    path = ""
    for link in links:
        is_public = link.name.isidentifier() and not link.name.startswith("_")
        if link.how == "attribute" and is_public:
            path += f".{link.name}"
        elif link.how in ("key", "index"):
            path += f"[{link.name}]"
        else:
            return ""
        if is_tensor(link.value):
            return path
    return ""
