"""Tensors and the autograd graph, read without side effects: no unpack hook, no recomputation, no
warning.

The rules are those of PyTorch's C++ sources: ``_raw_saved_*`` gives what a node keeps (``_saved_*``
would run the unpack hooks, which recompute checkpoints), ``.data`` of it is None after the backward
pass; ``next_functions`` gives the same wrapper for as long as somebody has it. All of it works on
tensors of CPUs and GPUs alike.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from vramlens.capture.process.graph_depths import sequence_of
from vramlens.ground.program_errors import let_through, own_errors
from vramlens.live.heap.objects import attributes_of, class_module, class_name

_RAW = "_raw_saved_"
_WITH_STORAGE = ("Tensor", "Parameter", "Buffer", "FlatParameter")
"""PyTorch's own classes (``torch.nn.parameter``, FSDP) whose instances are not wrappers."""
_USES_OF_A_NEW_ONE = 2  # the tensor, and our look at it


class Storage(NamedTuple):
    """Where bytes are: they are counted once, however many tensors look at them."""

    device: str
    address: int
    size_bytes: int


def device_of(storages: Iterable[Storage | None]) -> str:
    """The device on which most of these bytes are; empty without any."""
    sizes: dict[str, int] = {}
    for storage in storages:
        if storage is not None:
            sizes[storage.device] = sizes.get(storage.device, 0) + storage.size_bytes
    return max(sizes, key=lambda device: sizes[device], default="")


class TorchObjects:
    """Knows PyTorch's types by identity, and what their instances hold."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.base: Any = (
            torch._C.TensorBase if hasattr(torch._C, "TensorBase") else torch._C._TensorBase
        )
        self._saved_names: dict[int, tuple[str, ...]] = {}
        self._node_types: dict[int, type] = {}
        self.tensor_types: dict[int, type] = {}
        self.storage_types: dict[int, type] = {}
        self.checkpoint_types: dict[int, type] = {}
        results = vars(getattr(torch, "return_types", types.ModuleType("none"))).values()
        self.result_types = {id(kind): kind for kind in results if isinstance(kind, type)}
        for function_type in vars(torch._C._functions).values():
            if isinstance(function_type, type):
                self._node_types[id(function_type)] = function_type
        self.refresh()

    def refresh(self) -> None:
        """Learns of classes that were made since."""
        self.tensor_types = _with_subclasses(self.torch.Tensor)
        self.storage_types = _with_subclasses(self.torch._C.StorageBase)
        frame = getattr(sys.modules.get("torch.utils.checkpoint"), "_CheckpointFrame", None)
        self.checkpoint_types = {id(frame): frame} if type(frame) is type else {}
        base = getattr(self.torch._C, "_FunctionBase", None)
        if base is not None:
            self._node_types.update(_with_subclasses(base))

    def optimizer_types(self) -> dict[int, type]:
        """The classes of optimizers, by identity."""
        base = getattr(getattr(self.torch, "optim", None), "Optimizer", None)
        return _with_subclasses(base) if isinstance(base, type) else {}

    def types_with_storage(self) -> dict[int, type]:
        """The types of tensors that have memory of their own: PyTorch's other classes wrap such. To
        look for fewer types takes a third less of the time that it takes to read the heap.
        """
        return {
            key: kind
            for key, kind in self.tensor_types.items()
            if class_name(kind) in _WITH_STORAGE or not class_module(kind).startswith("torch.")
        }

    def is_tensor(self, value: object) -> bool:
        return id(type(value)) in self.tensor_types

    def is_view(self, tensor: Any) -> bool:
        """Whether a tensor is a view of another."""
        try:
            return bool(self.base._is_view(tensor))
        except Exception as error:
            let_through(error)
            return False

    def writes_to(self, tensor: Any) -> int:
        """How often operations wrote to a tensor in place; 0 where PyTorch does not count."""
        try:
            return int(self.base._version.__get__(tensor))
        except Exception as error:  # an inference tensor, or no tensor
            let_through(error)
            return 0

    def looks_again(self, tensor: Any) -> bool:
        """Whether a new tensor is likely a new look (a view, a detached one) at a storage that
        was there before.
        """
        base = self.base
        try:
            if base._is_view(tensor):
                return True
            if not base.is_leaf.__get__(tensor):
                return False  # an operation has just made it
            count = self.torch._C._storage_Use_Count
            return bool(count(base.untyped_storage(tensor)._cdata) > _USES_OF_A_NEW_ONE)
        except Exception as error:
            let_through(error)
            return False

    def is_node(self, value: object) -> bool:
        return id(type(value)) in self._node_types

    @property
    def node_types(self) -> dict[int, type]:
        """Types of autograd nodes seen so far, by id."""
        return self._node_types

    def storage_of(self, value: Any) -> Storage | None:
        """The storage behind a tensor or a storage; None where it has none of its own (meta,
        sparse, fake).
        """
        try:
            storage = (
                value if id(type(value)) in self.storage_types else self.base.untyped_storage(value)
            )
            address = _address_of(storage)
            return Storage(str(storage.device), address, int(storage.nbytes())) if address else None
        except Exception as error:
            let_through(error)
            # Sparse, meta, functional, quantized by a backend: nothing to count here.
            return None

    def place_of(self, tensor: Any) -> tuple[int, int] | None:
        """The address and bytes of the storage behind a tensor; None where it has none of its
        own.
        """
        try:
            storage = self.base.untyped_storage(tensor)
            address = _address_of(storage)
            return (address, int(storage.nbytes())) if address else None
        except Exception as error:
            let_through(error)
            return None

    def shape_text(self, tensor: Any) -> str:
        """``[8, 64] float32``."""
        try:
            size = ", ".join(str(int(n)) for n in self.base.size(tensor))
            return f"[{size}] {str(self.base.dtype.__get__(tensor)).removeprefix('torch.')}"
        except Exception as error:
            let_through(error)
            return "[?]"

    def viewed_bytes(self, tensor: Any) -> int | None:
        """The bytes that a tensor itself looks at."""
        try:
            return int(self.base.numel(tensor)) * int(self.base.element_size(tensor))
        except Exception as error:
            let_through(error)
            return None

    def is_number(self, tensor: Any) -> bool:
        """Whether a tensor has one element."""
        try:
            return int(self.base.numel(tensor)) == 1
        except Exception as error:
            let_through(error)
            return False

    def grad_fn(self, tensor: Any) -> Any:
        """The node that made a tensor, or None."""
        try:
            node = self.base.grad_fn.__get__(tensor)
        except Exception as error:
            let_through(error)
            # A view whose base was changed in place: its node cannot be made again.
            return None
        if node is not None:
            self._node_types.setdefault(id(type(node)), type(node))
        return node

    def has_grad_fn(self, tensor: Any) -> bool:
        """Whether a node made a tensor; without a look at it."""
        with own_errors():
            is_leaf = self.base.is_leaf.__get__(tensor)
            return not is_leaf and bool(self.base.requires_grad.__get__(tensor))
        return False

    def held_by_tensor(self, tensor: Any) -> Iterator[tuple[str, Any]]:
        """What a tensor holds beside its Python attributes and its node: gradient, base of the
        view, hooks.
        """
        base = self.base
        with own_errors():
            if base.is_leaf.__get__(tensor) or base.retains_grad.__get__(tensor):
                gradient = (
                    base._grad.__get__(tensor)
                    if hasattr(base, "_grad")
                    else base.grad.__get__(tensor)
                )
                if gradient is not None:
                    yield ".grad", gradient
        with own_errors():
            viewed = base._base.__get__(tensor)
            if viewed is not None:
                yield "._base", viewed
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            with own_errors():
                hooks = getattr(base, name).__get__(tensor)
                if hooks is not None:
                    yield f".{name}", hooks
        with own_errors():
            if base.is_sparse.__get__(tensor):
                yield "._indices()", base._indices(tensor)
                yield "._values()", base._values(tensor)

    def held_by_node(self, node: Any) -> Iterator[tuple[str, Any]]:
        """What an autograd node holds: earlier nodes, saved tensors (or what a hook packed them
        into), a parameter.
        """
        with own_errors():
            for earlier, _ in node.next_functions:
                if earlier is not None:
                    self._node_types.setdefault(id(type(earlier)), type(earlier))
                    yield ".next", earlier
        for name in self._names_of_saved(type(node)):
            with own_errors():
                saved = getattr(node, name)
                label = f"._saved_{name.removeprefix(_RAW)}"
                for part in saved if type(saved) in (tuple, list) else (saved,):
                    with own_errors():  # changed in place since: it cannot be had
                        data = part.data
                        if data is not None:
                            yield label, data
                    with own_errors():
                        # Of checkpoints and offloading: it is looked at, never called.
                        hook = part.unpack_hook
                        if hook is not None:
                            yield "._unpack_hook", hook
        if class_name(type(node)) == "AccumulateGrad":
            with own_errors():
                variable = node.variable
                if variable is not None:
                    yield ".variable", variable

    def held_by_autograd(self, holder: Any) -> Iterator[tuple[str, Any]]:
        """Yields what a tensor or an autograd node holds that the collector does not see."""
        if self.is_node(holder):
            yield from self.held_by_node(holder)
            return
        yield from self.held_by_tensor(holder)
        node = self.grad_fn(holder)
        if node is not None:
            yield ".grad_fn", node

    def held_by_checkpoint(self, frame: Any) -> Iterator[tuple[str, Any]]:
        """The inputs that a checkpoint keeps for its recomputation, as PyTorch 2.13 does: saved
        tensors in a list.
        """
        saved_type = getattr(self.torch._C._autograd, "SavedTensor", None)
        for _, inner in attributes_of(frame):
            for part in inner if type(inner) in (list, tuple) else ():
                if type(part) is saved_type:
                    with own_errors():
                        data = part.data
                        if data is not None:
                            yield "._saved_input", data

    def still_saves(self, node: Any) -> bool | None:
        """Whether an autograd node holds what it saved, or a backward pass let it go; None: it
        saves nothing.
        """
        if not self._names_of_saved(type(node)):
            return None
        return any(
            label.startswith(("._saved", "._unpack")) for label, _ in self.held_by_node(node)
        )

    def sequence_of(self, node: Any) -> int | None:
        """As ``graph_depths.sequence_of``."""
        return sequence_of(node)

    def sequence_now(self) -> int | None:
        """The number that this thread's next node gets."""
        try:
            return int(self.torch._C._autograd._get_sequence_nr())
        except Exception as error:
            let_through(error)
            return None

    def _names_of_saved(self, cls: type) -> tuple[str, ...]:
        names = self._saved_names.get(id(cls))
        if names is None:
            names = self._saved_names[id(cls)] = tuple(
                name for name in dir(cls) if name.startswith(_RAW)
            )
        return names


def _address_of(storage: Any) -> int:
    """The address of a storage's memory; 0 where it has none, as that of a FakeTensor, which would
    warn in the program's output.
    """
    return 0 if storage.device.type == "meta" else int(storage.data_ptr())


def loaded() -> TorchObjects | None:
    """PyTorch's objects if the program has imported it, whole; else None."""
    torch: Any = sys.modules.get("torch")
    try:
        return None if torch is None else TorchObjects(torch)
    except AttributeError:  # it is being imported right now
        return None


def _with_subclasses(base: Any) -> dict[int, type]:
    classes: dict[int, type] = {}
    waiting = [base]
    while waiting:
        cls = waiting.pop()
        if id(cls) not in classes:
            classes[id(cls)] = cls
            waiting.extend(type.__subclasses__(cls))
    return classes
