"""Changes to tensors, modules and marks of PyTorch's, so that they work with shapes on a card that
is not there: one function each, called once.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from vramlens.capture.triggers.on_import import when_imported

_LAZY_DEVICE, _RAGGED = "vramlens_device", "vramlens_ragged"
_FIRST_RAGGED = 1 << 20
"""Beyond the numbers that PyTorch gives (torch/nested/_internal/nested_tensor.py)."""
_DTYPES = {
    "FloatTensor": "float32", "DoubleTensor": "float64", "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16", "LongTensor": "int64", "IntTensor": "int32",
    "ShortTensor": "int16", "CharTensor": "int8", "ByteTensor": "uint8", "BoolTensor": "bool",
}  # fmt: skip


class _TensorType(type):
    """A type of tensors on the device: called it makes one, ``isinstance`` asks for one."""

    dtype: Any
    torch: Any

    def __call__(cls, *sizes_or_values: Any, **options: Any) -> Any:
        torch = cls.torch
        is_of_sizes = all(isinstance(size, int) for size in sizes_or_values)
        if len(sizes_or_values) == 1 and isinstance(sizes_or_values[0], torch.Size):
            sizes_or_values, is_of_sizes = tuple(sizes_or_values[0]), True
        if is_of_sizes:
            size = sizes_or_values or (0,)
            return torch.empty(size, dtype=cls.dtype, device="cuda")
        return torch.as_tensor(sizes_or_values[0], dtype=cls.dtype).to("cuda")

    def __instancecheck__(cls, tensor: Any) -> bool:
        return (
            isinstance(tensor, cls.torch.Tensor)
            and tensor.device.type == "cuda"
            and tensor.dtype is cls.dtype
        )


def put_tensors_of_data(torch: Any) -> None:
    """Lets each thread make a tensor of data on the device; for good.

    ``torch.tensor(..., device="cuda")`` is then made on the CPU and moved
    (torch/csrc/utils/tensor_new.cpp). That is a setting of a thread, and the backward pass and
    data loaders run in threads of their own.
    """
    from torch.utils._device import _device_constructors

    torch._C._set_only_lift_cpu_tensors(True)
    _device_constructors()  # it names the functions as they are, and remembers them
    for owner, name in (
        (torch, "tensor"),
        (torch, "as_tensor"),
        (torch, "asarray"),
        (torch.Tensor, "new_tensor"),
    ):
        setattr(owner, name, _made_on_cpu_first(torch, getattr(owner, name)))


def _made_on_cpu_first(torch: Any, make: Callable[..., Any]) -> Callable[..., Any]:
    set_in_thread = torch._C._set_only_lift_cpu_tensors

    @functools.wraps(make)
    def with_setting(*args: Any, **kwargs: Any) -> Any:
        set_in_thread(True)
        return make(*args, **kwargs)

    return with_setting


def put_tensor_types(torch: Any) -> None:
    """Makes ``torch.cuda.FloatTensor`` and its like work, which older programs make tensors and ask
    for types with; for good.

    A build without CUDA has them in name only (torch/csrc/tensor/python_tensor.cpp).
    """
    kinds = {}
    for name, dtype in _DTYPES.items():
        members = {"dtype": getattr(torch, dtype), "torch": torch, "is_cuda": True}
        members["__module__"] = "torch.cuda"
        kinds[f"torch.cuda.{name}"] = _TensorType(name, (), members)
        setattr(torch.cuda, name, kinds[f"torch.cuda.{name}"])
    plain_type, plain_default = torch.Tensor.type, torch.set_default_tensor_type

    def type_of(tensor: Any, dtype: Any = None, non_blocking: bool = False, **options: Any) -> Any:
        kind = kinds.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(kind, _TensorType):
            return tensor.to("cuda", kind.dtype)
        return plain_type(tensor) if dtype is None else plain_type(tensor, dtype, non_blocking)

    def set_default(kind: Any) -> None:
        kind = kinds.get(kind, kind) if isinstance(kind, str) else kind
        if not isinstance(kind, _TensorType):
            plain_default(kind)
            return
        torch.set_default_dtype(kind.dtype)
        torch.set_default_device("cuda")

    torch.Tensor.type, torch.set_default_tensor_type = type_of, set_default


def hide_shapes(torch: Any) -> None:
    """Makes ``torch._subclasses.FakeTensor`` a kind that no tensor is of, lest libraries see that
    tensors are shapes and take the path of a trace; for good.

    transformers' ``is_tracing`` asks for it and then makes an attention mask that a run leaves out
    (transformers/utils/import_utils.py, masking_utils.py: ``fsdp2_llama`` held one more activation
    a layer so). PyTorch's own modules have the class by its full name; one that has not asks for a
    tensor's device (torch/_meta_registrations.py, device_hint).
    """
    fake_tensor = torch._subclasses.fake_tensor.FakeTensor
    device_hint = torch._meta_registrations.device_hint

    def device_hint_of(tensor: Any) -> Any:
        is_shape = isinstance(tensor, fake_tensor)
        return tensor.fake_device.type if is_shape else device_hint(tensor)

    torch._subclasses.FakeTensor = types.new_class("NoTensor", (fake_tensor,))
    torch._meta_registrations.device_hint = device_hint_of


def put_lazy_layers(torch: Any, exchange: Callable[[Any, Any], None]) -> None:
    """Makes the weights of layers that learn their shapes from the first batch
    (``torch.nn.LazyLinear`` and its like) appear on the device that they were moved to.

    They have no shape when a module moves: PyTorch keeps their class and only notes the device
    (torch/nn/parameter.py, UninitializedTensorMixin).

    Args:
        torch: the module; it is changed.
        exchange: swaps two tensors behind their objects.
    """
    lazy = torch.nn.parameter.UninitializedTensorMixin
    plain_materialize = lazy.materialize

    def exchange_or_note(first: Any, second: Any) -> None:
        if isinstance(first, lazy):
            first.__dict__[_LAZY_DEVICE] = second.device
        else:
            exchange(first, second)

    def materialize(weight: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        moved_to = weight.__dict__.pop(_LAZY_DEVICE, None)
        target = torch.device(device or moved_to or weight.data.device)
        if target.type != "cuda":
            plain_materialize(weight, shape, device, dtype)
            return
        numbers = torch.empty(shape, device=target, dtype=dtype or weight.data.dtype)
        exchange(weight, torch.nn.Parameter(numbers, requires_grad=weight.requires_grad))

    torch.utils.swap_tensors = exchange_or_note
    lazy.materialize = materialize


def put_copied_parameters(torch: Any) -> None:
    """Makes ``copy.deepcopy`` of a parameter be one without a gradient; for good.

    A parameter on the device is of the class of shapes, of which PyTorch copies the gradient, too
    (torch/_tensor.py beside torch/nn/parameter.py).
    """
    fake_tensor = torch._subclasses.fake_tensor.FakeTensor
    plain_copy = torch.Tensor.__deepcopy__

    def deep_copy(tensor: Any, memo: dict[int, Any]) -> Any:
        if type(tensor) is not fake_tensor or not isinstance(tensor, torch.nn.Parameter):
            return plain_copy(tensor, memo)
        if id(tensor) not in memo:
            numbers = tensor.data.clone(memory_format=torch.preserve_format)
            memo[id(tensor)] = torch.nn.Parameter(numbers, tensor.requires_grad)
        return memo[id(tensor)]

    torch.Tensor.__deepcopy__ = deep_copy


def put_nested_tensors(torch: Any) -> None:
    """Lets shapes be the offsets of a nested tensor, without a trace's symbols: each of its ragged
    sizes is a number of its own; for good.
    """
    shapes: Any = torch._subclasses.fake_tensor
    numbers = itertools.count(_FIRST_RAGGED)

    def get_nested_int(offsets: Any, *, coeff: Any = 1) -> Any:
        if _RAGGED not in offsets.__dict__:
            setattr(offsets, _RAGGED, next(numbers))
        return torch._C._get_nested_int(getattr(offsets, _RAGGED), coeff)

    shapes.FakeTensor.get_nested_int = get_nested_int


def put_copies_between_devices(torch: Any) -> None:
    """Makes scatters, gathers and broadcasts be copies to the one device (``torch.nn.DataParallel``
    and its like); for good.
    """
    from torch.nn.parallel import _functions

    core: Any = torch._C
    # A build with CUDA would ask the driver for a stream to copy on.
    _functions._get_stream = lambda device: torch.cuda.current_stream()

    def copied(tensor: Any, devices: Any, *options: Any) -> tuple[Any, ...]:
        return (tensor.to("cuda"),)

    def gather(tensors: Any, dim: int, target: Any = None, *options: Any) -> Any:
        gathered = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)
        return gathered.cpu() if target == -1 else gathered

    core._scatter, core._broadcast, core._gather = copied, copied, gather
    core._broadcast_coalesced = lambda tensors, devices, size: [
        [tensor.to("cuda") for tensor in tensors]
    ]


def put_tracing(torch: Any) -> None:
    """Makes what is traced or scripted run as it is, and marks for a profiler do nothing; for good.

    TorchScript compiles by the sources of functions, which those have not that stand for PyTorch's.
    What forward mode is made of is PyTorch's own, and is compiled before.
    """

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript, and uses it here
        importlib.import_module("torch._decomp.decompositions_for_jvp")

    def as_it_is(function: Any, *args: Any, **options: Any) -> Any:
        return function

    torch.jit.trace = torch.jit.script = as_it_is
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *args: 0)
    after_import("torch.utils.tensorboard.writer", _leave_graphs_out)


def _leave_graphs_out(writer: Any) -> None:
    """A model's graph is drawn from a trace, in which sizes are tensors."""
    writer.SummaryWriter.add_graph = lambda *args, **options: None


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Makes a change to a module that only some programs import, once it is imported or now."""
    when_imported(name, lambda: change(sys.modules[name]))
