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
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

from vramlens.capture.names.sharded_names import (
    CONTAINERS,
    NAMESPACE,
    Heap,
    Storage,
    Unique,
    attribute_kind,
    attribute_text,
    claim_fsdp,
    claim_wrappers,
    class_name,
    elements_of,
    items_of,
    key_text,
    named_items,
    script_variables,
)
from vramlens.capture.process.referents import Referents, everything_alive, referrers_of

_KINDS = ("parameter", "buffer", "gradient", "optimizer_state", "tensor")
_PARALLEL = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
)
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_LEAST_BYTES, _WORTH_A_SEARCH = 64 * 1024, 0.01
_MOST_OTHERS, _MOST_VIEWS, _MOST_HOLDERS = 500, 4, 8
_LEVELS = 5
_SEARCH_SECONDS = 1.5
_INSIDES: tuple[type, ...] = (
    types.CellType,
    types.FrameType,
    types.GeneratorType,
    types.CoroutineType,
)
_ENDS: tuple[type, ...] = (*_INSIDES[1:], types.ModuleType, types.FunctionType, type)
_NOBODYS = "?"


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A live storage (where the allocator's block begins) and what the program calls it;
    ``device`` is -1 for a CPU.
    """

    device: int
    address: int
    bytes: int
    name: str
    kind: str


def named_tensors(
    *, device_type: str = "cuda", root_names: Mapping[int, str] | None = None
) -> list[NamedTensor]:
    """All storages on devices of a type that have a name: of models and optimizers all, of others
    the largest.

    ``root_names``: better names for modules that are no other module's child, by ``id``. Never
        raises.
    """
    torch: Any = sys.modules.get("torch")
    collecting = gc.isenabled()
    gc.disable()  # what is made here would set off collections, which take seconds on a large heap and run finalizers
    heap: Heap | None = None
    try:
        with (
            torch._C.DisableTorchFunction()
        ):  # this thread's only: no subclass and no mode hears of what is read
            heap = Heap(torch, device_type, everything_alive())
            return _Names(heap, root_names or {}).resolved()
    except Exception:  # torch is not there, or not whole
        return []
    finally:
        if heap is not None:
            heap.objects.clear()  # this very frame can be among them, and would hold them all
        if collecting:
            gc.enable()


@dataclass(slots=True)
class _Entry:
    """A storage's name so far: its first claim, and where other claims of the same kind begin."""

    size_bytes: int
    start: int
    subject: str
    kind: str
    form: str
    others: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        more = f" and {len(self.others)} more" if self.others else ""
        return self.form.replace("{}", self.subject + more, 1)


class _Names:
    """Claims to storages, gathered from models, optimizers and what holds the rest."""

    def __init__(self, heap: Heap, root_names: Mapping[int, str]) -> None:
        self._heap = heap
        self._claims: list[tuple[Storage, str, str, str]] = []
        self._entries: dict[tuple[int, int], _Entry] = {}
        self._known: dict[int, str] = {}  # parameters by id
        self._parameters: list[Any] = []
        self._tables = {
            id(module): dict(heap.attributes(module)) for module in heap.live.get("module", ())
        }
        self._variables = script_variables()
        self._optimizers = [
            (optimizer, attributes)
            for optimizer in heap.live.get("optimizer", ())
            if {"state", "param_groups"} <= (attributes := dict(heap.attributes(optimizer))).keys()
        ]
        self._paths = self._name_modules(root_names)

    def resolved(self) -> list[NamedTensor]:
        """One name for each storage."""
        gathering = (self._fsdp, self._modules, self._states, self._gradients, self._attributes)
        for part in (*gathering, self._settle, self._others, self._settle):
            with suppress(Exception):  # what is odd in one part costs the others nothing
                part()
        return [
            NamedTensor(*place, entry.size_bytes, entry.name, entry.kind)
            for place, entry in self._entries.items()
        ]

    def _claim(self, tensor: Any, subject: str, kind: str, form: str = "{}") -> None:
        for suffix, storage in self._heap.storages(tensor) if tensor is not None else ():
            self._claims.append((storage, subject + suffix, kind, form))

    def _settle(self) -> None:
        for storage, subject, kind, form in sorted(
            self._claims, key=lambda claim: _KINDS.index(claim[2])
        ):
            fresh = _Entry(storage.size_bytes, storage.offset, subject, kind, form)
            entry = self._entries.setdefault((storage.device, storage.address), fresh)
            same = entry.kind == kind and entry.form == form
            counted = entry.subject == subject or "(flat parameter" in entry.subject
            entry.others |= {storage.offset} - {entry.start} if same and not counted else set()
        self._claims.clear()

    def _children(self, module: Any) -> list[tuple[str, Any]]:
        children = named_items(self._tables[id(module)].get("_modules"))
        return [(name, child) for name, child in children if id(child) in self._tables]

    def _name_modules(self, root_names: Mapping[int, str]) -> dict[int, str]:
        """Paths of all modules by id; the first path of those that are reached by several."""
        modules = self._heap.live.get("module", [])
        children = {id(child) for module in modules for _, child in self._children(module)}
        trained = set(map(id, _trained([attributes for _, attributes in self._optimizers])))
        roots = [module for module in modules if id(module) not in children]
        roots.sort(key=lambda root: self._weight(root, trained))
        given = []
        for root in roots:
            chain = [id(module) for module in self._wrapped(root)]
            candidates = [
                table[i] for table in (root_names, self._variables) for i in chain if i in table
            ]
            given.append(candidates[0] if candidates else "")
        if roots and "model" not in given and given[0] not in root_names.values():
            given[0] = "model"
        paths: dict[int, str] = {}
        unique = Unique()
        for root, name in zip(roots, given, strict=True):
            classes = (class_name(type(module)) for module in self._wrapped(root))
            self._walk(
                root,
                unique(
                    name or next((cls for cls in classes if cls not in _PARALLEL), _PARALLEL[0])
                ),
                paths,
            )
        for module in modules:  # rings of modules, which have no root
            if id(module) not in paths:
                self._walk(module, unique(class_name(type(module))), paths)
        return paths

    def _weight(self, root: Any, trained: set[int]) -> tuple[int, int]:
        """For sorting: first what an optimizer trains, then what is large (an average is as
        large as its model).
        """
        trained_bytes = all_bytes = 0
        below: dict[int, str] = {}
        self._walk(root, "", below)
        for identity in below:
            for _, parameter in named_items(self._tables[identity].get("_parameters")):
                if self._heap.kind(parameter) == "tensor":
                    size = sum(part.size_bytes for _, part in self._heap.storages(parameter))
                    all_bytes += size
                    trained_bytes += size if id(parameter) in trained else 0
        return -trained_bytes, -all_bytes

    def _wrapped(self, root: Any) -> list[Any]:
        """A root, and inside of it what it wraps."""
        chain = [root]
        while (
            inner := self._wrapped_child(chain[-1], outermost=True)
        ) is not None and inner not in map(id, chain):
            chain.append(
                next(child for _, child in self._children(chain[-1]) if id(child) == inner)
            )
        return chain

    def _wrapped_child(self, module: Any, outermost: bool) -> int | None:
        """The id of the child whose name nobody thinks of; ``module`` is a word, and so dropped
        only at the top.
        """
        children = self._children(module)
        own = any(
            value is not None
            for _, value in named_items(self._tables[id(module)].get("_parameters"))
        )
        alone = outermost and not own and len(children) == 1
        wrapped = (*_WRAPPED, "module") if alone else _WRAPPED
        return next((id(child) for name, child in children if name in wrapped), None)

    def _walk(self, root: Any, name: str, paths: dict[int, str]) -> None:
        waiting = [(root, name, True)]
        while waiting:
            module, path, outermost = waiting.pop()
            if id(module) in paths:
                continue
            paths[id(module)] = path
            wrapped = self._wrapped_child(module, outermost)
            for child_name, child in reversed(self._children(module)):
                inside = id(child) == wrapped
                waiting.append(
                    (child, path if inside else f"{path}.{child_name}", outermost and inside)
                )

    def _fsdp(self) -> None:
        claim_fsdp(self._heap, self._paths, self._known, self._claim)

    def _modules(self) -> None:
        for identity, path in self._paths.items():
            for name, parameter in named_items(self._tables[identity].get("_parameters")):
                if self._heap.kind(parameter) == "tensor":
                    subject = self._known.setdefault(id(parameter), f"{path}.{name}")
                    shard = dict(self._heap.attributes(parameter)).get("ds_tensor")
                    if (
                        self._heap.kind(shard) == "tensor"
                    ):  # DeepSpeed ZeRO-3: the parameter is the gathered whole
                        self._claim(shard, subject, "parameter")
                        subject += " (all-gathered)"
                    self._claim(parameter, subject, "parameter")
                    self._parameters.append(parameter)
            for name, buffer in named_items(self._tables[identity].get("_buffers")):
                if self._heap.kind(buffer) == "tensor":
                    self._claim(buffer, f"{path}.{name}", "buffer")

    def _states(self) -> None:
        heap, known = self._heap, self._known
        order = {identity: index for index, identity in enumerate(known)}
        places = [
            min(
                (order.get(id(tensor), len(order)) for tensor in _trained([attributes])),
                default=len(order),
            )
            for _, attributes in self._optimizers
        ]
        unique = Unique()
        names: dict[int, str] = {}
        for _, (optimizer, _) in sorted(
            zip(places, self._optimizers, strict=True), key=lambda pair: pair[0]
        ):
            variable = self._variables.get(id(optimizer))
            names[id(optimizer)] = unique(variable if names and variable else "optimizer")
        self._parameters += claim_wrappers(heap, names, known, self._claim)
        for optimizer, attributes in self._optimizers:
            name = names[id(optimizer)]
            for index, group in enumerate(elements_of(attributes["param_groups"])):
                self._group(name, index, dict(items_of(group)))
            for key, state in items_of(attributes["state"]):
                owner = known.get(id(key), "unknown parameter").removeprefix(name + ".")
                for path, tensor in heap.tensors_below(state):
                    subject = f"{name}.state[{key_text(key)}]{path}"
                    if heap.kind(key) == "tensor":
                        subject = f"{name}{attribute_text(path)}[{owner}]"
                    self._claim(tensor, subject, "optimizer_state")
            for attribute, value in attributes.items():
                if attribute not in ("state", "param_groups", "defaults"):
                    for path, tensor in heap.tensors_below(value):
                        self._claim(tensor, f"{name}.{attribute}{path}", "optimizer_state")
        for scaler in heap.live.get("scaler", ()):
            for path, tensor in heap.tensors_below(scaler):
                self._claim(tensor, f"grad_scaler{path}", "optimizer_state")

    def _group(self, optimizer: str, index: int, group: dict[Any, Any]) -> None:
        label = repr(group["name"]) if type(group.get("name")) is str else str(index)
        for number, parameter in enumerate(elements_of(group.get("params"))):
            if id(parameter) not in self._known and self._heap.kind(parameter) == "tensor":
                self._known[id(parameter)] = f"{optimizer}.params[{label}][{number}]"
                self._claim(parameter, self._known[id(parameter)], "parameter")
                self._parameters.append(parameter)
        for key, value in group.items():
            if key != "params":
                for path, tensor in self._heap.tensors_below(value):
                    self._claim(
                        tensor, f"{optimizer}.{key}{path}[group {label}]", "optimizer_state"
                    )

    def _gradients(self) -> None:
        for parameter in self._parameters:
            name = self._known[id(parameter)]
            self._claim(self._heap.gradient(parameter), name, "gradient", "grad[{}]")
            for attribute, value in self._heap.attributes(parameter):
                kind = attribute_kind(attribute, "tensor")
                for path, tensor in self._heap.tensors_below(
                    value, depth=4, objects=self._heap.is_plain(parameter)
                ):
                    if (
                        kind == "gradient"
                    ):  # Megatron-LM and DeepSpeed keep gradients beside ``.grad``
                        self._claim(tensor, name, kind, "grad[{}]")
                    else:
                        self._claim(tensor, f"{name}.{attribute}{path}", kind)

    def _attributes(self) -> None:
        """Tensors that modules keep without having registered them: caches, lists of parameters."""
        for identity, path in self._paths.items():
            for attribute, value in self._tables[identity].items():
                known = (
                    attribute in ("_parameters", "_buffers", "_modules") or "_hooks" in attribute
                )
                if not known and gc.is_tracked(value):
                    for below, tensor in self._heap.tensors_below(value):
                        self._claim(tensor, f"{path}.{attribute}{below}", "tensor")

    def _others(self) -> None:
        """The largest tensors that Python still sees and nothing above has named, after those
        who hold them.
        """
        found: dict[Storage, list[Any]] = {}
        for tensor in self._heap.live.get("tensor", ()):
            storage = self._heap.storage(tensor)
            if storage and storage.size_bytes >= _LEAST_BYTES and storage[:2] not in self._entries:
                found.setdefault(storage._replace(offset=0), []).append(tensor)
        largest = sorted(found, key=lambda storage: -storage.size_bytes)[:_MOST_OTHERS]
        views = {
            key: sorted(found[key], key=self._heap.view_bytes, reverse=True)[:_MOST_VIEWS]
            for key in largest
        }
        known = sum(entry.size_bytes for entry in self._entries.values())
        few = (
            sum(storage.size_bytes for storage in found) < _WORTH_A_SEARCH * known
        )  # it is a walk through the heap
        holders = _Holders(
            self._heap, self._paths, [] if few else [one for some in views.values() for one in some]
        )
        for storage, tensors in views.items():
            named = ((holders.name(tensor), tensor) for tensor in tensors)
            name, tensor = next((pair for pair in named if pair[0]), ("", tensors[0]))
            shape = self._heap.shape(tensor)
            if 2 * self._heap.view_bytes(tensor) < storage.size_bytes:
                name = f"{name} (slice {shape})" if name else f"{shape} slice"
            name = name or f"{shape} tensor"
            self._claims.append((storage, name, "tensor", "{}"))
            for owner in tensors:
                self._claim(self._heap.gradient(owner), name, "gradient", "grad[{}]")


def _trained(optimizers: list[dict[str, Any]]) -> list[Any]:
    """The parameters of optimizers, given by their attributes."""
    groups = [
        items_of(group)
        for attributes in optimizers
        for group in elements_of(attributes["param_groups"])
    ]
    return [parameter for group in groups for parameter in elements_of(dict(group).get("params"))]


class _Holders:
    """Who holds tensors that are no model's: a few sweeps over the heap, from the tensors
    upwards.
    """

    def __init__(self, heap: Heap, paths: dict[int, str], tensors: list[Any]) -> None:
        self._heap, self._paths = heap, paths
        self._edges: dict[int, list[tuple[Any, str]]] = {}
        self._referents = Referents()
        children, until = tensors, thread_time() + _SEARCH_SECONDS
        for _ in range(_LEVELS):
            wanted = {id(child) for child in children} - self._edges.keys()
            if not wanted or thread_time() > until:
                break
            self._edges.update((child, []) for child in wanted)
            children = []
            for holder in referrers_of(heap.objects, wanted, until):
                for label, child in self._labels(holder):
                    if id(child) in wanted and len(self._edges[id(child)]) < _MOST_HOLDERS:
                        self._edges[id(child)].append((holder, label))
                        children += (
                            () if type(holder) in _ENDS or id(holder) in paths else (holder,)
                        )

    def name(self, tensor: Any) -> str:
        """What leads to the tensor from a module, a class, an instance or a variable; "" if
        nothing is known.
        """
        return (
            self._best(self._edges.get(id(tensor), []), _LEVELS)
            .removeprefix(_NOBODYS)
            .removeprefix("__main__.")
        )

    def _labels(self, holder: Any) -> list[tuple[str, Any]]:
        cls = type(holder)
        if cls in _INSIDES or issubclass(cls, type):
            how = "" if cls in _INSIDES else NAMESPACE  # a class shows its dict only by proxy
            return [
                (how, value)
                for value in self._referents.of_one(holder)
                if not how or type(value) is dict
            ]
        if cls is types.FunctionType:
            return [(".__closure__", holder.__closure__), (".__defaults__", holder.__defaults__)]
        return [(NAMESPACE, self._heap.namespace(holder)), *self._heap.edges(holder)]

    def _best(self, edges: list[tuple[Any, str]], left: int) -> str:
        """The best known name of what is held: one that does not begin with a list that nobody
        is known to hold.
        """
        names = [self._through(holder, label, left) for holder, label in edges] if left else []
        return min(
            filter(None, names), key=lambda name: (name.startswith(_NOBODYS), len(name)), default=""
        )

    def _through(self, holder: Any, label: str, left: int) -> str:
        for owner, how in self._edges.get(id(holder), ()):
            if how == NAMESPACE:
                return self._of(owner, left - 1) + attribute_text(label)
            if how == ".__closure__":
                return f"{owner.__qualname__}.{owner.__code__.co_freevars[int(label[1:-1])]}"
        return self._of(holder, left - 1) + ("" if label == "._local_tensor" else label)

    def _of(self, owner: Any, left: int) -> str:
        """What to call an owner of something."""
        cls, edges = type(owner), self._edges.get(id(owner), [])
        if id(owner) in self._paths:
            return self._paths[id(owner)]
        if issubclass(cls, type):
            return class_name(owner)
        if issubclass(cls, types.ModuleType):
            return str(dict(items_of(self._heap.namespace(owner))).get("__name__"))
        if cls is types.FunctionType:
            return str(owner.__qualname__)
        if cls in _ENDS:
            names = [
                value.co_name
                for value in self._referents.of_one(owner)
                if type(value) is types.CodeType
            ]
            return f"local of {names[0] if names else 'function'}()"
        if (
            not issubclass(cls, CONTAINERS)
            and cls is not types.CellType
            and self._heap.kind(owner) != "tensor"
        ):
            # One of many is known by its place; else its class says more than who has it.
            edges = [edge for edge in edges if issubclass(type(edge[0]), CONTAINERS)]
            best = self._best(edges, left)
            return best if best.endswith("]") and not best.startswith(_NOBODYS) else class_name(cls)
        return self._best(edges, left) or (
            "" if cls is types.CellType else _NOBODYS + class_name(cls)
        )
