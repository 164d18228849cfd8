"""Changes to modules that only some programs import: made when they do."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Makes a change to a module once it is imported, or now if it is."""
    module = sys.modules.get(name)
    if module is not None:
        change(module)
        return
    sys.meta_path.insert(0, _Finder(name, change))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others do, and changes it when it has run."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            self._change(module)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec
