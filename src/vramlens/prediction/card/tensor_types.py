"""``torch.cuda.FloatTensor`` and its like, which older programs make tensors and ask for types with.

A build without CUDA has them in name only (torch/csrc/tensor/python_tensor.cpp).
"""

from __future__ import annotations

from typing import Any

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


def put_tensor_types(torch: Any) -> None:
    """Makes the device's types of tensors work; for good."""
    types = {}
    for name, dtype in _DTYPES.items():
        members = {"dtype": getattr(torch, dtype), "torch": torch, "is_cuda": True}
        members["__module__"] = "torch.cuda"
        types[f"torch.cuda.{name}"] = _TensorType(name, (), members)
        setattr(torch.cuda, name, types[f"torch.cuda.{name}"])
    plain_type, plain_default = torch.Tensor.type, torch.set_default_tensor_type

    def type_of(tensor: Any, dtype: Any = None, non_blocking: bool = False, **options: Any) -> Any:
        kind = types.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(kind, _TensorType):
            return tensor.to("cuda", kind.dtype)
        return plain_type(tensor) if dtype is None else plain_type(tensor, dtype, non_blocking)

    def set_default(kind: Any) -> None:
        kind = types.get(kind, kind) if isinstance(kind, str) else kind
        if not isinstance(kind, _TensorType):
            plain_default(kind)
            return
        torch.set_default_dtype(kind.dtype)
        torch.set_default_device("cuda")

    torch.Tensor.type, torch.set_default_tensor_type = type_of, set_default
