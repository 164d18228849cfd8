"""Waiting for the program to import a module, without importing it first.

Programs set CUDA_VISIBLE_DEVICES and the allocator's settings before they import torch: vramlens
must not be earlier.

Nothing here inherits from importlib.abc: Python 3.13's imports tempfile, in whose place the program
may have a module of its own.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Runs ``action`` once the module has been imported whole; at once if it has been."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        action()
        return
    sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Finds one module as everybody else would, as often as asked, and hears when it has been
    executed.
    """

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action = name, action
        self._is_asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            # Many ask for a spec long before they import, if ever.
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            loader: Any = _Loader(spec.loader, self._executed)
            spec.loader = loader
        return spec

    def _executed(self) -> None:
        if self in sys.meta_path:
            # Another list: a thread that is asking the finders of this one in turn, while its
            # import waits for a disk, would pass over one of them, and find no module.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            self._action()


class _Loader:
    """The real loader, and a call when it is done."""

    def __init__(self, loader: Loader, executed: Callable[[], None]) -> None:
        self._loader, self._executed = loader, executed

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._executed()

    def __getattr__(
        self, name: str
    ) -> object:  # what else a loader can do: get_source, get_resource_reader
        return getattr(self._loader, name)
