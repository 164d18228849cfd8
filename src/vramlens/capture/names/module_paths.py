"""The path of a module in its model: ``model.blocks.3.attn``."""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any

from vramlens.capture.process.tracked_objects import tracked_objects
from vramlens.capture.process.undisturbed import no_other_thread
from vramlens.capture.torch_api import loaded_torch

# Programs that make modules every step must not pay for a look through the heap every step: one
# percent of the time.
_FREE_SECONDS = 1.0
_SHARE = 0.01
# Wrappers and the child that they wrap: people think of the model, not of these.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "DeepSpeedEngine": "module",
}


class ModulePaths:
    """Paths of all modules that have been asked for; forgets a module when it dies."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        # By id, without a look at a module that has not been asked for.
        self.known = self._paths.get
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._roots: dict[int, str] = {}
        self._began, self._spent = time.monotonic(), 0.0

    @property
    def root_names(self) -> dict[int, str]:
        """``id`` of each root module seen, and its name."""
        return dict(self._roots)

    def of(self, module: Any) -> str:
        """The path of a module, beginning with its root's name."""
        path = self._paths.get(id(module))
        return self._find(module) if path is None else path

    def _find(self, module: Any) -> str:
        now = time.monotonic()
        if self._spent <= max(_FREE_SECONDS, _SHARE * (now - self._began)):
            self._scan()
            self._spent += time.monotonic() - now
        if id(module) not in self._paths:
            self._keep(module, type(module).__name__)
        return self._paths[id(module)]

    def _scan(self) -> None:
        with no_other_thread():
            self._look_at_all()

    def _look_at_all(self) -> None:
        modules = _tracked_modules()
        children = {id(child) for module in modules for child in _children(module).values()}
        roots = [module for module in modules if id(module) not in children]
        roots.sort(key=_size, reverse=True)
        for root in roots:
            if id(root) not in self._paths:
                self._roots[id(root)] = name = self._name_root(root)
                self._walk(root, name)
            else:
                self._walk(root, self._paths[id(root)])

    def _name_root(self, root: Any) -> str:
        taken = set(self._roots.values())
        named = [
            key for key, variable in list(vars(sys.modules["__main__"]).items()) if variable is root
        ]
        # A model inside of functions has no name that can be read without keeping tensors alive
        # (frame.f_locals).
        candidates = [name for name in named if not name.startswith("_")]
        if not candidates and "model" not in taken and _size(root):
            candidates = ["model"]
        name = candidates[0] if candidates else type(root).__name__
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        return unique

    def _walk(self, root: Any, name: str) -> None:
        waiting = [(root, name)]
        while waiting:
            module, path = waiting.pop()
            wrapped = _WRAPPERS.get(type(module).__name__)
            if type(module).__name__.startswith("FSDP") and "_fsdp_wrapped_module" in _children(
                module
            ):
                wrapped = "_fsdp_wrapped_module"
            self._keep(module, path)
            for child_name, child in reversed(_children(module).items()):
                if id(child) not in self._paths:
                    waiting.append(
                        (child, path if child_name == wrapped else f"{path}.{child_name}")
                    )

    def _keep(self, module: Any, path: str) -> None:
        key = id(module)
        self._paths.setdefault(key, path)
        if key not in self._alive:
            self._alive[key] = weakref.ref(module, lambda _: self._forget(key))

    def _forget(self, key: int) -> None:
        for table in (self._paths, self._alive, self._roots):
            table.pop(key, None)


def _tracked_modules() -> list[Any]:
    base = loaded_torch().nn.Module
    is_module: dict[type, bool] = {}
    modules = []
    for instance in tracked_objects():
        cls = type(instance)
        is_torchs = is_module.get(cls)
        if is_torchs is None:
            is_torchs = is_module[cls] = issubclass(cls, base)
        if is_torchs and "_modules" in instance.__dict__:
            modules.append(instance)
    return modules


def _children(module: Any) -> dict[str, Any]:
    modules = module.__dict__.get("_modules") or {}
    return {name: child for name, child in list(modules.items()) if child is not None}


def _size(module: Any) -> int:
    """The number of modules that lie below, as a measure of importance."""
    visited: set[int] = set()
    waiting = [module]
    while waiting:
        for child in _children(waiting.pop()).values():
            if id(child) not in visited:
                visited.add(id(child))
                waiting.append(child)
    return len(visited)
