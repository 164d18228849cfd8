"""Live objects read without running anyone's code; and what FSDP and DeepSpeed keep beside a
model's own parameters.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import compress, takewhile
from typing import Any, NamedTuple

# Attributes of a class as C keeps them: a metaclass may define properties of these names, which
#     would run.
_DESCRIPTORS: tuple[type, ...] = (types.GetSetDescriptorType, types.MemberDescriptorType)
_DICT: Any = type.__dict__["__dict__"]
_MRO: Any = type.__dict__["__mro__"]
_NAME: Any = type.__dict__["__name__"]
_OPAQUE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
)
_SEQUENCES = (list, tuple, deque, set, frozenset)
CONTAINERS = (dict, *_SEQUENCES)
NAMESPACE = ".__dict__"
_MOST_ITEMS = 300_000
_LONGEST_KEY = 80
_FSDP2_PARTS = {
    "sharded_param": "",
    "_sharded_param_data": "",
    "_sharded_post_forward_param": " (resharded)",
    "_sharded_post_forward_param_data": " (resharded)",
    "_unsharded_param": " (all-gathered)",
    "all_gather_outputs": " (all-gathered)",
    "_unsharded_inner_tensors": " (all-gathered)",
}
_BY_NAME = {
    "FSDPParam": "fsdp2",
    "FSDPParamGroup": "fsdp2_group",
    "FlatParamHandle": "fsdp1",
    "GradScaler": "scaler",
}


class Storage(NamedTuple):
    """Where a tensor's bytes are; ``offset`` (in elements) tells views of one storage apart."""

    device: int
    address: int
    size_bytes: int
    offset: int


def class_name(cls: type) -> str:
    """The name of a class, whatever its metaclass says."""
    return str(_NAME.__get__(cls))


def key_text(key: object) -> str:
    """A dict's key as one would write it; keys that could run code when printed are named by
    their type.
    """
    if type(key) in (str, int, bool, float, type(None)):
        return repr(key)[:_LONGEST_KEY]
    return class_name(type(key))


class _Attributes(list[tuple[str, Any]]):
    """Attributes that have been read already, to be looked into like the instance they are from."""


