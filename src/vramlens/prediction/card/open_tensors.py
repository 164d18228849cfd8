"""``safetensors.safe_open`` of a file that the predicted program saved itself."""

from __future__ import annotations

from typing import Any

_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""Of types, as safetensors has them."""


class OpenTensors:
    """An open file of named tensors."""

    def __init__(self, tensors: dict[str, Any], device: Any) -> None:
        self._tensors, self._device = tensors, device

    def __enter__(self) -> OpenTensors:
        return self

    def __exit__(self, *raised: Any) -> None:
        """Nothing is open."""

    def keys(self) -> list[str]:
        return list(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str]:
        return {"format": "pt"}

    def get_tensor(self, name: str) -> Any:
        return self._tensors[name].to(self._device, copy=True)

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self._tensors}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name], self._device)


class _Slice:
    """A tensor of which a part may be taken."""

    def __init__(self, tensor: Any, device: Any) -> None:
        self._tensor, self._device = tensor, device

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        name = str(self._tensor.dtype).removeprefix("torch.")
        return _NAMES.get(name, name.upper())

    def __getitem__(self, index: Any) -> Any:
        return self._tensor[index].to(self._device, copy=True)
