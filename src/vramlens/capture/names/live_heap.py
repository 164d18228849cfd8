"""The live tensors, modules and optimizers of the program, read without running anyone's code."""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import compress, takewhile
from typing import Any, NamedTuple

from vramlens.capture.process.reference_index import ReferenceIndex
from vramlens.capture.process.referents import SEQUENCES
from vramlens.ground.live_objects import (
    InstanceLayout,
    class_dict,
    class_name,
    class_order,
    instance_layout,
)
from vramlens.ground.program_errors import let_through

_OPAQUE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
)
PARTS_OF_FUNCTION = (".__closure__", ".__defaults__", ".__kwdefaults__")
_OF_CLASSES = frozenset(
    map(
        id,
        (
            types.BuiltinFunctionType,
            types.ClassMethodDescriptorType,
            types.CodeType,
            types.GetSetDescriptorType,
            types.MemberDescriptorType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            property,
        ),
    )
)
"""The ids of what classes and modules are made of, a third of a heap with its functions: none leads to a tensor."""
CONTAINERS = (dict, *SEQUENCES)
NAMESPACE = ".__dict__"
_MOST_ITEMS = 300_000
"""Of one look, all together: a tokenizer's vocabulary may hang on a model."""
_LONGEST_KEY = 80
_KIND_BY_CLASS_NAME = {
    "FSDPParam": "fsdp2",
    "FSDPParamGroup": "fsdp2_group",
    "FlatParamHandle": "fsdp1",
    "GradScaler": "scaler",
    "_lru_cache_wrapper": "lru_cache",
}


class TensorStorage(NamedTuple):
    """Where a tensor's bytes are; ``offset`` (in elements) tells views of one storage apart."""

    device: int
    address: int
    size_bytes: int
    offset: int

    @property
    def whole(self) -> TensorStorage:
        """The storage without a view of it."""
        return self._replace(offset=0)


class _Attributes(list[tuple[str, Any]]):
    """Attributes that have been read already, to be looked into like the instance they are from."""