class Heap:
    """What is alive, by kind, and how to look into it: types by ``type()``, attributes from the
    instance's dict.
    """

    def __init__(self, torch: Any, device_type: str, objects: list[Any]) -> None:
        self.device_type = device_type
        self.tensor: Any = torch.Tensor
        self._left = _MOST_ITEMS
        self._kinds: dict[int, str] = {}
        self._layouts: dict[int, tuple[Any, list[tuple[str, Any]]]] = {}
        self._plain: dict[int, bool] = {}
        self.objects = objects
        # Classes are kept for the while of this look: their ids are the keys.
        self._classes = self._classify(torch)
        self.live: dict[str, list[Any]] = {}
        for found in compress(
            self.objects, map(self._kinds.__contains__, map(id, map(type, self.objects)))
        ):
            self.live.setdefault(self._kinds[id(type(found))], []).append(found)

    def _classify(self, torch: Any) -> list[type]:
        """Every class there is; ``_kinds`` then knows the interesting ones by id (a metaclass
        may define hash).
        """
        seen: set[int] = set()
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
                if id(cls) in seen:
                    continue
                seen.add(id(cls))
                classes.append(cls)
                if not kind:
                    name = class_name(cls)
                    kind = _BY_NAME.get(name, "wrapper" if "Optimizer" in name else "")
                if kind:
                    self._kinds[id(cls)] = kind
                waiting.extend((below, kind) for below in type.__subclasses__(cls))
        return classes

    def kind(self, value: object) -> str | None:
        return self._kinds.get(id(type(value)))

    def attributes(self, owner: object) -> list[tuple[str, Any]]:
        """Names and values of an instance's own attributes: slots and the real ``__dict__``,
        never a property.
        """
        namespace, slots = self._layout_of(type(owner))
        found = []
        for name, slot in slots:
            with suppress(AttributeError):  # a slot without a value
                found.append((name, slot.__get__(owner)))
        if namespace is not None:
            found.extend(named_items(namespace.__get__(owner)))
        return found

    def namespace(self, owner: object) -> Any:
        """The dict in which an instance keeps its attributes, or None."""
        getter, _ = self._layout_of(type(owner))
        return None if getter is None else getter.__get__(owner)

    def _layout_of(self, cls: type) -> tuple[Any, list[tuple[str, Any]]]:
        if id(cls) not in self._layouts:
            self._layouts[id(cls)] = _layout(cls)
            self._classes.append(cls)
        return self._layouts[id(cls)]

    def edges(self, owner: Any) -> list[tuple[str, Any]]:
        """What a container or an instance holds, with the text that leads to each: ``['key']``,
        ``[3]``, ``.name``.
        """
        cls = type(owner)
        if cls is _Attributes:
            return [(f".{name}", value) for name, value in owner]
        if issubclass(cls, dict):
            return [(f"[{key_text(key)}]", value) for key, value in items_of(owner)]
        if issubclass(cls, tuple) and "_fields" in _DICT.__get__(cls):
            fields = _DICT.__get__(cls)["_fields"]
            return [
                (f".{name}", value)
                for name, value in zip(fields, tuple.__iter__(owner), strict=False)
            ]
        for base in _SEQUENCES:
            if issubclass(cls, base):
                return [
                    (f"[{index}]", value) for index, value in enumerate(list(base.__iter__(owner)))
                ]
        if issubclass(cls, _OPAQUE):
            return []
        return [(f".{name}", value) for name, value in self.attributes(owner)]

    def tensors_below(
        self, owner: Any, *, depth: int = 5, objects: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """The tensor itself, or those in nested containers and (``objects``) plain instances,
        with their paths.
        """
        if self.kind(owner) in ("tensor", "module", "optimizer"):  # the latter speak for themselves
            yield from [("", owner)] if self.kind(owner) == "tensor" else ()
            return
        waiting: deque[tuple[str, Any, int]] = deque([("", owner, depth)])
        seen = {id(owner)}
        while waiting:
            path, value, left = waiting.popleft()
            for label, item in self.edges(value):
                self._left -= (
                    1  # one bound for the whole look: a tokenizer's vocabulary may hang on a model
                )
                if self._left < 0:
                    return
                kind = self.kind(item)
                if kind == "tensor":
                    yield path + label, item
                elif kind or left == 1 or id(item) in seen or not gc.is_tracked(item):
                    continue
                elif objects or issubclass(type(item), CONTAINERS):
                    seen.add(id(item))
                    waiting.append((path + label, item, left - 1))

    def is_plain(self, tensor: Any) -> bool:
        """Whether sizes can be asked without Python code: no class below ``torch.Tensor``
        defines a dispatch.
        """
        cls = type(tensor)
        plain = self._plain.get(id(cls))
        if plain is None:
            below = takewhile(lambda base: base is not self.tensor, _MRO.__get__(cls))
            plain = not any("__torch_dispatch__" in _DICT.__get__(base) for base in below)
            self._plain[id(cls)] = plain
        return plain

    def storage(self, tensor: Any) -> Storage | None:
        """The tensor's own storage on the device, or None (another device, fake, freed, made of
        other tensors).
        """
        try:
            storage = self.tensor.untyped_storage(tensor)
            device = storage.device
            if (
                device.type != self.device_type
            ):  # before the address: asking a fake tensor for its address warns
                return None
            address, size = storage.data_ptr(), storage.nbytes()
            if not address or not size:
                return None
            offset = self.tensor.storage_offset(tensor) if self.is_plain(tensor) else 0
        except Exception:
            return None
        return Storage(-1 if device.index is None else device.index, address, size, offset)

    def storages(self, tensor: Any, depth: int = 3) -> list[tuple[str, Storage]]:
        """All storages that a tensor keeps, with what to add to its name: ``__tensor_flatten__``
        without calling it.

        A subclass made of other tensors (DTensor, quantised and nested tensors) keeps them as
        attributes.
        """
        own = self.storage(tensor)
        found = [] if own is None else [("", own)]
        if depth and not self.is_plain(tensor):
            for label, inner in self.tensors_below(
                _Attributes(self.attributes(tensor)), depth=2, objects=False
            ):
                label = "" if label == "._local_tensor" else label
                found += [
                    (label + suffix, part) for suffix, part in self.storages(inner, depth - 1)
                ]
        return [("", found[0][1])] if len(found) == 1 else found

    def shape(self, tensor: Any) -> str:
        """Element type and sizes: ``float32[8, 1024]``."""
        kind = str(self.tensor.dtype.__get__(tensor)).removeprefix("torch.")
        return f"{kind}{list(self.tensor.shape.__get__(tensor))}" if self.is_plain(tensor) else kind

    def view_bytes(self, tensor: Any) -> int:
        """Bytes of the elements that a tensor shows, of its storage perhaps a small part."""
        if not self.is_plain(tensor):
            return 0
        return int(self.tensor.numel(tensor) * self.tensor.dtype.__get__(tensor).itemsize)

    def gradient(self, tensor: Any) -> Any:
        """What ``.grad`` holds, or None; of leaves only: reading it of others warns."""
        try:
            return self.tensor.grad.__get__(tensor) if self.tensor.is_leaf.__get__(tensor) else None
        except Exception:
            return None


def attribute_text(label: str) -> str:
    """``.key`` for ``['key']``: what a dict of attributes holds."""
    return label.replace("['", ".", 1).replace("']", "", 1)


def items_of(mapping: Any) -> list[tuple[Any, Any]]:
    """A dict's items, copied in one go, without a subclass's own methods."""
    return list(dict.items(mapping)) if issubclass(type(mapping), dict) else []


def named_items(mapping: Any) -> list[tuple[str, Any]]:
    """A dict's items whose keys are true strings."""
    return [(key, value) for key, value in items_of(mapping) if type(key) is str]


class Unique:
    """Names that were not given yet: ``GPT``, ``GPT_2``, ..."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        number = self._count[name] = self._count.get(name, 0) + 1
        return name if number == 1 else self(f"{name}_{number}")


def elements_of(value: Any) -> list[Any]:
    """The elements of a list or tuple; of anything else none."""
    for base in (list, tuple):
        if issubclass(type(value), base):
            return list(base.__iter__(value))
    return []


def script_variables() -> dict[int, str]:
    """Names by id of what the script's own variables hold, the first of each."""
    main = sys.modules.get("__main__")
    names: dict[int, str] = {}
    if issubclass(type(main), types.ModuleType):
        for name, value in named_items(_layout(types.ModuleType)[0].__get__(main)):
            if not name.startswith("_"):
                names.setdefault(id(value), name)
    return names


def _layout(cls: type) -> tuple[Any, list[tuple[str, Any]]]:
    """How instances of a class keep attributes: the C getter of their dict (or None), and their
    slots.
    """
    getter = None
    slots = []
    for base in _MRO.__get__(cls):
        for name, member in list(_DICT.__get__(base).items()):
            if type(member) is types.MemberDescriptorType and not str(name).startswith("__"):
                slots.append((name, member))
            elif getter is None and name == "__dict__" and type(member) in _DESCRIPTORS:
                getter = member
    return getter, slots


Claim = Callable[..., None]
"""``claim(tensor, subject, kind, form="{}")``: the first claim of the first kind names a
storage.
"""


def claim_fsdp(heap: Heap, modules: dict[int, str], known: dict[int, str], claim: Claim) -> None:
    """Names what FSDP keeps: the shard has the parameter's name, the gathered whole says so.

    Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _fsdp_param_group.py and
        fsdp/_flat_param.py.
    """
    for owner in heap.live.get("fsdp2", ()):
        parts = dict(heap.attributes(owner))
        info = dict(heap.attributes(parts.get("_module_info")))
        name = f"{modules.get(id(info.get('module')), '')}.{info.get('param_name')}".lstrip(".")
        known.setdefault(id(parts.get("sharded_param")), name)
        for part, what in _FSDP2_PARTS.items():
            _claim_below(heap, parts.get(part), name + what, "parameter", claim)
        whole = [
            parts.get("unsharded_accumulated_grad"),
            heap.gradient(parts.get("_unsharded_param")),
        ]
        _claim_below(heap, whole, f"{name} (not yet reduced)", "gradient", claim, "grad[{}]")
        _claim_below(
            heap, heap.gradient(parts.get("sharded_param")), name, "gradient", claim, "grad[{}]"
        )
    for owner in heap.live.get("fsdp2_group", ()):
        parts = dict(heap.attributes(owner))
        first = next((value for _, value in heap.edges(parts.get("modules", ()))), None)
        name = modules.get(id(first)) or str(parts.get("_module_fqn") or "model")
        shared = dict(heap.attributes(parts.get("comm_ctx")))
        gathered = [parts.get("_all_gather_result"), parts.get("_all_gather_output")]
        _claim_below(heap, gathered, f"{name} (all-gather buffer)", "parameter", claim)
        # All groups share these: what waits there need not be this group's.
        _claim_below(heap, shared.get("all_gather_state"), "all-gather buffer", "parameter", claim)
        waiting = [shared.get("reduce_scatter_states"), shared.get("reduce_scatter_state")]
        _claim_below(heap, waiting, "reduce-scatter buffer", "gradient", claim, "grad[{}]")
        reduced = [parts.get("_partial_reduce_output"), parts.get("_all_reduce_state")]
        _claim_below(heap, reduced, f"{name} (all-reduce buffer)", "gradient", claim, "grad[{}]")
    for owner in heap.live.get("fsdp1", ()):
        handle = dict(heap.attributes(owner))
        flat = handle.get("flat_param")
        parts = dict(heap.attributes(flat))
        place = modules.get(id(handle.get("_fully_sharded_module")), "model")
        name = f"{place}.(flat parameter of {parts.get('_num_params', '?')})"
        known.setdefault(id(flat), name)
        for info, original in zip(
            parts.get("_param_infos") or (), parts.get("_params") or (), strict=False
        ):
            known.setdefault(id(original), f"{modules.get(id(info[1]), place)}.{info[0]}")
        _claim_below(heap, parts.get("_local_shard"), name, "parameter", claim)
        gathered = [parts.get("_full_param_padded"), parts.get("_full_prec_full_param_padded")]
        _claim_below(heap, gathered, f"{name} (all-gathered)", "parameter", claim)
        _claim_below(
            heap, parts.get("_mp_shard"), f"{name} (low-precision shard)", "parameter", claim
        )
        _claim_below(heap, flat, name, "parameter", claim)
        gradients = [parts.get("_saved_grad_shard"), parts.get("_cpu_grad"), heap.gradient(flat)]
        _claim_below(heap, gradients, name, "gradient", claim, "grad[{}]")


def _claim_below(
    heap: Heap, value: Any, name: str, kind: str, claim: Claim, form: str = "{}"
) -> None:
    """Claims a tensor, or all tensors in a container, under one name."""
    for _, tensor in heap.tensors_below(value, depth=3, objects=False):
        claim(tensor, name, kind, form)


def attribute_kind(name: str, otherwise: str) -> str:
    """What an attribute of a parameter or of a wrapping optimizer holds, by its name.

    Sources: Megatron-LM (``main_grad``), DDP mixed precision (``_mp_param``, ``_fp_param``),
    bitsandbytes (``quant_state``, ``CB``, ``SCB``), DeepSpeed runtime/zero/stage3.py,
    stage_1_and_2.py, bf16_optimizer.py (``ds_tensor``, ``bit16_groups_flat``,
    ``averaged_gradients``, ``ipg_buckets``).
    """
    if "grad" in name or "ipg" in name:
        return "gradient"
    low_precision = name.startswith(
        ("fp16_", "bit16_", "bf16_", "parallel_partitioned_", "lp_param")
    )
    parameter = name in (
        "quant_state",
        "CB",
        "SCB",
        "_mp_param",
        "_fp_param",
        "params_in_partition",
    )
    return "parameter" if low_precision or parameter or name.startswith("ds_") else otherwise


def claim_wrappers(
    heap: Heap, names: dict[int, str], known: dict[int, str], claim: Claim
) -> list[Any]:
    """Names what wrapping optimizers keep (DeepSpeed, Megatron-LM, apex); returns their own
    copies of parameters.
    """
    masters = []
    for owner in heap.live.get("wrapper", ()):
        attributes = heap.attributes(owner)
        inner = dict(attributes).get("optimizer")
        name = names.get(id(inner)) or class_name(type(owner))
        for attribute, value in attributes:
            kind = attribute_kind(attribute, "optimizer_state")
            for path, tensor in heap.tensors_below(value):
                subject = f"{name}.{attribute}{path}"
                claim(tensor, subject, kind)
                if kind != "gradient" and id(tensor) not in known:
                    known[id(tensor)] = subject
                    masters.append(tensor)
    return masters
