"""The peak of live tensors of a script that runs on the CPU with real tensors: an independent truth.

    python cpu_oracle.py SCRIPT [ARGUMENTS...]

What the script puts on ``cuda`` stays on the CPU and is marked, and so is all that operators make of
it; the most bytes of marked storages alive at once is the peak. Nothing of vramlens runs here. It has
no workspaces, and kernels of the CPU: attention keeps other tensors, and optimizers are not fused.
"""

from __future__ import annotations

import json
import runpy
import sys
import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_BLOCK = 512


def tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors in containers; of sparse ones their parts."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.layout is torch.strided]


class MarkedStorages:
    """The storages that would be on the device, and the most bytes of them at once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._finalizers: dict[int, Any] = {}
        self.live_bytes = self.peak_bytes = 0

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._sizes

    def mark(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = -(-storage.nbytes() // _BLOCK) * _BLOCK
        if key in self._sizes or not size:
            return
        self._sizes[key] = size
        self._finalizers[key] = weakref.ref(storage, lambda _: self._gone(key))
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _gone(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key, 0)
        self._finalizers.pop(key, None)


class MarkResults(TorchDispatchMode):
    """What operators make of marked tensors is marked."""

    def __init__(self, storages: MarkedStorages) -> None:
        super().__init__()
        self._storages = storages

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        inputs = tensors_of((args, kwargs or {}))
        result = function(*args, **(kwargs or {}))
        if any(self._storages.holds(tensor) for tensor in inputs if tensor.dim()):
            for tensor in tensors_of(result):
                self._storages.mark(tensor)
        return result


class CudaIsMarkedCpu(TorchFunctionMode):
    """``cuda`` in a program's calls is the CPU, and what comes of it is marked."""

    def __init__(self, storages: MarkedStorages) -> None:
        super().__init__()
        self._storages = storages

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return self._moved(args[0])
        device = kwargs.get("device")
        if name == "to" and len(args) > 1 and is_cuda(args[1]):
            return self._moved(args[0].to(*["cpu", *args[2:]], **kwargs))
        if name == "cpu":
            with _disable_current_modes():
                return args[0].clone()  # what comes back to the CPU is not marked
        if device is None or not is_cuda(device):
            return function(*args, **kwargs)
        kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        for tensor in tensors_of(result):
            self._storages.mark(tensor)
        return result

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._storages.holds(tensor):
            return tensor
        copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        self._storages.mark(copy)
        return copy


def is_cuda(device: Any) -> bool:
    """True where a device is a GPU."""
    return str(device).startswith("cuda")


def main() -> None:
    script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    torch.cuda.is_available = lambda: True
    storages = MarkedStorages()
    with CudaIsMarkedCpu(storages), MarkResults(storages):
        runpy.run_path(script, run_name="__main__")
    print(json.dumps({"script": script, "peak_bytes": storages.peak_bytes}))


if __name__ == "__main__":
    main()
