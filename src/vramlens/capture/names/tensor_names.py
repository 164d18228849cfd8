"""Names of the tensors that are alive, by the address of their storage: what the allocator's blocks
are in the program.

One storage has one name, of the first kind that fits:

    parameter         model.blocks.3.attn.qkv.weight; what FSDP gathers: "model.blocks.3.attn.qkv.weight (all-gathered)"
    buffer            model.blocks.3.norm.running_mean
    gradient          grad[model.blocks.3.attn.qkv.weight]
    optimizer_state   optimizer.exp_avg[model.blocks.3.attn.qkv.weight], optimizer.lr[group 0]
    tensor            model.blocks.3.attn.cache['k'], EMA.shadow['blocks.0.weight'], history[3], float32[8, 1024] tensor

``A and 3 more``: four share one storage (buckets of gradients). The trained model is ``model``, the
first optimizer ``optimizer``; more of them are called like the variable of ``__main__``, else like
their class, a second of a name ``_2``. Wrappers (``module.``, ``_orig_mod.``, ...) leave no trace
in a name.

This runs where CUDA memory may just have run out: nothing here allocates on the device, runs a
kernel, calls a user's method or property, reads ``f_locals``, or keeps a tensor.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import thread_time
from typing import Any

from vramlens.capture.names.claims import GRADIENT_FORM, StorageClaims
from vramlens.capture.names.holder_names import SEARCH_SECONDS, HolderNames
from vramlens.capture.names.live_heap import (
    HeapClass,
    LiveHeap,
    TensorStorage,
    attribute_text,
    items_of,
    key_label,
    list_elements,
    named_items,
    script_variables,
)
from vramlens.capture.names.module_names import ModuleNames, UniqueNames
from vramlens.capture.names.parameter_facts import ParameterFacts
from vramlens.capture.names.sharded_names import FsdpNames, attribute_kind, claim_wrappers
from vramlens.capture.names.uncollected import uncollected_storages
from vramlens.capture.process.tracked_objects import everything_alive
from vramlens.capture.process.undisturbed import no_collection
from vramlens.ground.program_errors import let_through, own_errors

_LEAST_BYTES, _WORTH_A_SEARCH = 64 * 1024, 0.01
_MOST_OTHERS, _MOST_VIEWS = 500, 4
_MOST_RESULTS = 100
"""Small tensors that an autograd graph made, such as losses: the smallest."""
_TYPED = ("parameter", "buffer")
"""Kinds whose elements' type is noted."""


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A live storage (where the allocator's block begins) and what the program calls it.

    Attributes:
        device: its index; -1 for a CPU.
        address, bytes: of the storage.
        name, kind: see above.
        use: of a parameter, what training does with it: ``stepped`` (an optimizer has it), ``unstepped``
            (it requires gradients, and no optimizer changes it) or ``frozen``; "" where it is none, or
            the program has no optimizer.
        dtype: of a parameter or buffer, the type of its elements, such as ``bfloat16``; "" where it
            is neither.
        parts: of a parameter that is a DTensor, how many ranks have a part of it (1: it is whole); None of
            others.
        kept_by: of a parameter, the ``lru_cache`` that has its model as an argument, or the call that has one
            of several such models as a variable (``local of build(), call 2``); of a tensor in an attribute
            of some object, the attributes by which such objects lead to each other; "" of others.
        unfrozen: of a parameter that requires gradients, the module around it that was given
            ``requires_grad = False``, an attribute that freezes nothing; "" of others.
        shape: of a tensor that is none of a model's or an optimizer's, type and sizes of what the program
            sees of it, such as ``float32[4096, 1]``; "" of others.
        circle: of what only garbage keeps until Python's collector runs, the circle that does, such as
            ``Node.children[0].parent``; "" of others.
        frozen: of a parameter that an optimizer has, True where it requires no gradients; None of others.
        in_graph: of a tensor that is no parameter or optimizer's state, True where an autograd graph made it and
            is kept with it (it requires gradients, and is no leaf); None of others.
    """

    device: int
    address: int
    bytes: int
    name: str
    kind: str
    use: str = ""
    dtype: str = ""
    parts: int | None = None
    kept_by: str = ""
    unfrozen: str = ""
    shape: str = ""
    circle: str = ""
    frozen: bool | None = None
    in_graph: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """For ``names.json``: what is known of it."""
        return {key: value for key, value in asdict(self).items() if value not in ("", None)}


def named_tensors(
    *,
    device_type: str = "cuda",
    root_names: Mapping[int, str] | None = None,
    search_seconds: float | None = None,
    with_garbage: bool = False,
    heap_class: HeapClass = LiveHeap,
) -> list[NamedTensor]:
    """All storages on devices of a type that have a name: of models and optimizers all, of others
    the largest. Never raises.

    Args:
        root_names: better names for modules that are not another module's child, by ``id``.
        search_seconds: what the search for holders of the others may take of the processor's time;
            by default 2.5.
        with_garbage: whether to look for what only garbage keeps, which takes up to a second.
        heap_class: makes the live objects of PyTorch, the type of device and everything alive: another
            where tensors have no addresses.
    """
    torch: Any = sys.modules.get("torch")
    heap: LiveHeap | None = None
    # What is made here would set off collections, which take seconds on a large heap and run
    # finalizers.
    with no_collection():
        try:
            # This thread's only: no subclass and no mode hears of what is read.
            with torch._C.DisableTorchFunction():
                heap = heap_class(torch, device_type, everything_alive())
                # While nothing here but the heap and its index refer to the objects.
                circles = _circles(heap, search_seconds) if with_garbage else {}
                names = _NamesOfTensors(heap, root_names or {}, search_seconds)
                return names.resolved(circles)
        except Exception as error:  # torch is not there, or not whole
            let_through(error)
            return []
        finally:
            if heap is not None:
                heap.clear()


def _circles(heap: LiveHeap, search_seconds: float | None) -> dict[TensorStorage, str]:
    """The storages that only garbage keeps."""
    allowed = SEARCH_SECONDS if search_seconds is None else search_seconds
    with own_errors():
        return uncollected_storages(heap, heap.index(thread_time() + allowed))
    return {}


class _NamesOfTensors:
    """Claims to storages, gathered from models, optimizers and what holds the rest."""

    def __init__(
        self, heap: LiveHeap, root_names: Mapping[int, str], search_seconds: float | None
    ) -> None:
        self._search_seconds = search_seconds
        self._heap = heap
        self._claims = StorageClaims(heap)
        self._parameter_names: dict[int, str] = {}
        self._parameters: list[Any] = []
        self._buffers: list[Any] = []
        self._links: dict[tuple[int, int], str] = {}
        self._shapes: dict[tuple[int, int], str] = {}
        self._in_graph: set[tuple[int, int]] = set()
        self._keepers: dict[str, str] = {}
        self._modules = ModuleNames(heap)
        self._variables = script_variables()
        self._optimizers: list[tuple[Any, dict[str, Any]]] = []
        for optimizer in heap.live.get("optimizer", ()):
            attributes = dict(heap.attributes(optimizer))
            if {"state", "param_groups"} <= attributes.keys():
                self._optimizers.append((optimizer, attributes))
        self._stepped = {
            id(parameter)
            for _, attributes in self._optimizers
            for parameter in _trained(attributes)
        }
        self._paths = self._modules.paths(self._stepped, root_names, self._variables)

    def resolved(self, circles: Mapping[TensorStorage, str]) -> list[NamedTensor]:
        """One name for each storage.

        Args:
            circles: of storages that only garbage keeps, what does.
        """
        fsdp = FsdpNames(self._heap, self._paths, self._parameter_names, self._claims.add)
        parts = (
            fsdp.claim_all,
            self._claim_registered,
            self._claim_optimizers,
            self._claim_gradients,
            self._claim_attributes,
            self._claims.settle,
            self._claim_others,
            self._claims.settle,
        )
        for part in parts:
            with own_errors():  # what is odd in one part costs the others nothing
                part()
        facts = ParameterFacts(self._heap, self._modules, self._paths, self._stepped)
        facts.note(self._parameters, self._buffers, self._keepers)
        for garbage, circle in circles.items():  # all of it, also beyond the largest
            self._claims.add_storage(garbage, f"{circle.partition('.')[0]} (garbage)", "tensor")
        self._claims.settle()
        circle_at = {(garbage.device, garbage.address): circles[garbage] for garbage in circles}
        return [
            NamedTensor(
                device=device,
                address=address,
                bytes=storage.size_bytes,
                name=storage.name,
                kind=storage.kind,
                use=facts.uses.get((device, address), "") if storage.kind == "parameter" else "",
                dtype=facts.dtypes.get((device, address), "") if storage.kind in _TYPED else "",
                parts=facts.parts.get((device, address)) if storage.kind == "parameter" else None,
                kept_by=facts.kept_by.get((device, address))
                or self._links.get((device, address), ""),
                unfrozen=facts.unfrozen.get((device, address), ""),
                shape=self._shapes.get((device, address), ""),
                circle=circle_at.get((device, address), ""),
                frozen=True if (device, address) in facts.frozen else None,
                in_graph=self._made_by_graph(storage.kind, device, address),
            )
            for (device, address), storage in self._claims.names.items()
        ]

    def _is_tensor(self, candidate: Any) -> bool:
        return self._heap.kind(candidate) == "tensor"

    def _claim_registered(self) -> None:
        """Parameters and buffers that modules have registered."""
        for module, path in self._paths.items():
            for name, parameter in self._modules.parameters(module):
                if self._is_tensor(parameter):
                    self._claim_parameter(parameter, f"{path}.{name}")
            for name, buffer in named_items(self._modules.tables[module].get("_buffers")):
                if self._is_tensor(buffer):
                    self._claims.add(buffer, f"{path}.{name}", "buffer")
                    self._note_graph(buffer)
                    self._buffers.append(buffer)

    def _claim_parameter(self, parameter: Any, name: str) -> None:
        subject = self._parameter_names.setdefault(id(parameter), name)
        shard = dict(self._heap.attributes(parameter)).get("ds_tensor")
        if self._is_tensor(shard):  # DeepSpeed ZeRO-3: the parameter is the gathered whole
            self._claims.add(shard, subject, "parameter")
            subject += " (all-gathered)"
        self._claims.add(parameter, subject, "parameter")
        self._parameters.append(parameter)

    def _claim_optimizers(self) -> None:
        heap = self._heap
        names = self._optimizer_names()
        self._parameters += claim_wrappers(heap, names, self._parameter_names, self._claims.add)
        for optimizer, attributes in self._optimizers:
            self._claim_optimizer(names[id(optimizer)], attributes)
        for scaler in heap.live.get("scaler", ()):
            for path, tensor in heap.tensors_below(scaler):
                self._claims.add(tensor, f"grad_scaler{path}", "optimizer_state")

    def _optimizer_names(self) -> dict[int, str]:
        """Names by id: the optimizer of the parameters that come first is ``optimizer``."""
        order = {parameter: index for index, parameter in enumerate(self._parameter_names)}

        def first_parameter(optimizer: tuple[Any, dict[str, Any]]) -> int:
            places = (order.get(id(tensor), len(order)) for tensor in _trained(optimizer[1]))
            return min(places, default=len(order))

        unique = UniqueNames()
        names: dict[int, str] = {}
        for optimizer, _ in sorted(self._optimizers, key=first_parameter):
            variable = self._variables.get(id(optimizer))
            names[id(optimizer)] = unique(variable if names and variable else "optimizer")
        return names

    def _claim_optimizer(self, name: str, attributes: dict[str, Any]) -> None:
        heap = self._heap
        groups = [dict(items_of(group)) for group in list_elements(attributes["param_groups"])]
        for label, group in zip(_group_labels(groups), groups, strict=True):
            self._claim_group(name, label, group)
        for key, state in items_of(attributes["state"]):
            owner = self._parameter_names.get(id(key), "unknown parameter")
            owner = owner.removeprefix(name + ".")
            for path, tensor in heap.tensors_below(state):
                subject = f"{name}.state[{key_label(key)}]{path}"
                if self._is_tensor(key):
                    subject = f"{name}{attribute_text(path)}[{owner}]"
                self._claims.add(tensor, subject, "optimizer_state")
        for attribute, holder in attributes.items():
            if attribute not in ("state", "param_groups", "defaults"):
                for path, tensor in heap.tensors_below(holder):
                    self._claims.add(tensor, f"{name}.{attribute}{path}", "optimizer_state")

    def _claim_group(self, optimizer: str, label: str, group: dict[Any, Any]) -> None:
        for number, parameter in enumerate(list_elements(group.get("params"))):
            if id(parameter) not in self._parameter_names and self._is_tensor(parameter):
                name = f"{optimizer}.params[{label}][{number}]"
                self._parameter_names[id(parameter)] = name
                self._claims.add(parameter, name, "parameter")
                self._parameters.append(parameter)
        for key, option in group.items():
            if key != "params":
                for path, tensor in self._heap.tensors_below(option):
                    name = f"{optimizer}.{key}{path}[group {label}]"
                    self._claims.add(tensor, name, "optimizer_state")

    def _claim_gradients(self) -> None:
        for parameter in self._parameters:
            name, gradient = self._parameter_names[id(parameter)], self._heap.gradient(parameter)
            self._claims.add(gradient, name, "gradient", GRADIENT_FORM)
            if gradient is not None:
                self._note_graph(gradient)
            is_plain = self._heap.is_plain(parameter)
            for attribute, holder in self._heap.attributes(parameter):
                kind = attribute_kind(attribute, "tensor")
                for path, tensor in self._heap.tensors_below(holder, depth=4, objects=is_plain):
                    # Megatron-LM and DeepSpeed keep gradients beside ``.grad``.
                    if kind == "gradient":
                        self._claims.add(tensor, name, kind, GRADIENT_FORM)
                    else:
                        self._claims.add(tensor, f"{name}.{attribute}{path}", kind)

    def _claim_attributes(self) -> None:
        """Tensors that modules keep without having registered them: caches, lists of parameters."""
        registered = ("_parameters", "_buffers", "_modules")
        for module, path in self._paths.items():
            for attribute, holder in self._modules.tables[module].items():
                is_torchs = attribute in registered or "_hooks" in attribute
                if not is_torchs and gc.is_tracked(holder):
                    for below, tensor in self._heap.tensors_below(holder):
                        self._claims.add(tensor, f"{path}.{attribute}{below}", "tensor")
                        self._note_graph(tensor)

    def _claim_others(self) -> None:
        """The largest tensors that Python still sees and nothing above has named, after those
        who hold them; and some small ones that may keep a graph.
        """
        unnamed = self._unnamed()
        by_size = sorted(unnamed, key=lambda storage: -storage.size_bytes)
        large = [storage for storage in by_size if storage.size_bytes >= _LEAST_BYTES]
        small = by_size[len(large) :]
        chosen = [*large[:_MOST_OTHERS], *small[-_MOST_RESULTS:]]
        views = {storage: self._largest_views(unnamed[storage]) for storage in chosen}
        unnamed_bytes = sum(storage.size_bytes for storage in unnamed)
        searched = [tensor for tensors in views.values() for tensor in tensors]
        if unnamed_bytes < _WORTH_A_SEARCH * self._claims.named_bytes:
            searched = []  # it is a walk through the heap
        twins = self._twins()
        searched += twins
        holders = HolderNames(self._heap, self._paths, searched, seconds=self._search_seconds)
        names = {
            storage: name
            for storage, tensors in views.items()
            if (name := self._name_of_view(storage, tensors, holders))
        }
        for storage, name in names.items():
            self._claims.add_storage(storage, name, "tensor")
            for owner in views[storage]:
                gradient = self._heap.gradient(owner)
                self._claims.add(gradient, name, "gradient", GRADIENT_FORM)
        self._keepers = {self._paths[id(module)]: holders.name(module) for module in twins}
        for storage, name in names.items():
            self._links[storage.device, storage.address] = holders.links(name)
            self._shapes[storage.device, storage.address] = self._shape_of(storage, views[storage])
            for tensor in views[storage]:
                self._note_graph(tensor)

    def _made_by_graph(self, kind: str, device: int, address: int) -> bool | None:
        """True of a storage that a graph made; None of others, and of parameters: views of them have
        a graph.
        """
        return (kind != "parameter" and (device, address) in self._in_graph) or None

    def _note_graph(self, tensor: Any) -> None:
        """Keeps the storage of a tensor that an autograd graph made."""
        storage = self._heap.storage(tensor) if self._heap.in_graph(tensor) else None
        if storage is not None:
            self._in_graph.add((storage.device, storage.address))

    def _twins(self) -> list[Any]:
        """The modules that are no other's child, of classes with several of them."""
        roots: dict[int, list[Any]] = {}  # by the class's id: a metaclass may define hash
        for module in self._heap.live.get("module", ()):
            if "." not in self._paths.get(id(module), "."):
                roots.setdefault(id(type(module)), []).append(module)
        return [module for modules in roots.values() if len(modules) > 1 for module in modules]

    def _unnamed(self) -> dict[TensorStorage, list[Any]]:
        """The tensors of each storage that has no name, and is large or a result with its graph."""
        unnamed: dict[TensorStorage, list[Any]] = {}
        for tensor in self._heap.live.get("tensor", ()):
            storage = self._heap.storage(tensor)
            if storage is None:
                continue
            if storage.size_bytes < _LEAST_BYTES and not self._heap.in_graph(tensor):
                continue
            if (storage.device, storage.address) not in self._claims.names:
                unnamed.setdefault(storage.whole, []).append(tensor)
        return unnamed

    def _largest_views(self, tensors: list[Any]) -> list[Any]:
        return sorted(tensors, key=self._heap.view_bytes, reverse=True)[:_MOST_VIEWS]

    def _shape_of(self, storage: TensorStorage, views: list[Any]) -> str:
        """Type and sizes of the largest view of a storage; "" where it shows less than half of it."""
        is_most = 2 * self._heap.view_bytes(views[0]) > storage.size_bytes
        return self._heap.shape(views[0]) if is_most else ""

    def _name_of_view(
        self, storage: TensorStorage, tensors: list[Any], holders: HolderNames
    ) -> str:
        """The name of the first tensor whose holder has one; else its shape, "" of a small storage."""
        named = ((holders.name(tensor), tensor) for tensor in tensors)
        name, tensor = next((pair for pair in named if pair[0]), ("", tensors[0]))
        if not name and storage.size_bytes < _LEAST_BYTES:
            return ""
        shape = self._heap.shape(tensor)
        if 2 * self._heap.view_bytes(tensor) < storage.size_bytes:
            return f"{name} (slice {shape})" if name else f"{shape} slice"
        return name or f"{shape} tensor"


def _group_labels(groups: list[dict[Any, Any]]) -> list[str]:
    """What to call the groups of an optimizer: by their names, and by their places where they have none, or
    several have the same.
    """
    texts = [repr(name) if type(name := group.get("name")) is str else "" for group in groups]
    return [
        text if text and texts.count(text) == 1 else str(index) for index, text in enumerate(texts)
    ]


def _trained(optimizer: dict[str, Any]) -> list[Any]:
    """The parameters that an optimizer, given by its attributes, changes: not those of a group whose
    learning rate is 0 where another's is not. A scheduler keeps the rate that it began with; without one
    a warm-up begins with 0 in all groups.
    """
    groups = [dict(items_of(group)) for group in list_elements(optimizer["param_groups"])]
    rates = [group.get("initial_lr", group.get("lr")) for group in groups]
    rests = [type(rate) in (int, float) and rate == 0 for rate in rates]
    parameters = []
    for group, is_at_rest in zip(groups, rests, strict=True):
        if not is_at_rest or all(rests):
            parameters += list_elements(group.get("params"))
    return parameters