class LiveHeap:
    """Everything alive, by kind, and how to look into it.

    Attributes:
        objects: everything that is alive.
        live: instances by kind: tensor, module, optimizer, wrapper, scaler, fsdp1, fsdp2,
            fsdp2_group, lru_cache.
    """

    def __init__(self, torch: Any, device_type: str, objects: list[Any]) -> None:
        self.device_type = device_type
        self.tensor: Any = torch.Tensor
        self._items_left = _MOST_ITEMS
        self._kinds: dict[int, str] = {}
        self._layouts: dict[int, InstanceLayout] = {}
        self._plain: dict[int, bool] = {}
        self._count_uses: Any = torch._C._storage_Use_Count
        self.objects = objects
        self._index: ReferenceIndex | None = None
        # Classes are kept for the while of this look: their ids are the keys.
        self._classes = self._classify(torch)
        self.live: dict[str, list[Any]] = {}
        has_kind = map(self._kinds.__contains__, map(id, map(type, self.objects)))
        for instance in compress(self.objects, has_kind):
            self.live.setdefault(self._kinds[id(type(instance))], []).append(instance)

    def index(self, until: float) -> ReferenceIndex:
        """The references of all objects that may lead to a tensor, read when they are first asked for.

        Args:
            until: when to end reading, by ``time.thread_time``.
        """
        if self._index is None:
            self._index = ReferenceIndex(filter(_may_hold, self.objects), until)
        return self._index

    def clear(self) -> None:
        """Lets go of the objects: the frame of this very look can be among them, and would hold them all."""
        self.objects.clear()
        if self._index is not None:
            self._index.clear()

    def _classify(self, torch: Any) -> list[type]:
        """Every class there is; ``_kinds`` then knows the interesting ones by id (a metaclass
        may define hash).
        """
        visited: set[int] = set()
        classes: list[type] = []
        bases = {
            torch.Tensor: "tensor",
            torch.nn.Module: "module",
            torch.optim.Optimizer: "optimizer",
            object: "",
        }
        for base, base_kind in bases.items():
            waiting = [(base, base_kind)]
            while waiting:
                cls, kind = waiting.pop()
                if id(cls) in visited:
                    continue
                visited.add(id(cls))
                classes.append(cls)
                kind = kind or _kind_by_class_name(class_name(cls))
                if kind:
                    self._kinds[id(cls)] = kind
                waiting.extend((below, kind) for below in type.__subclasses__(cls))
        return classes

    def kind(self, instance: object) -> str | None:
        """The kind of an object; None for what is of no interest."""
        return self._kinds.get(id(type(instance)))

    def attributes(self, owner: object) -> list[tuple[str, Any]]:
        """Names and values of an instance's own attributes: slots and the real ``__dict__``,
        never a property.
        """
        layout = self._layout_of(type(owner))
        attributes = []
        for name, slot in layout.slots:
            with suppress(AttributeError):  # a slot without a value
                attributes.append((name, slot.__get__(owner)))
        if layout.namespace is not None:
            attributes.extend(named_items(layout.namespace.__get__(owner)))
        return attributes

    def namespace(self, owner: object) -> Any:
        """The dict in which an instance keeps its attributes, or None."""
        getter = self._layout_of(type(owner)).namespace
        return None if getter is None else getter.__get__(owner)

    def _layout_of(self, cls: type) -> InstanceLayout:
        if id(cls) not in self._layouts:
            self._layouts[id(cls)] = instance_layout(cls)
            self._classes.append(cls)
        return self._layouts[id(cls)]

    def edges(self, owner: Any) -> list[tuple[str, Any]]:
        """The members of a container or an instance, with the text that leads to each: ``['key']``,
        ``[3]``, ``.name``.
        """
        cls = type(owner)
        if cls is _Attributes:
            return _named_edges(owner)
        if issubclass(cls, dict):
            return [(f"[{key_label(key)}]", member) for key, member in items_of(owner)]
        if issubclass(cls, tuple) and "_fields" in class_dict(cls):
            fields = class_dict(cls)["_fields"]
            return _named_edges(zip(fields, tuple.__iter__(owner), strict=False))
        for base in SEQUENCES:
            if issubclass(cls, base):
                elements = list(base.__iter__(owner))
                return [(f"[{index}]", element) for index, element in enumerate(elements)]
        if issubclass(cls, _OPAQUE):
            return []
        return _named_edges(self.attributes(owner))

    def tensors_below(
        self, owner: Any, *, depth: int = 5, objects: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Yields the tensor itself, or those in nested containers and (``objects``) plain
        instances, with their paths.
        """
        kind = self.kind(owner)
        if kind == "tensor":
            yield "", owner
        elif kind not in ("module", "optimizer"):  # which speak for themselves
            yield from self._tensors_inside(owner, depth, object if objects else CONTAINERS)

    def _tensors_inside(
        self, owner: Any, depth: int, searched: type | tuple[type, ...]
    ) -> Iterator[tuple[str, Any]]:
        waiting: deque[tuple[str, Any, int]] = deque([("", owner, depth)])
        visited = {id(owner)}
        while waiting:
            path, holder, levels = waiting.popleft()
            for label, member in self.edges(holder):
                self._items_left -= 1
                if self._items_left < 0:
                    return
                kind = self.kind(member)
                if kind == "tensor":
                    yield path + label, member
                elif kind or levels == 1 or id(member) in visited or not gc.is_tracked(member):
                    continue
                elif issubclass(type(member), searched):
                    visited.add(id(member))
                    waiting.append((path + label, member, levels - 1))

    def is_plain(self, tensor: Any) -> bool:
        """True where sizes can be asked without Python code: no class below ``torch.Tensor``
        defines a dispatch.
        """
        cls = type(tensor)
        plain = self._plain.get(id(cls))
        if plain is None:
            below = takewhile(lambda base: base is not self.tensor, class_order(cls))
            plain = not any("__torch_dispatch__" in class_dict(base) for base in below)
            self._plain[id(cls)] = plain
        return plain

    def storage(self, tensor: Any) -> TensorStorage | None:
        """The tensor's own storage on the device, or None (another device, fake, freed, made of
        other tensors).
        """
        try:
            storage = self.tensor.untyped_storage(tensor)
            device = storage.device
            # Before the address: asking a fake tensor for its address warns.
            if device.type != self.device_type:
                return None
            address, size = storage.data_ptr(), storage.nbytes()
            if not address or not size:
                return None
            offset = self.tensor.storage_offset(tensor) if self.is_plain(tensor) else 0
        except Exception as error:
            let_through(error)
            return None
        return TensorStorage(-1 if device.index is None else device.index, address, size, offset)

    def storage_uses(self, tensor: Any) -> int:
        """How many tensors share the storage of a plain tensor, those of C++ included, and one more for what asks."""
        storage = self.tensor.untyped_storage(tensor)
        return int(self._count_uses(storage._cdata))

    def storages(self, tensor: Any, depth: int = 3) -> list[tuple[str, TensorStorage]]:
        """All storages that a tensor keeps, with what to add to its name: ``__tensor_flatten__``
        without calling it.

        A subclass made of other tensors (DTensor, quantised and nested tensors) keeps them as
        attributes.
        """
        storage = self.storage(tensor)
        storages = [] if storage is None else [("", storage)]
        if depth and not self.is_plain(tensor):
            attributes = _Attributes(self.attributes(tensor))
            for label, inner in self.tensors_below(attributes, depth=2, objects=False):
                prefix = "" if label == "._local_tensor" else label
                for suffix, part in self.storages(inner, depth - 1):
                    storages.append((prefix + suffix, part))
        return [("", storages[0][1])] if len(storages) == 1 else storages

    def shape(self, tensor: Any) -> str:
        """Element type and sizes: ``float32[8, 1024]``."""
        dtype = self.dtype(tensor)
        if not self.is_plain(tensor):
            return dtype
        return f"{dtype}{list(self.tensor.shape.__get__(tensor))}"

    def dtype(self, tensor: Any) -> str:
        """The type of its elements: ``float32``."""
        return str(self.tensor.dtype.__get__(tensor)).removeprefix("torch.")

    def whole_bytes(self, tensor: Any) -> int:
        """Bytes of the elements of all ranks that a DTensor stands for; 0 of others."""
        if "_local_tensor" not in dict(self.attributes(tensor)):
            return 0
        return int(self.tensor.numel(tensor) * self.tensor.dtype.__get__(tensor).itemsize)

    def view_bytes(self, tensor: Any) -> int:
        """Bytes of the elements that a tensor shows, of its storage perhaps a small part."""
        if not self.is_plain(tensor):
            return 0
        return int(self.tensor.numel(tensor) * self.tensor.dtype.__get__(tensor).itemsize)

    def requires_gradients(self, tensor: Any) -> bool:
        """True where autograd computes gradients for it."""
        return bool(self.tensor.requires_grad.__get__(tensor))

    def in_graph(self, tensor: Any) -> bool:
        """Whether an autograd graph made it, and is kept with it: it requires gradients, and is no leaf."""
        try:
            return self.requires_gradients(tensor) and not self.tensor.is_leaf.__get__(tensor)
        except Exception as error:
            let_through(error)
            return False

    def gradient(self, tensor: Any) -> Any:
        """The tensor in ``.grad``, or None; of leaves only: reading it of others warns."""
        try:
            return self.tensor.grad.__get__(tensor) if self.tensor.is_leaf.__get__(tensor) else None
        except Exception as error:
            let_through(error)
            return None


HeapClass = Callable[[Any, str, list[Any]], LiveHeap]
"""Makes the live objects of PyTorch, the type of device and everything alive."""


def _may_hold(candidate: Any) -> bool:
    """Whether it may lead to a tensor of the program, by its type."""
    cls = type(candidate)
    if cls is types.FunctionType:
        return any(getattr(candidate, part[1:]) is not None for part in PARTS_OF_FUNCTION)
    return id(cls) not in _OF_CLASSES  # a metaclass may define ==


def _kind_by_class_name(name: str) -> str:
    return _KIND_BY_CLASS_NAME.get(name, "wrapper" if "Optimizer" in name else "")


def _named_edges(attributes: Any) -> list[tuple[str, Any]]:
    return [(f".{name}", member) for name, member in attributes]


def key_label(key: object) -> str:
    """A dict's key as one would write it; keys that could run code when printed are named by
    their type.
    """
    if type(key) in (str, int, bool, float, type(None)):
        return repr(key)[:_LONGEST_KEY]
    return class_name(type(key))


def attribute_text(label: str) -> str:
    """``.key`` for ``['key']``: what a dict of attributes holds."""
    return label.replace("['", ".", 1).replace("']", "", 1)


def items_of(mapping: Any) -> list[tuple[Any, Any]]:
    """A dict's items, copied in one go, without a subclass's own methods."""
    return list(dict.items(mapping)) if issubclass(type(mapping), dict) else []


def named_items(mapping: Any) -> list[tuple[str, Any]]:
    """A dict's items whose keys are true strings."""
    return [(key, member) for key, member in items_of(mapping) if type(key) is str]


def list_elements(sequence: Any) -> list[Any]:
    """The elements of a list or tuple; of anything else none."""
    for base in (list, tuple):
        if issubclass(type(sequence), base):
            return list(base.__iter__(sequence))
    return []


def script_variables() -> dict[int, str]:
    """Names by id of what the script's own variables hold, the first of each."""
    main = sys.modules.get("__main__")
    names: dict[int, str] = {}
    if issubclass(type(main), types.ModuleType):
        for name, variable in named_items(
            instance_layout(types.ModuleType).namespace.__get__(main)
        ):
            if not name.startswith("_"):
                names.setdefault(id(variable), name)
    return names
