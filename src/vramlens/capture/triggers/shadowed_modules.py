"""Modules of the program's folder that are named like ones which vramlens has imported already.

Python looks into the program's folder first: its ``queue.py`` is what ``import queue`` finds there.
So it stays, although vramlens has needed Python's own before the program began.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

_NOT_OF_A_FOLDER = ("built-in", "frozen")


def give_back_shadowed(folder: str) -> None:
    """Has the program find its own modules where vramlens has imported others of their names."""
    shadowed = {name for name in _imported_by_us() if _is_shadowed(name, folder)}
    for name in tuple(sys.modules):
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]


def _imported_by_us() -> set[str]:
    """The modules, by their first names, that are there because of vramlens."""
    names = list(sys.modules)
    later = names[names.index("vramlens") :]
    return {name.partition(".")[0] for name in later} - {"vramlens"}


def _is_shadowed(name: str, folder: str) -> bool:
    """Whether the folder, which comes first, has another module of that name."""
    origin = _origin_of(sys.modules.get(name))
    if origin is None or origin in _NOT_OF_A_FOLDER:
        return False
    spec = PathFinder.find_spec(name, [folder])
    if spec is None or spec.loader is None or spec.origin is None:
        return False
    return os.path.realpath(spec.origin) != os.path.realpath(origin)


def _origin_of(module: ModuleType | None) -> str | None:
    return getattr(getattr(module, "__spec__", None), "origin", None)
