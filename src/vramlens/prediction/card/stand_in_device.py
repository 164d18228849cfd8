"""A CUDA device without a driver: PyTorch's C++ side believes in one, so that autograd runs on
tensors that claim it.

PyTorch's dispatcher, autocast and autograd work on tensors of any device; what they ask the device
itself goes through two tables of C++ functions: the device guard
(c10/core/impl/DeviceGuardImplInterface.h) and the CUDA hooks (ATen/detail/CUDAHooksInterface.h). A
build with CUDA brings a guard for a machine without a GPU (``torch._C._ensureCUDADeviceGuardSet``,
which fake tensors use); one without CUDA has none. Here both get what is
missing: every question is answered by ``vl_one_device`` (native/vramlens.h). It changes the whole
process for good, so it is done only in processes that are made for a prediction.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING, Any

from vramlens._core import load_core
from vramlens.errors import UsageError

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_CUDA = 1  # c10/core/DeviceType.h
_DEVICE_TYPES = 21
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_HEADERS = "ATen/detail/AcceleratorHooksInterface.h"
_ENTRIES = 80
"""Of a copied table: more than any version has, and within the library's read-only data."""
_BEFORE = 2
"""Entries before the first function: the offset to the object, and its type (Itanium C++ ABI)."""

_ALSO_COMPOSITE = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Operators with both a kernel for CUDA and one for every device (native_functions.yaml)."""

_kept: list[Any] = []


def provide_cuda() -> None:
    """Makes PyTorch's C++ side believe in one CUDA device.

    Raises:
        UsageError: this PyTorch has not the tables that are needed.
    """
    if _kept:
        return
    try:
        hooks_table = _hooks()
        if torch.version.cuda is None:
            _provide_guard()
            slots: tuple[str, ...] = ("isBuilt", "hasPrimaryContext")
        else:
            torch._C._ensureCUDADeviceGuardSet()
            slots = ("hasPrimaryContext",)
        _replace(hooks_table, slots)
        _provide_kernels()
    except (AttributeError, OSError, ValueError) as error:
        raise UsageError(
            f"PyTorch {torch.__version__} cannot run without a GPU here ({error}): use a build"
            " with CUDA, 2.13 or newer"
        ) from None


def _provide_kernels() -> None:
    """Tells the dispatcher of kernels that a build with CUDA has, for operators that it would
    otherwise make of others: they are never called, as a prediction answers before.

    Where a device has no kernel of its own, a CompositeImplicitAutograd one takes the place of
    autograd's formula, too (c10/core/dispatch/OperatorEntry.cpp, computeDispatchTableEntryWithDebug).
    """
    library: Any = torch.library.Library("aten", "IMPL", "CUDA")  # type: ignore[no-untyped-call]
    for name in _ALSO_COMPOSITE:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            library.impl(name, _never_called)
    _kept.append(library)


def _never_called(*args: Any, **options: Any) -> Any:
    raise NotImplementedError("a kernel that only a GPU has")


def _one_device() -> int:
    library = load_core()
    _kept.append(library)
    address = ctypes.cast(library.vl_one_device, ctypes.c_void_p).value
    assert address is not None
    return address


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", name))


def _provide_guard() -> None:
    registry = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(_library("libc10.so"), _GUARDS)
    if registry[_CUDA]:
        return
    table = (ctypes.c_void_p * _ENTRIES)(*[_one_device()] * _ENTRIES)
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    _kept.extend((table, guard))
    registry[_CUDA] = ctypes.addressof(guard)


def _hooks() -> int:
    get_hooks = getattr(_library("libtorch_cpu.so"), _HOOKS)
    get_hooks.restype = ctypes.c_void_p
    address: int = get_hooks()
    return address


def _replace(hooks: int, names: tuple[str, ...]) -> None:
    """Gives the hooks a table of their own in which some functions answer true."""
    entry = ctypes.sizeof(ctypes.c_void_p)
    present = ctypes.c_void_p.from_address(hooks).value
    assert present is not None
    table_type = ctypes.c_void_p * (_ENTRIES + _BEFORE)
    table = table_type.from_buffer_copy(table_type.from_address(present - _BEFORE * entry))
    order = _virtual_functions()
    for name in names:
        table[_BEFORE + order.index(name)] = _one_device()
    _kept.append(table)
    ctypes.c_void_p.from_address(hooks).value = ctypes.addressof(table) + _BEFORE * entry


def _virtual_functions() -> list[str]:
    """The hooks' functions in the order of their table, by the header that comes with PyTorch;
    destructors take two.
    """
    path = os.path.join(os.path.dirname(torch.__file__), "include", _HEADERS)
    with open(path, encoding="utf-8") as file:
        declared = re.findall(
            r"^\s*virtual\s+(?:[^;{(]*?[\s&*])?(~?\w+)\s*\(", file.read(), re.MULTILINE
        )
    names: list[str] = []
    for name in declared:
        names += ["~", "~"] if name.startswith("~") else [name]
    return names
