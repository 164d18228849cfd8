"""The form of a loss: the code, plain values, modes and batch structure that a check of it holds
for.
"""

from __future__ import annotations

import dis
import functools
import os
import sysconfig
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from vramlens.ground.place import path_in_packages

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST_ENTRIES = 16  # of a list or dict: a longer one is a log, not a setting
_MOST_VALUES = 4096
_SMALL_TENSOR = 1024
_DEPTH = 6
_PASSES = 4
_LIBRARIES = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
)
_READS = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF", "LOAD_SUPER_ATTR"}
)


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where a plain value that a loss reads lies.

    Attributes:
        holder: a dict (of an object, a module, a program), a list or a closure's cell.
        key: of the dict or list; None for a cell.
        name: as the program names it.
    """

    holder: Any
    key: Any
    name: str

    def read(self) -> Any:
        """The value now; None where there is none any more."""
        try:
            return self.holder.cell_contents if self.key is None else self.holder[self.key]
        except (KeyError, IndexError, ValueError):
            return None

    def write(self, value: Any) -> None:
        """Puts a value back."""
        if self.key is None:
            self.holder.cell_contents = value
        elif isinstance(self.holder, list) and self.key >= len(self.holder):
            return
        else:
            self.holder[self.key] = value


class PlainValues:
    """The plain values (numbers, strings) that a loss function and a model's own modules read.

    Attributes:
        key: hashable: two calls with equal keys run the same program with the same settings.
        modules: modules that the loss function reaches beside the model.
    """

    def __init__(self, loss_fn: Any, model: torch.nn.Module | None) -> None:
        modules = [] if model is None else list(model.modules())
        inside = {id(module) for module in modules}
        names: frozenset[str] = frozenset()
        for _ in range(_PASSES):
            walk = _Walk(names, inside)
            walk.value("loss_fn", getattr(loss_fn, "vramlens_form", loss_fn), 0)
            for index, module in enumerate(modules):
                walk.module(f"model[{index}]", module)
            if walk.names == names:
                break
            names = frozenset(walk.names)
        self.key = tuple(walk.key)
        self.modules = walk.modules
        self._places = walk.places
        self._values = [place.read() for place in self._places]

    def save(self) -> None:
        """Keeps the values as they are now."""
        self._values = [place.read() for place in self._places]

    def restore(self) -> None:
        """Puts all of them back."""
        for place, noted in zip(self._places, self._values, strict=True):
            now = place.read()
            if type(now) is not type(noted) or now != noted:
                place.write(noted)

    def changed_holders(self) -> set[int]:
        """The identities of the dicts in which a value is not what it was when it was noted."""
        pairs = zip(self._places, self._values, strict=True)
        return {id(place.holder) for place, noted in pairs if repr(place.read()) != repr(noted)}

    def read(self) -> list[Any]:
        """The values now."""
        return [place.read() for place in self._places]

    def differing(self, first: list[Any], second: list[Any]) -> str:
        """The name of the first value in which two readings differ; empty: in none."""
        for place, before, other in zip(self._places, first, second, strict=True):
            if repr(before) != repr(other):
                return place.name
        return ""


def batch_form(value: Any, count: int, path: str = "batch") -> Iterator[Any]:
    """The structure of a batch: types, keys and settings, but not the samples."""
    if isinstance(value, torch.Tensor):
        yield path, *_tensor_form(value, count)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from batch_form(inner, count, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        yield path, type(value).__name__
        if len(value) != count:
            for index, inner in enumerate(value[:_MOST_ENTRIES]):
                yield from batch_form(inner, count, f"{path}[{index}]")
    elif isinstance(value, _PLAIN):
        yield path, repr(value)
    else:
        yield path, type(value).__qualname__
        for name, inner in list(getattr(value, "__dict__", {}).items())[:_MOST_ENTRIES]:
            yield from batch_form(inner, count, f"{path}.{name}")


def _tensor_form(tensor: torch.Tensor, count: int) -> tuple[Any, ...]:
    has_samples = tensor.shape[:1] == (count,)
    settings = None if tensor.dim() else _tensor_key(tensor)
    return str(tensor.dtype), tensor.dim(), has_samples, tensor.requires_grad, settings


def surroundings() -> tuple[Any, ...]:
    """PyTorch's settings that change what a forward does."""
    return (
        torch.is_autocast_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


class _Walk:
    """Collects what a function reads, as far as the program's own code goes."""

    def __init__(self, names: frozenset[str], inside: set[int]) -> None:
        self.names = set(names)
        self.key: list[Any] = []
        self.places: list[ValuePlace] = []
        self.modules: list[torch.nn.Module] = []
        self._inside, self._seen = inside, set[int]()
        self._kept: list[Any] = []  # so that no identity is used twice

    def module(self, path: str, module: torch.nn.Module) -> None:
        """A module's modes, hooks and plain attributes."""
        hooks = (
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            len(module._backward_hooks),
        )
        trained = tuple(p is not None and p.requires_grad for p in module._parameters.values())
        self.key.append((path, type(module).__qualname__, module.training, hooks, trained))
        is_own = not _is_library(type(module).forward)
        if is_own:
            self._function(path, type(module).forward, 1)
        for name, attribute in list(vars(module).items()):
            if isinstance(attribute, _PLAIN) and name != "training":
                self.key.append((path, name, repr(attribute)))
                if is_own:
                    self.places.append(
                        ValuePlace(vars(module), name, f"{type(module).__name__}.{name}")
                    )
            elif name == "forward":
                self.value(f"{path}.forward", attribute, 1)

    def value(self, path: str, value: Any, depth: int) -> None:
        """Whatever it is: only what can change what a loss computes counts."""
        if depth > _DEPTH or len(self.key) > _MOST_VALUES:
            return
        if isinstance(value, (*_PLAIN, Enum)):
            self.key.append((path, repr(value)))
        elif isinstance(value, torch.Tensor):
            self.key.append((path, _tensor_key(value)))
        elif id(value) in self._seen or id(value) in self._inside:
            return
        else:
            self._seen.add(id(value))
            self._kept.append(value)
            self._compound(path, value, depth)

    def _compound(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, types.FunctionType):
            self._function(path, value, depth)
        elif isinstance(value, types.MethodType):
            self.value(path, value.__func__, depth)
            self.value(f"{path}.self", value.__self__, depth)
        elif isinstance(value, functools.partial):
            self.value(path, value.func, depth)
            self.value(f"{path} arguments", list(value.args), depth + 1)
            self.value(f"{path} keywords", value.keywords, depth + 1)
        elif isinstance(value, torch.nn.Module):
            self.modules.append(value)
            for index, module in enumerate(value.modules()):
                self.module(f"{path}[{index}]", module)
        elif isinstance(value, (Mapping, list, tuple, set, frozenset)):
            self._container(path, value, depth)
        else:
            self._object(path, value, depth)

    def _function(self, path: str, function: Any, depth: int) -> None:
        if _is_library(function):
            self.key.append((path, getattr(function, "__qualname__", "")))
            return
        code = function.__code__
        self.key.append((path, _code_key(code)))
        reads = _names_read(code)
        self.names |= reads
        self.value(f"{path} defaults", function.__defaults__, depth + 1)
        self.value(f"{path} defaults", function.__kwdefaults__, depth + 1)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name in reads:
                self._entry(cell, None, name, depth)
        for name in sorted(reads & function.__globals__.keys()):
            self._entry(function.__globals__, name, name, depth)

    def _entry(self, holder: Any, key: Any, name: str, depth: int) -> None:
        place = ValuePlace(holder, key, name)
        content = place.read()
        if isinstance(content, _PLAIN):
            self.places.append(place)
        self.value(name, content, depth + 1)

    def _container(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            for key in list(value)[:_MOST_ENTRIES]:
                self._entry(value, key, f"{path}[{key!r}]", depth)
            return
        # No entry of a list is put back: what a program appends to is a log.
        for index, inner in enumerate(list(value)[:_MOST_ENTRIES]):
            self.value(f"{path}[{index}]", inner, depth + 1)

    def _object(self, path: str, value: Any, depth: int) -> None:
        """An object or module of the program: of its attributes those that its functions read."""
        self.key.append((path, type(value).__qualname__))
        if isinstance(value, type) or type(value).__module__.partition(".")[0] in (
            "torch",
            "numpy",
            "builtins",
        ):
            return
        if isinstance(value, types.ModuleType) and _is_library_file(
            getattr(value, "__file__", None)
        ):
            return
        call = vars(type(value)).get("__call__")
        if isinstance(call, types.FunctionType):
            self._function(path, call, depth)
        attributes = getattr(value, "__dict__", {})
        for name in sorted(self.names & attributes.keys()):
            self._entry(attributes, name, f"{path}.{name}", depth)
        for name in sorted(self.names):
            inherited = getattr(type(value), name, None)
            if (
                isinstance(inherited, (types.FunctionType, property, *_PLAIN))
                and name not in attributes
            ):
                self.value(f"{path}.{name}", getattr(inherited, "fget", inherited), depth + 1)


@functools.lru_cache(4096)
def _names_read(code: types.CodeType) -> frozenset[str]:
    """The names of variables and attributes that code reads, that of its inner functions
    included.
    """
    names = {
        i.argval
        for i in dis.get_instructions(code)
        if i.opname in _READS and isinstance(i.argval, str)
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_read(constant)
    return frozenset(names)


@functools.lru_cache(4096)
def _code_key(code: types.CodeType) -> Any:
    constants = tuple(
        _code_key(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts
    )
    return code.co_code, code.co_names, constants


def _tensor_key(tensor: torch.Tensor) -> Any:
    settings = (str(tensor.dtype), str(tensor.device), tuple(tensor.shape), tensor.requires_grad)
    if tensor.requires_grad or tensor.numel() > _SMALL_TENSOR or tensor.layout is not torch.strided:
        return *settings, id(tensor)
    return *settings, tuple(tensor.detach().reshape(-1).tolist())


def _is_library(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    return (getattr(function, "__module__", "") or "").startswith("vramlens.") or _is_library_file(
        code.co_filename
    )


@functools.lru_cache(4096)
def _is_library_file(path: str | None) -> bool:
    """Whether code comes from an installed package or the standard library: it does not change
    in a run.
    """
    if path is None or path_in_packages(path):
        return True
    return any(os.path.abspath(path).startswith(folder + os.sep) for folder in _LIBRARIES if folder)
